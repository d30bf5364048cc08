"""Value functions split across time scales, TD(Δ).

The public names, resolved when they are first used: importing this package loads neither a deep-learning framework
nor anything else that a caller of the pure target functions does not need. `__init__.pyi` lists them.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
