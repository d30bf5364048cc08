"""Experiments as data: plan every run, check the whole plan, then work through it.

`compare` and `train` are all that a caller needs; `plan_runs` and `execute` are their two halves.
"""

from tddelta.experiments.comparison import compare, train
from tddelta.experiments.execution import Outcome, execute
from tddelta.experiments.plan import RunPlan, plan_runs

__all__ = ["Outcome", "RunPlan", "compare", "execute", "plan_runs", "train"]
