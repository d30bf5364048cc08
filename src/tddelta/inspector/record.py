"""Playing one game with a saved agent, and asking a second critic about the same game."""

import dataclasses
import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tddelta.deep import evaluation
from tddelta.deep.atari import Protocol
from tddelta.deep.evaluation import HostPlayer
from tddelta.deep.host import HostEnvironment, Vector, spawned_seeds
from tddelta.deep.policy import Policy, config_of, from_arrays, learned_at, load
from tddelta.errors import ConfigError, DataError
from tddelta.inspector import Critic, Recording, from_observations, smaller
from tddelta.runs import Run, one_run
from tddelta.runs.checkpoints import read
from tddelta.runs.reader import Mode
from tddelta.runs.recorder import RECORDED

_SCREEN: dict[str, Any] = {"height": 210, "width": 160, "grey": False, "stack": 1}


def _host_game(policy: Policy, seed: int, steps: int, *, greedy: bool) -> dict[str, np.ndarray]:
    """Arrays of a game in a host environment, up to its end or so many steps.

    Where the loss of a life is terminal for the learner, it is in `terminated`, too. Without `frames`, `no_frames` says
    why the environment draws none.
    """
    environment = policy.config.environment_object()
    assert isinstance(environment, HostEnvironment)
    with ExitStack() as stack:
        screen, why_not = None, ""
        if environment.rom is not None:
            screen = stack.enter_context(closing(_Screen(environment, spawned_seeds(seed, "held-out", 1))))
        else:
            stack.enter_context(_silent_sound())
            why_not = _why_no_pictures(environment)
        draws = screen is None and not why_not
        player = HostPlayer(policy.config, policy.learned, 1, seed, "held-out", greedy=greedy, draws=draws)
        arrays = _played(stack.enter_context(player), steps, screen, draws=draws)
    return arrays | {"no_frames": np.array(why_not)} if why_not else arrays


def _played(player: HostPlayer, steps: int, screen: "_Screen | None", *, draws: bool) -> dict[str, np.ndarray]:
    rows: dict[str, list[Any]] = {}
    for _ in range(steps):
        chosen = player.chosen()
        row = {"observations": player.observations[0], "deltas": np.asarray(chosen.deltas)[0]}
        if screen is not None:
            row |= {"frames": screen.picture, "lives": screen.lives}
        elif draws:
            row["frames"] = smaller(player.picture())
        moves = np.asarray(chosen.moves)
        moved = player.step(moves)
        if screen is not None and screen.step(moves) != (moved.rewards[0], moved.over[0] | moved.truncated[0]):
            raise DataError("the screen in colour does not follow the game; tell us")
        row |= {"actions": np.asarray(chosen.actions)[0], "rewards": moved.rewards[0]}
        row |= {"terminated": moved.terminated[0], "truncated": moved.truncated[0]}
        for name, value in row.items():
            rows.setdefault(name, []).append(value)
        if moved.over[0]:
            break
    return {name: np.asarray(values) for name, values in rows.items()}


def _why_no_pictures(environment: HostEnvironment) -> str:
    """Reason that an environment cannot be drawn, or ""."""
    if environment.draws is None:
        return f"{environment.name} has no render_mode rgb_array, with which Gymnasium's environments draw"
    drawing = dataclasses.replace(environment, make=environment.draws, overlaps=False)
    try:
        with Vector(drawing, [0]) as one:
            one.reset()
            one.picture()
    except (ConfigError, DataError) as error:  # what it draws with is not installed, or it needs a display
        return f"{environment.name} cannot draw here: {error.__cause__ or error}"
    return ""


@contextmanager
def _silent_sound() -> Iterator[None]:
    """Let pygame draw without opening a sound card: where there is none, its library complains on stderr."""
    before = os.environ.get("SDL_AUDIODRIVER")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("SDL_AUDIODRIVER", None)


class _Screen:
    """The same game once more, in colour: an emulator that gets the same seed and the same actions."""

    def __init__(self, environment: HostEnvironment, seeds: list[int]) -> None:
        make: Any = environment.make
        assert isinstance(make, functools.partial)
        rom, protocol, threads = make.args
        assert isinstance(protocol, Protocol)
        self._made = make.func(rom, dataclasses.replace(protocol, **_SCREEN), threads, 1)
        observation, information = self._made.reset(seed=np.array(seeds))
        self._keep(observation, information)

    def _keep(self, observation: Any, information: Any) -> None:
        self.picture = np.array(observation).reshape(210, 160, 3)
        self.lives = int(information["lives"][0])
        self._frames = int(information["episode_frame_number"][0])

    def step(self, moves: np.ndarray) -> tuple[np.float32, bool]:
        """The reward, and whether the game is over."""
        observation, rewards, terminated, truncated, information = self._made.step(
            moves.astype(self._made.single_action_space.dtype)
        )
        before = self._frames
        self._keep(observation, information)
        over = bool(truncated[0]) or (bool(terminated[0]) and self._frames <= before)
        return np.float32(rewards[0]), over

    def close(self) -> None:
        made, self._made = self._made, None  # emulators end with the last reference
        made.close()


_NO_PICTURE = np.array("what the agent sees is no picture, and nothing here draws this environment")


def record(
    policy: Policy, *, name: str = "critic", seed: int = 0, mode: Mode = "sampled", steps: int = RECORDED
) -> Recording:
    """Play one game, and keep what the agent saw, did and believed.

    Args:
        policy: The trained agent.
        name: Name of its critic on the page.
        seed: Of the game; the same seed gives the same game.
        mode: "sampled" follows the policy, "greedy" its most probable action.
        steps: Longest recording, up to 10,000,000.

    Returns:
        The first episode, or as much of it as fits.

    Raises:
        ConfigError: `steps`, `seed` or `mode` is out of range.
    """
    steps, seed = evaluation.checked("steps", steps, mode, seed)
    import jax

    config, greedy = policy.config, mode == "greedy"
    environment = config.environment_object()
    if isinstance(environment, HostEnvironment):
        arrays = _host_game(policy, seed, steps, greedy=greedy)
    else:
        key = jax.random.key(seed)
        _, rows, last = evaluation.device_streams(config, policy.learned, key, greedy, count=1, length=steps)
        arrays = evaluation.recording(config, rows, last, longest=steps)
        arrays |= {} if from_observations(arrays["observations"]) is not None else {"no_frames": _NO_PICTURE}
    if config.reward_clipping == "sign":
        arrays |= {"learner_rewards": np.sign(arrays["rewards"])}
    named = {"name": np.array(name), "environment": np.array(environment.name)}
    return Recording.read({**arrays, "gammas": np.array(policy.scales.gammas), **named})


def opinion(policy: Policy, recording: Recording, name: str) -> Critic:
    """The critic of another agent, with its beliefs along a recorded game.

    Raises:
        ConfigError: The recording has no observations.
        ShapeError: They are of another shape than the agent's environment has.
    """
    if recording.observations is None:
        raise ConfigError("the recording has no observations, which a second critic needs: record them too")
    return Critic(name, np.array(policy.scales.gammas), policy.components(recording.observations))


def agent_at(path: str | os.PathLike[str], *, environment: Any = None, network: Any = None) -> tuple[Policy, str]:
    """Load the agent of a run directory, of a folder with one run in it, or of one checkpoint.

    Args:
        path: The directory, or `RUN/checkpoints/NNNNNNNNNN`.
        environment: In place of the stored name; needed for environments of your own.
        network: In place of the stored name; needed for networks of your own.

    Returns:
        The agent and its name.

    Raises:
        ConfigError: There is not exactly one run, or the environment or network has to be passed.
        CheckpointError: Nothing is saved there yet, or it is damaged.
    """
    place = Path(path)
    if not (place / "checkpoint.json").exists():
        run = one_run(place)
        return load(run, environment=environment, network=network), _named(run)
    run, updates = Run(place.absolute().parents[1]), int(place.name)
    config, shapes = learned_at(config_of(run.config, environment=environment, network=network), updates)
    stored, prefix = read(place).arrays, "learned."
    learned = {name.removeprefix(prefix): array for name, array in stored.items() if name.startswith(prefix)}
    return Policy(config, from_arrays(learned, shapes, str(place))), f"{_named(run)}, update {updates:,}"


def _named(run: Run) -> str:
    return f"{run.agent}, seed {run.seed}"
