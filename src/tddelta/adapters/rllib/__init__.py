"""RLlib's PPO with TD(Δ) critics, on the new API stack: change the config's class, keep the rest.

```python
config = DeltaPPOConfig().environment("CartPole-v1").scales("halving")
algorithm = config.build_algo()
algorithm.train()["learners"]["default_policy"]["explained_variance"]  # {"gamma=0.680": …, …}
```

Needs the extra `rllib`. See the page "RLlib" of the documentation.
"""

import warnings

from tddelta.errors import MissingExtra

try:
    import ray
    import torch as _torch  # noqa: F401  (only to say how to install it)
    from ray import rllib as _rllib  # noqa: F401
except ImportError as error:
    raise MissingExtra('tddelta.adapters.rllib needs RLlib and PyTorch: pip install "tddelta[rllib]"') from error

from tddelta.adapters.rllib.ppo import (
    ComponentsAPI,
    DeltaAdvantageEstimation,
    DeltaPPO,
    DeltaPPOConfig,
    DeltaPPOTorchLearner,
    DeltaPPOTorchRLModule,
)
from tddelta.adapters.rllib.run_directory import RunDirectory, components, play

TRIED = "2.60"
"""The version of Ray that this was tried with: RLlib moves the parts that it hooks into from one to the next."""

if ray.__version__.split(".")[:2] != TRIED.split("."):
    warnings.warn(
        f"tddelta.adapters.rllib was tried with Ray {TRIED}; this is {ray.__version__}: compare a training with "
        f"scales('single') to one of RLlib's PPO, which must be equal, or install ray=={TRIED}.*",
        UserWarning,
        stacklevel=2,
    )

__all__ = [
    "ComponentsAPI",
    "DeltaAdvantageEstimation",
    "DeltaPPO",
    "DeltaPPOConfig",
    "DeltaPPOTorchLearner",
    "DeltaPPOTorchRLModule",
    "RunDirectory",
    "components",
    "play",
]
