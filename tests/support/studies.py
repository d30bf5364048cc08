"""A small study in the current folder, its plan, and how far its runs are."""

from pathlib import Path

from tddelta.experiments import sweeping
from tddelta.experiments.display import Board
from tddelta.runs import RunWriter

CATCH = "Catch-bsuite"
STUDY = f'environments = "{CATCH}"\nagents = "ppo"\nseeds = 2\nsteps = 1000\nretries = 1\n'


def write(text=STUDY):
    """Write the study; its plan."""
    Path("study.toml").write_text(text, encoding="utf-8")
    return sweeping.plan(Path("study.toml"))


def run_of(seed):
    return Path("study", CATCH, "ppo", f"seed-{seed}")


def end(plan, state="finished", **counts):
    """Make the directory of a run that has ended so."""
    with RunWriter(plan.path, plan.content, {}) as writer:
        writer.status(state, **counts)


def look():
    return Board(sweeping.known(Path("study.toml"))).look()


def states():
    return [state.state for state in look()]
