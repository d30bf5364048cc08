"""PPO whose critic is split across time scales, compiled as one program for a CPU or a GPU."""

from importlib.util import find_spec

from tddelta.errors import MissingExtra

_missing = [name for name in ("jax", "equinox", "optax", "gymnax", "six") if find_spec(name) is None]
if _missing:
    raise MissingExtra(f'training needs {", ".join(_missing)}: pip install "tddelta[train]"')
