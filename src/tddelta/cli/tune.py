"""`tune`: search for settings, and compare what was found with the preset."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from tddelta.cli.reading import print_report
from tddelta.cli.training import Tracker, keywords
from tddelta.errors import ConfigError

if TYPE_CHECKING:
    from tddelta.experiments.tuning import Tuned


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tune:
    """Search for settings, then compare the best with the preset on seeds that the search has not seen.

    A trial trains some seeds with one setting. The first is the preset, Optuna proposes the others, and a trial that
    falls behind is given up early. A setting that is named as an option is fixed; the others are searched: learning
    rate, λ, trace rule, number of components, shortest horizon, weight of each component.

    OUT/preset.toml holds what was found: train and compare take it as --preset, a study of sweep under presets.
    OUT/tune.db holds the trials, so that --resume goes on with the search; OUT/report.html draws the comparison.

    Example: tddelta tune CartPole-v1 --trials 30 --steps 100_000 --gamma 0.999 --out runs/tuned
    """

    environment: Annotated[Positional[str], arg(metavar="ENV")]
    """gymnax id such as Breakout-MinAtar or CartPole-v1, or package.module:factory."""
    agent: str = "ppo-delta"
    """ppo, ppo+, ppo-multi, ppo-delta, ppo-delta-matched, ppo-delta-difference, or package.module:agent."""
    trials: int = 30
    """Trials in all; those that are given up count."""
    steps: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: the environment's preset)")] = None
    """Environment steps of every run, rounded up to whole updates."""
    search: Annotated[
        tuple[str, ...] | None, arg(metavar="SETTING [SETTING ...]", help_behavior_hint="(default: all that can be)")
    ] = None
    """What to search: learning_rate, lam, rule, components, shortest_horizon, component_weights."""
    search_seeds: int = 2
    """Seeds of a trial; they train at the same time."""
    evaluation_seeds: int = 5
    """Seeds of the comparison at the end; none of them is a search seed."""
    seed: int = 0
    """Where all those seeds and the proposals come from."""
    pruner: Literal["median", "halving", "none"] = "median"
    """Give up a trial below the median of earlier ones, all but the better third (successive halving), or none."""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: runs/YYYYMMDD-HHMMSS)")] = None
    """Folder of the search."""
    resume: bool = False
    """Go on with the search in --out; more --trials than before add some."""
    track: Annotated[tuple[Tracker, ...], arg(metavar="tensorboard|wandb [...]", help_behavior_hint="")] = ()
    """Let TensorBoard or Weights & Biases follow every run."""
    env_kwargs: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE [...]|JSON", help_behavior_hint="")] = ()
    """Keyword arguments of the environment, as key=value or one JSON object."""
    json: bool = False
    """Print the result as one JSON object on the standard output, and nothing else."""

    def run(self, command: Sequence[str]) -> int:
        """Search, compare, report."""
        from tddelta.experiments.plan import default_out
        from tddelta.experiments.tuning import Stopped, run_search

        if self.resume and self.out is None:
            raise ConfigError("--resume needs --out: name the folder to go on in, as in --out runs/20260101-120000")
        out = default_out() if self.out is None else self.out
        changed: dict[str, Any] = dataclasses.asdict(self).get("settings", {})
        settings = {name: value for name, value in changed.items() if value is not None}
        if self.env_kwargs:
            settings["environment_kwargs"] = keywords(self.env_kwargs)
        try:
            tuned = run_search(
                self.environment, self.agent, trials=self.trials, steps=self.steps, search=self.search,
                search_seeds=self.search_seeds, evaluation_seeds=self.evaluation_seeds, seed=self.seed,
                pruner=self.pruner, out=out, resume=self.resume, track=self.track,
                progress=not self.json, command=command, **settings,
            )  # fmt: skip
        except Stopped as stopped:
            again = [*command, *([] if self.out else ["--out", str(out)]), *([] if self.resume else ["--resume"])]
            print(f"stopped: what was in progress is saved\nto go on: {shlex.join(again)}", file=sys.stderr)
            return 128 + stopped.number
        # without its table, which is too wide where agents differ in all that was searched
        print_report([out / "evaluation"], out, baselines(tuned), table=False)
        print(json.dumps(summarize(tuned), allow_nan=False) if self.json else "\n".join(describe(tuned)))
        print(f"preset: {tuned.file}", file=sys.stderr if self.json else sys.stdout)
        return 0


def baselines(tuned: "Tuned") -> list[str] | None:
    """What the report calls the preset, where there is something to compare with it."""
    from tddelta.report.naming import agent_names
    from tddelta.runs import load_runs

    if not tuned.settings:
        return None
    runs = load_runs(tuned.out / "evaluation")
    preset = tuned.preset[0].path.resolve()
    return [next(name for run, name in zip(runs, agent_names(runs), strict=True) if run.path.resolve() == preset)]


def summarize(tuned: "Tuned") -> dict[str, Any]:
    """Return the result as a strict JSON object."""
    return {
        "preset": str(tuned.file),
        "settings": dict(tuned.settings),
        "trials": tuned.trials,
        "pruned": tuned.pruned,
        "failed": tuned.failed,
        "search_score": tuned.score,
        "difference": tuned.difference,
        "interval": tuned.interval,
    }


def describe(tuned: "Tuned") -> list[str]:
    """Return the result in sentences."""
    lines = [f"{tuned.trials} trials, {tuned.pruned} given up early, {tuned.failed} failed"]
    if not tuned.settings:
        return [*lines, "no trial was better than the preset: keep it"]
    lines.append("best: " + ", ".join(f"{name} {json.dumps(value)}" for name, value in tuned.settings.items()))
    text = f"on {len(tuned.chosen)} other seeds {tuned.difference:+.4g} against the preset"
    if tuned.interval is None:
        return [*lines, f"{text}, without an interval: that needs seeds whose scores differ"]
    low, high = tuned.interval
    verdict = "better" if low > 0 else "worse: keep the preset" if high < 0 else "no clear difference"
    return [*lines, f"{text}, 95 % interval by Welch's t {low:+.4g} to {high:+.4g}: {verdict}"]
