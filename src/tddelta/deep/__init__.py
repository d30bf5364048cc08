"""PPO whose critic is split across time scales, compiled as one program for a CPU or a GPU."""

import os
from importlib.util import find_spec

from tddelta.errors import ConfigError, MissingExtra

_missing = [name for name in ("jax", "equinox", "optax", "gymnax", "six") if find_spec(name) is None]
if _missing:
    raise MissingExtra(f'training needs {", ".join(_missing)}: pip install "tddelta[train]"')

if platforms := os.environ.get("JAX_PLATFORMS"):  # JAX's own errors, raised wherever it is used first, tell little
    import jax

    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"JAX_PLATFORMS must name devices that JAX finds here; got {platforms!r}: unset it, or set it to cpu"
        ) from error
