"""The command `critics`: the errors of critics of a frozen policy."""

import dataclasses
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import Positional, arg

from tddelta._plain import imported
from tddelta.cli.reading import option, print_notes, print_table
from tddelta.cli.training import folder_and_repetition, settings_of, stopped
from tddelta.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Critics:
    """Compare critics of one frozen policy: does a split help your value function?

    Critics of every form learn from the same streams of the policy, which stays as it is; their V is compared with the
    returns that follow held-out states. λ and learning rate of each form are chosen on seeds that are not reported.

    It ends with a table and OUT/report.html. What is finished is kept in --out: the same command goes on there.

    Example: tddelta critics runs/SpaceInvaders-MinAtar/ppo/seed-0 --forms ppo ppo-delta-bootstrap --reward-noise 1

    Example: tddelta critics my_policies:act --environment gym:LunarLander-v3 --gamma 0.999
    """

    apart: ClassVar = (
        *("lam", "learning_rate", "entropy_coefficient", "normalize_advantages", "shared_trunk"),
        *("anneal_learning_rate", "actor_lam", "shards", "grow", "component_weights"),
    )

    policy: Annotated[Positional[str], arg(metavar="RUN|MODULE:ACT")]
    """A run directory, or a function of yours act(observations) -> actions of a batch, or a model with predict."""
    environment: Annotated[str | None, option("ENV")] = None
    """The environment of a function or a model; of a run, only where it is one of your own."""
    env_kwargs: Annotated[tuple[str, ...], option("KEY=VALUE [...]|JSON")] = ()
    """Keyword arguments of that environment, as key=value or one JSON object."""
    forms: Annotated[tuple[str, ...], arg(metavar="AGENT [AGENT ...]")] = (
        *("ppo", "ppo-multi", "ppo-delta", "ppo-delta-bootstrap"),
    )
    """Agents whose critics are compared, the baseline first; AGENT@λ is one with that λ alone, as in ppo@1."""
    lam: tuple[float, ...] = (0.8, 0.9, 0.95, 1.0)
    """λ of the traces, several to choose from."""
    learning_rate: Annotated[tuple[float, ...], option("FLOAT [FLOAT ...]", "default: the run's or the preset's")] = ()
    """Adam's step size, several to choose from."""
    budgets: tuple[int, ...] = (25_000, 50_000, 100_000, 200_000)
    """Environment steps after which critics are measured."""
    seeds: int = 10
    """Number of reported seeds: 0, 1, …, N−1."""
    seed_list: Annotated[tuple[int, ...] | None, option("INT [INT ...]")] = None
    """The reported seeds themselves, in place of --seeds."""
    tuning_seeds: tuple[int, ...] = (100, 101, 102, 103, 104)
    """Seeds on which λ and learning rate are chosen."""
    measure: Literal["centred", "error"] = "centred"
    """What is chosen by and tested: the variance of V̂ − V over held-out states, or the mean of its square."""
    states: int = 512
    """Held-out states."""
    continuations: int = 32
    """Continuations of each in a device environment."""
    truth_seed: int = 0
    """Seed of held-out states and continuations."""
    out: Annotated[Path | None, option("DIR", "default: runs/YYYYMMDD-HHMMSS")] = None
    """Folder of the study."""
    json: bool = False
    """Print one JSON object per form and budget on the standard output, and nothing else."""

    def run(self, command: Sequence[str]) -> int:
        """Train the critics, print, write the page."""
        from tddelta.experiments.critics import critics
        from tddelta.runs.files import plain

        out, again = folder_and_repetition(self.out, command)
        same = ("environment", "forms", "lam", "budgets", "tuning_seeds", "measure", "states", "continuations")
        try:
            study = critics(
                self._policy(),
                learning_rate=self.learning_rate or None,
                seeds=self.seeds if self.seed_list is None else list(self.seed_list),
                truth_seed=self.truth_seed,
                out=out,
                say=lambda text: print(text, file=sys.stderr, flush=True),
                command=command,
                **{name: getattr(self, name) for name in same},
                **settings_of(self),
            )
        except KeyboardInterrupt:
            return stopped(signal.SIGINT, f"what is finished is in {out}", again)
        page = study.write()
        if self.json:
            for record in study.error_table.records:
                print(json.dumps(plain(record), allow_nan=False))
        else:
            rows = study.summary()
            print_table(list(rows[0]), [list(row.values()) for row in rows])
            print_notes([*study.error_table.notes, *study.difference_table.notes])
        print(f"report: {page}", file=sys.stderr if self.json else sys.stdout)
        return 0

    def _policy(self) -> Any:
        if ":" not in self.policy or Path(self.policy).exists():
            return Path(self.policy)
        found = imported(self.policy, "policy")
        if isinstance(found, str | Path):
            raise ConfigError(f"{self.policy} is {found!r}, no policy: name a function act or a model with predict")
        return found
