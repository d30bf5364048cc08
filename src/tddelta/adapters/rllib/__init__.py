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

# RLlib moves the parts that are hooked into from one version to the next.
_TRIED = "2.60"

if ray.__version__.split(".")[:2] != _TRIED.split("."):
    warnings.warn(
        f"tddelta.adapters.rllib was tried with Ray {_TRIED}; this is {ray.__version__}: compare a training with "
        f"scales('single') to one of RLlib's PPO, which must be equal, or install ray=={_TRIED}.*",
        UserWarning,
        stacklevel=2,
    )

from tddelta.adapters.rllib.ppo import (  # noqa: E402  (after the warning: another version may not import)
    ComponentsAPI,
    DeltaAdvantageEstimation,
    DeltaPPO,
    DeltaPPOConfig,
    DeltaPPOTorchLearner,
    DeltaPPOTorchRLModule,
)
from tddelta.adapters.rllib.run_directory import RunDirectory, components, play  # noqa: E402

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
