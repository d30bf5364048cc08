"""Numbers, figures and one page about a set of runs, all redrawn from run directories alone.

`Report` writes the page and gives its scores as rows for a terminal; `write_report` and `summary_table` do so in one
call. `critics` reads a study of critics of one policy. Underneath: `statistics` (numbers), `run_set` (the runs, grouped
and scored), `words`, `tables`, `figures` and `page`.
"""

from tddelta import _matplotlib as _matplotlib  # before what imports matplotlib itself
from tddelta.report.page import Report, summary_table, write_report

__all__ = ["Report", "summary_table", "write_report"]
