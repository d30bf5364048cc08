"""Numbers, figures and one page about a set of runs, all redrawn from run directories alone.

`write_report` writes the page; `summary_table` gives its scores as rows for a terminal. Underneath: `statistics`,
`aggregates` (numbers), `study` (the runs, grouped and scored), `tables`, `plots` (axes in, axes out),
`figures` and `page`.
"""

from tddelta import _matplotlib as _matplotlib  # before what imports matplotlib itself
from tddelta.report.page import write_report
from tddelta.report.tables import summary_table

__all__ = ["summary_table", "write_report"]
