"""`inspect`: what a critic believes along one game, as a page, a table, a video."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from tddelta.cli.reading import option, print_table
from tddelta.errors import ConfigError
from tddelta.runs import one_run

if TYPE_CHECKING:
    from tddelta.inspector import Recording


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Play one game with a trained agent and show what its critic believes, at every horizon, along it.

    Writes inspect.html, one file that needs no network, and inspect.npz, the recording it is made from.

    Example: tddelta inspect runs/breakout --state 100

    Example: tddelta inspect runs/breakout --compare runs/other --video

    Example: tddelta inspect recording.npz
    """

    source: Annotated[Positional[Path], arg(metavar="RUN")]
    """A run directory, a folder with one run in it, a checkpoint's folder, or a recording (.npz). Of a run of
    Stable-Baselines3, its recorded episode is shown."""
    state: Annotated[int | None, option("INT")] = None
    """Print what is believed at this step, and open the page there."""
    compare: Annotated[Path | None, option("RUN")] = None
    """Another run or checkpoint, whose critic is asked about the same game."""
    seed: Annotated[int | None, option("INT", "default: 0")] = None
    """Seed of the game."""
    mode: Annotated[Literal["sampled", "greedy"] | None, option("sampled|greedy", "default: sampled")] = None
    """sampled follows the policy, greedy its most probable action."""
    steps: Annotated[int | None, option("INT", "default: 2000")] = None
    """Longest recording."""
    out: Annotated[Path | None, option("PATH")] = None
    """File ending in .html, or folder of inspect.html (default: the run directory, or beside the recording)."""
    video: bool = False
    """Write an .mp4 beside the page, too; needs pip install "tddelta[video]"."""
    environment: Annotated[str | None, option("PACKAGE.MODULE:FACTORY")] = None
    """The run's environment, where it is one of your own."""
    network: Annotated[str | None, option("PACKAGE.MODULE:FUNCTION")] = None
    """The run's network, where it is one of your own."""

    def run(self, command: Sequence[str]) -> int:
        """Record, print, write."""
        from tddelta.inspector import Recording, write
        from tddelta.inspector.page import table

        stored = self.source.suffix == ".npz"
        if stored:
            self._check_stored()
            recording, folder = Recording.read(self.source), self.source.parent
        else:
            recording, folder = self._record()
        target = folder if self.out is None else self.out
        page = target if target.suffix == ".html" else target / "inspect.html"
        moments = [] if self.state is None else table(recording, self.state)
        video = page.with_suffix(".mp4") if self.video else None
        write(recording, page, self.state or 0, video, f"{shlex.join(command)}.")
        if not stored:
            recording.save(page.with_suffix(".npz"))
        for heads, rows, sentence in moments:
            print_table(heads, rows)
            print(f"{sentence}\n")
        print(f"page: {page}")
        if not stored:
            print(f"recording: {page.with_suffix('.npz')}")
        if video is not None:
            print(f"video: {video}")
        return 0

    def _check_stored(self, what: str = "a run; got the recording") -> None:
        """ConfigError for options that need an agent."""
        for name in ("compare", "seed", "mode", "steps", "environment", "network"):
            if getattr(self, name) is not None:
                raise ConfigError(f"--{name} goes with {what} {self.source}: drop it")

    def _record(self) -> "tuple[Recording, Path]":
        if not (self.source / "checkpoint.json").exists():
            run = one_run(self.source)
            library = run.config["agent"].get("library")
            if library is not None:  # whose networks are not rebuilt here
                from tddelta.inspector import Recording

                self._check_stored(f"a run of tddelta; got one of {library},")
                return Recording.of_run(run), run.path
        from tddelta.inspector.record import agent_at, opinion, record

        own: dict[str, Any] = {"environment": self.environment, "network": self.network}
        policy, name = agent_at(self.source, **own)
        settings: dict[str, Any] = {"seed": self.seed, "mode": self.mode, "steps": self.steps}
        recording = record(policy, name=name, **{key: value for key, value in settings.items() if value is not None})
        if self.compare is not None:
            other, other_name = agent_at(self.compare, **own)
            ours, theirs = (each.config.environment_object().name for each in (policy, other))
            if ours != theirs:
                raise ConfigError(f"--compare needs a run on {ours}; got one on {theirs}: name another run")
            if other_name == name:
                other_name = str(self.compare)
            recording = recording.beside(opinion(other, recording, other_name))
        return recording, one_run(self.source).path
