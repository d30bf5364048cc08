"""`reproduce atari`: work through the runs, measure what is finished, report what is there so far."""

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tddelta.cli.reading import print_report, print_table
from tddelta.cli.training import explain

if TYPE_CHECKING:
    from tddelta.cli.reproduce import Reproduce
    from tddelta.experiments.plan import RunPlan


def reproduce_atari(options: "Reproduce", command: Sequence[str]) -> int:
    """Run `reproduce atari` or `reproduce atari-variants`."""
    from tddelta.experiments import atari
    from tddelta.experiments.display import Display, describe
    from tddelta.experiments.execution import execute
    from tddelta.experiments.plan import default_out, divide
    from tddelta.runs import CHECKPOINT_SECONDS

    variants = options.experiment == "atari-variants"
    out = default_out() if options.out is None else options.out
    plans = atari.plan_atari(
        options.games or (atari.VARIANT_GAMES if variants else None),
        options.agents or (atari.VARIANT_AGENTS if variants else atari.AGENTS),
        seeds=options.seed_list or (len(atari.SEEDS) if options.seeds is None else options.seeds),
        steps=atari.STEPS if options.steps is None else options.steps,
        out=out,
    )
    todo, finished = divide(plans, resume=True, shared=True)
    if options.listed:
        _show(plans)
        return 0
    with Display(todo, finished, live=sys.stderr.isatty(), say=describe) as display:
        every = CHECKPOINT_SECONDS if options.checkpoint_every is None else options.checkpoint_every
        outcomes, number = execute(todo, display, checkpoint_every=every, command=command, shared=True)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    explain(failed, options)
    if number is not None:
        done = len(finished) + sum(outcome.state == "finished" for outcome in outcomes)
        again = [*command, *([] if options.out else ["--out", str(out)])]
        print(f"stopped: {done} of {len(plans)} runs are finished; so far: tddelta report {out}", file=sys.stderr)
        print(f"to go on: {shlex.join(again)}", file=sys.stderr)
        return 128 + number
    unmeasured = atari.measure(plans, _tell)
    for plan, error in unmeasured:
        _tell(f"tddelta: {plan.name} could not be measured: {error}")
    if len(failed) < len(plans):
        correct = tuple(dict.fromkeys(plan.agent for plan in plans if plan.agent in atari.AGENTS))
        print_report([out], baselines=correct if variants and correct else None)
    return 1 if failed or unmeasured else 0


def _show(plans: "Sequence[RunPlan]") -> None:
    """Print the plan: how many runs are how far, and how long the rest takes."""
    from tddelta.experiments import atari
    from tddelta.experiments.board import summary
    from tddelta.experiments.display import duration

    states = atari.look(plans)
    estimate = None
    if any(state.state != "finished" for state in states):
        estimate = atari.estimate(plans)
    rows = []
    for environment, agent in dict.fromkeys((state.entry.environment, state.entry.agent) for state in states):
        here = [s for s in states if (s.entry.environment, s.entry.agent) == (environment, agent)]
        finished = sum(state.state == "finished" for state in here)
        begun = sum(state.state not in ("finished", "waiting") for state in here)
        left = "" if estimate is None else duration(estimate.seconds(here))
        rows.append([environment, agent, str(len(here)), f"{here[0].entry.steps:,}", str(finished), str(begun), left])
    print_table(["Game", "Agent", "Runs", "Steps each", "Finished", "Begun", "Time left here"], rows, left=2)
    print(f"\n{summary(states)}")
    if estimate is not None:
        speed = f"{estimate.steps_per_second:,.0f} steps per second, {estimate.source}"
        print(f"time left on this machine alone: {duration(estimate.seconds(states))} ({speed})")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
