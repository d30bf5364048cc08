"""rsl_rl with TD(Δ) critics: one line in the configuration of a robot's training.

```python
train_cfg["algorithm"]["class_name"] = "tddelta.adapters.rsl_rl:DeltaPPO"
```

Needs the extra `rsl-rl`. See the page "rsl_rl" of the documentation.
"""

import warnings
from importlib import metadata

from tddelta.errors import MissingExtra

try:
    import rsl_rl.algorithms as _algorithms  # noqa: F401  (only to say how to install it)
except ImportError as error:
    raise MissingExtra('tddelta.adapters.rsl_rl needs rsl-rl-lib and PyTorch: pip install "tddelta[rsl-rl]"') from error

TRIED = "5.5.1"
"""Version of rsl-rl-lib that this was tried with."""


def _check_version(installed: str) -> None:
    """Warn of a version of rsl-rl-lib other than the one that was tried, patches apart."""
    if installed.split(".")[:2] != TRIED.split(".")[:2]:
        warnings.warn(
            f"tddelta.adapters.rsl_rl was tried with rsl-rl-lib {TRIED}; got {installed}, whose PPO may call its parts "
            f'otherwise: look at the first updates, or pip install "rsl-rl-lib=={TRIED}"',
            UserWarning,
            stacklevel=2,
        )


try:
    _check_version(metadata.version("rsl-rl-lib"))
except metadata.PackageNotFoundError:  # from a source tree
    _check_version("one of unknown version")

from tddelta.adapters.rsl_rl.ppo import DeltaPPO  # noqa: E402  (after the warning: another version may not import)
from tddelta.adapters.rsl_rl.run_directory import learn  # noqa: E402

__all__ = ["DeltaPPO", "learn"]
