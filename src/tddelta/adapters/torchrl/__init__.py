"""TorchRL with TD(Δ) critics: one value estimator for PPO, A2C and similar losses.

```python
scales = tdd.TimeScales.halving(gamma=0.99, lam=0.95)
critic = ValueOperator(MLP(in_features=4, out_features=len(scales)), in_keys=["observation"])
loss = ClipPPOLoss(actor, critic, **loss_settings(scales))
loss.make_value_estimator(DeltaGAE, value_network=critic, scales=scales)
```

Needs the extra `torchrl`. See the page "TorchRL" of the documentation.
"""

from tddelta.errors import MissingExtra

try:
    import torchrl as _torchrl  # noqa: F401  (only to say how to install it)
except ImportError as error:
    raise MissingExtra('tddelta.adapters.torchrl needs torchrl and PyTorch: pip install "tddelta[torchrl]"') from error

from tddelta.adapters.torchrl.estimator import DeltaGAE, delta_critic, loss_settings, predict_components, predict_values

__all__ = ["DeltaGAE", "delta_critic", "loss_settings", "predict_components", "predict_values"]
