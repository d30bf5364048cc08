"""The tabular laboratory: finite MDPs, exact values, and TD(Δ) in compiled loops. Algorithm 1 is in `n_step`.

The public names, resolved when they are first used: importing this package loads neither numba nor polars.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
