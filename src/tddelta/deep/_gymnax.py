"""gymnax, without the plotting libraries that some of its modules import for their pictures."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_NAMES = ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "matplotlib.animation", "seaborn")


class _Later(ModuleType):
    """A module that is imported when somebody draws."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or sys.modules.get(self.__name__) is self:
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _without_plotting() -> Iterator[None]:
    before = {name: sys.modules.get(name) for name in _NAMES}
    sys.modules.update({name: _Later(name) for name, module in before.items() if module is None})
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


with _without_plotting():
    import gymnax as gymnax
    from gymnax.environments import environment as environment
    from gymnax.environments import spaces as spaces
