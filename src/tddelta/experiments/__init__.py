"""Experiments as data: plan every run, check the whole plan, then work through it.

`compare`, `train` and, for a study in a file, `sweep` are all that a caller needs; `plan_runs` and `execute` are two
halves of the first two. `tune` searches for settings.
"""

from tddelta.experiments.comparison import compare, train
from tddelta.experiments.plan import RunPlan, plan_runs
from tddelta.experiments.running import Outcome, execute
from tddelta.experiments.sweeping import sweep
from tddelta.experiments.tuning import Tuned, tune

__all__ = ["Outcome", "RunPlan", "Tuned", "compare", "execute", "plan_runs", "sweep", "train", "tune"]
