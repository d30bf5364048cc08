"""matplotlib, whatever the user's settings of it are: nothing here needs a backend for windows or notebooks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_chosen = os.environ.pop("MPLBACKEND", None)  # one that is misspelt or not installed would end the import
try:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvasAgg
    from matplotlib.figure import Figure as Figure
finally:
    if _chosen is not None:
        os.environ["MPLBACKEND"] = _chosen
if _chosen:
    with suppress(ValueError):
        matplotlib.rcParams["backend"] = _chosen  # for what the user draws in this process


@contextmanager
def own_style() -> Iterator[None]:
    """Draw with matplotlib's own defaults, whatever a matplotlibrc or the caller's style says."""
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        yield
