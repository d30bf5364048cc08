"""Experiments as data: plan every run, check the whole plan, then work through it.

`compare`, `train` and, for a study in a file, `sweep` are all that a caller needs; `plan_runs` and `run_plans` are two
halves of the first two. `tune` searches for settings.
"""

from tddelta.experiments.comparison import compare, train
from tddelta.experiments.plan import Outcome, Outcomes, RunPlan, plan_runs
from tddelta.experiments.running import run_plans
from tddelta.experiments.sweeping import sweep
from tddelta.experiments.tuning import Tuned, tune

__all__ = ["Outcome", "Outcomes", "RunPlan", "Tuned", "compare", "plan_runs", "run_plans", "sweep", "train", "tune"]
