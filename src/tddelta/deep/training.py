"""Whole training runs: compiled blocks of updates, after each of which the run directory is brought up to date."""

import dataclasses
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tddelta.deep import devices, evaluation, ppo, rollout, shards
from tddelta.deep.config import Config
from tddelta.deep.host import HostEnvironment
from tddelta.deep.policy import checked_pauses, from_arrays, to_arrays
from tddelta.errors import ConfigError, DataError
from tddelta.runs import CHECKPOINT_SECONDS, CONFIG_FORMAT, RunWriter
from tddelta.runs.checkpoints import SHARE, Pauses
from tddelta.runs.files import LAST_EPISODES
from tddelta.runs.recorder import Recorder

EPISODES, HOST_EPISODES = 128, 32
"""Episodes of an evaluation during training; a game of Atari takes seconds."""


def run_key(seed: int, purpose: str) -> jax.Array:
    """A key for one purpose of a run: training, held-out data or evaluations never share random numbers."""
    purposes = ("train", "held-out", "evaluate")
    key: jax.Array = jax.random.split(jax.random.key(seed), len(purposes))[purposes.index(purpose)]
    return key


class RunRecorder(Recorder):
    """Recorder of one run of these settings, which also keeps the update that met a fault; see `Recorder`."""

    def __init__(self, config: Config, seed: int, writer: RunWriter, share: float) -> None:
        super().__init__(writer, share=share)
        self.config, self.seed, self.name = config.at(self.updates), seed, config.environment_object().name
        # The columns of a component keep the name that the last ladder gives it.
        scales = config.at(config.updates).critic_scales
        self._labels = dict(zip(scales.gammas, scales.labels, strict=True))
        self.fault: str | None = None
        before = writer.episodes_before
        self.recent = deque([] if before is None else before["returns"].tolist(), LAST_EPISODES)

    def add(self, metrics: ppo.Metrics, done: int, learned: ppo.Learned) -> None:
        """Take over the updates of a block, after which the agent was `learned`."""
        rows = []
        for index in range(done):
            one: ppo.Metrics = jax.tree.map(lambda leaf, i=index: leaf[i], metrics)
            if one.fault:  # that update is not part of the run: its numbers would not be strict JSON
                self._meet(one, learned)
            else:
                rows.append(self._row(one))
        self.writer.metrics(rows)
        self.writer.status("running", **self.counts())
        if self.fault is not None:
            # Now: vectorised with others, it goes on from here.
            self.save(learned)

    def _row(self, one: ppo.Metrics) -> dict[str, Any]:
        finished = np.asarray(one.finished_lengths) > 0
        time, _ = np.nonzero(finished)
        returns = np.asarray(one.finished_returns)[finished]
        ended = self.steps + (time + 1) * self.config.environments
        self.add_episodes(ended, returns, np.asarray(one.finished_lengths)[finished])
        self.recent.extend(returns.tolist())
        self.updates += 1
        self.steps = self.updates * self.config.batch
        return self.row(self._numbers(one))

    def _numbers(self, one: ppo.Metrics) -> dict[str, float]:
        """Scalars of an update, and those of every component."""
        apart = ("component", "finished", "fault")
        numbers = {name: float(value) for name, value in one._asdict().items() if not name.startswith(apart)}
        per_component = {
            "value_loss": one.component_losses,
            "explained_variance": one.component_explained_variance,
            "value_mean": one.component_means,
        }
        scales = self.config.critic_scales
        labels = [self._labels.get(*each) for each in zip(scales.gammas, scales.labels, strict=True)]
        for name, values in per_component.items():
            for label, value in zip(labels, values, strict=True):
                numbers[f"{name}/gamma={label}"] = float(value)
        return numbers

    def _meet(self, one: ppo.Metrics, learned: ppo.Learned) -> None:
        """Say what was not finite, and write it as strict JSON, with texts for numbers that are not finite."""
        what, place, step = ppo.FAULTS[int(one.fault)], int(one.fault_environment), int(one.fault_step)
        own = what == "loss"  # in no environment
        if own:
            self.fault = (
                f"the loss is not finite in update {self.updates + 1} of {self.config.agent.name} on {self.name}, "
                f"after {self.steps} steps: lower the learning rate, or check the scale of the rewards"
            )
        else:
            self.fault = (
                f"{self.name}: {what} not finite in environment {place}, step {step}, after {self.steps} steps in "
                "all: check the environment"
            )
        norms = {name: float(np.linalg.norm(array)) for name, array in to_arrays(learned).items()}
        self.writer.fault(
            {
                "fault": what,
                "update": self.updates + 1,
                "steps_before": self.steps,
                "environment": None if own else place,
                "environment_step": None if own else step,
                "metrics": {name: _as_json(value) for name, value in self._numbers(one).items()},
                "norms_before": {name: _as_json(value) for name, value in norms.items()},
            }
        )

    @property
    def recent_return(self) -> float | None:
        """Mean return of the last episodes; None if none has ended."""
        return float(np.mean(self.recent)) if self.recent else None

    def save(self, learned: ppo.Learned) -> None:
        """Write what was learned, and the episodes."""
        self.save_parameters(to_arrays(learned), self.name)

    def fail(self, error: BaseException) -> None:
        """Set the status to failed, unless it is."""
        if self.fault is None:
            self.fault = f"{type(error).__name__}: {error}"
            self.writer.status("failed", message=self.fault, **self.counts())

    def evaluate(self, learned: ppo.Learned) -> None:
        """Add a row of scores to the run's evaluations."""
        # The same seed each time: the points of a curve differ by the agent, not by the episodes' luck.
        seed = int(jax.random.randint(run_key(self.seed, "evaluate"), (), 0, 2**31 - 1))
        episodes = HOST_EPISODES if isinstance(self.config.environment_object(), HostEnvironment) else EPISODES
        self.evaluation(evaluation.evaluate(self.config, learned, seed=seed, episodes=episodes))

    def hold_out(self, learned: ppo.Learned) -> None:
        """Record an episode, and compare the critic with what comes."""
        self.held_out(*evaluation.play_held_out(self.config, learned, run_key(self.seed, "held-out")))


def _as_json(value: float) -> float | str:
    return value if np.isfinite(value) else "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


BLOCK_SECONDS, LONGEST_BLOCK = 1.0, 32
"""A block takes about this long, so that progress moves and Ctrl-C is heard; and never more updates than that."""

PROGRAMS_KEPT = 16
"""Configurations whose programs are kept. Each takes over a thousand memory mappings; on Linux a process has 65,530."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes:
        steps: Environment steps done, of `total_steps`.
        steps_per_second: Of the last block.
        seconds_left: Of training, at that speed; None before the first block.
        recent_return: Mean return of the last 100 episodes; None if none has ended.
        phase: "compiling", "training", "evaluating" or "recording".
    """

    steps: int
    total_steps: int
    steps_per_second: float | None
    seconds_left: float | None
    recent_return: float | None
    phase: str


class Programs(NamedTuple):
    """Compiled programs of a configuration, the seconds that compiling took, and shapes of the state.

    Attributes:
        init: (config, key) → state; None for a ladder that has grown.
        block: (config, state, count) → (state, metrics of the updates, number of updates).
        acting: Those that act in host environments; None for device environments.
    """

    init: Any
    block: Any
    seconds: float
    shapes: Any
    acting: rollout.HostPrograms | None = None


_programs: dict[Hashable, Programs] = {}
_locks: dict[Hashable, threading.Lock] = {}
_guard = threading.Lock()


def run_config(config: Config, seed: int) -> dict[str, Any]:
    """Content of `config.json`: equal for equal runs, without times and machines."""
    environment = config.environment_object()
    # Other numbers: no run of the other precision may be taken for the same.
    precision = {"precision": "float64"} if jnp.result_type(float) == jnp.float64 else {}
    return {
        "format": CONFIG_FORMAT,
        "environment": environment.name,
        "environment_kwargs": dict(config.environment_kwargs),
        "environment_parameters": environment.to_dict(),
        "agent": config.agent.to_dict(),
        "seed": seed,
        "steps": config.steps,
        "settings": config.to_dict(),
        "scales": config.at(config.updates).critic_scales.to_dict(),
        **precision,
    }


def _block(
    config: Config, state: ppo.State, count: jax.Array, axis: shards.Axis = (), rows: int = LONGEST_BLOCK
) -> tuple[ppo.State, ppo.Metrics, jax.Array]:
    """Up to `count` updates, fewer if one meets a fault: the state, metrics (rows, …), number of updates."""
    shapes = jax.eval_shape(functools.partial(ppo.update, config, axis=axis), state)[1]
    # A default, not the constant: programs are shared, also where somebody has set shorter blocks meanwhile.
    empty = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), shapes)

    def going(carry: Any) -> Any:
        done, _, metrics = carry
        return (done < count) & ((done == 0) | (metrics.fault[done - 1] == 0))

    def step(carry: Any) -> Any:
        done, state, metrics = carry
        state, new = ppo.update(config, state, axis)
        return done + 1, state, jax.tree.map(lambda rows, row: rows.at[done].set(row), metrics, new)

    done, state, metrics = jax.lax.while_loop(going, step, (jnp.zeros((), jnp.int32), state, empty))
    return state, metrics, done


def programs(config: Config, seeds: int | None = None, grown: Any = None) -> Programs:
    """Compile the programs of a device environment: of one run, or of so many vectorised seeds on all devices.

    For a ladder that has grown, `grown` are the shapes of its state.
    """

    def compiled() -> Programs:
        init, block = devices.placed(config, seeds, ppo.init, _block)
        state, made = grown, None
        if grown is None:
            keys = jax.random.key(0) if seeds is None else jax.random.split(jax.random.key(0), seeds)
            state = jax.eval_shape(init, config, keys)
            made = init.lower(config, keys).compile()
        count = jax.ShapeDtypeStruct((), jnp.int32)
        return Programs(made, block.lower(config, state, count).compile(), 0.0, state)

    return _once(config, (seeds, grown is None), compiled)


def host_programs(config: Config, *, waits: bool, grown: Any = None) -> Programs:
    """Compile the programs of a host environment: `block` is `ppo.learn`, and `waits` as in `HostPlaying`."""
    environment: Any = config.environment_object()
    parts = rollout.parts_of(environment, config.environments)

    def compiled() -> Programs:
        key = jax.random.key(0)
        state = jax.eval_shape(ppo.init, config, key) if grown is None else grown
        acting = rollout.host_programs(config, state.learned, parts)
        played = rollout.host_rollout(config, acting.empty.out_info, waits=waits)
        last = jax.ShapeDtypeStruct(played.observations.shape[1:], played.observations.dtype)
        made = jax.jit(ppo.init).lower(config, key).compile() if grown is None else None
        return Programs(made, jax.jit(ppo.learn).lower(config, state, played, last, key).compile(), 0.0, state, acting)

    return _once(config, (waits, parts, grown is None), compiled)


def _once(config: Config, kind: Hashable, compiled: Callable[[], Programs]) -> Programs:
    """Compile once per process and kind, whatever thread asks; settings that are continuous share programs."""
    key = (jax.tree.structure(config), kind)
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        found = _programs.get(key)
        if found is None:
            began = time.perf_counter()
            found = compiled()._replace(seconds=time.perf_counter() - began)
            with _guard:
                if len(_programs) >= PROGRAMS_KEPT:
                    # JAX keeps what it compiled, also the programs of evaluations. Who runs one now holds it.
                    _programs.clear()
                    jax.clear_caches()
                _programs[key] = found
        return found


class HostTraining:
    """Updates of one run in host environments, which it holds; to be closed in the end. See `HostPlaying`.

    Attributes:
        playing: The environments.
        programs: The compiled programs, whose `block` is that of this run.
    """

    def __init__(self, config: Config, seed: int, part: int = 0, grown: Any = None) -> None:
        self.playing = rollout.HostPlaying(config, seed, part)
        try:
            self.compile(config, grown)
        except BaseException:
            self.close()
            raise

    def compile(self, config: Config, grown: Any) -> None:
        """Make the programs, for a ladder that has grown those of its state's shapes."""
        found = host_programs(config, waits=self.playing.waits, grown=grown)
        self._learn: Any = found.block
        self._acting: Any = found.acting
        self.programs = found._replace(block=self.block)

    def close(self) -> None:
        """Close the environments."""
        self.playing.close()

    def update(self, config: Config, state: ppo.State) -> tuple[ppo.State, ppo.Metrics]:
        """A rollout, and what is learned from it: `ppo.update` for host environments."""
        key, drawn, shuffle_key = self._acting.noise(state.key)
        last, played = rollout.collect_host(config, self._acting, state.learned, self.playing, drawn)
        state, metrics = self._learn(config, state._replace(key=key), played, last, shuffle_key)
        return state, jax.device_get(metrics)

    def block(self, config: Config, state: ppo.State, count: Any) -> tuple[ppo.State, ppo.Metrics, np.ndarray]:
        """Up to `count` updates, fewer if one meets a fault."""
        found: list[ppo.Metrics] = []
        while len(found) < int(count) and not (found and found[-1].fault):
            state, metrics = self.update(config, state)
            found.append(metrics)
        stacked: ppo.Metrics = jax.tree.map(lambda *rows: np.stack(rows), *found)
        return state, stacked, np.array(len(found))


def train_run(
    config: Config, seed: int, writer: RunWriter, *, progress: Callable[[Progress], None] | None = None, **options: Any
) -> None:
    """Train one seed and write its run directory: `train_runs` with one seed."""
    told = None if progress is None else lambda _, news: progress(news)
    train_runs(config, [seed], [writer], progress=told, **options)


def train_runs(
    config: Config,
    seeds: Sequence[int],
    writers: Sequence[RunWriter],
    *,
    progress: Callable[[int, Progress], None] | None = None,
    stop: threading.Event | None = None,
    eval_every: int | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
) -> None:
    """Train seeds at once, as one vectorised program if there are several, and write their run directories.

    The bytes of a run depend on its seed and on whether it was vectorised, never on time, threads, `eval_every`, or
    breaks: a writer that was opened to resume goes on from its checkpoint, and ends as if there had been none. But
    environments of the host are fresh ones after it.

    Args:
        config: Settings.
        seeds: Seeds, one per run.
        writers: Where each goes. Those that resume must have come equally far.
        progress: Called with the index of a run and its news.
        stop: When set, every run saves what it has, says "interrupted" and ends.
        eval_every: Evaluate after so many steps, and at the end.
        checkpoint_every: Seconds between two checkpoints at least; more where one takes over 1/200 of that. 0
            makes one after every block of updates.

    Raises:
        DataError: If a reward, an observation or a loss is not finite. The runs that met it say "failed" and keep
            their last good parameters and checkpoints; the others go on to their end first.
        CheckpointError: If a checkpoint does not fit the settings, the environment or the versions of packages.
        StorageError: If a run directory cannot be written.
    """
    eval_every, checkpoint_every = checked_pauses(eval_every, checkpoint_every)
    # Arrays of one number are that number: the compiled programs take one kind of it.
    config = jax.tree.map(float, config)
    share = SHARE / 2 / len(seeds)  # of the time, for the episodes of each
    records = [RunRecorder(config, seed, writer, share) for seed, writer in zip(seeds, writers, strict=True)]
    stop = stop or threading.Event()
    if isinstance(config.environment_object(), HostEnvironment) and len(records) > 1:
        _beside_one_another(config, records, progress, stop, eval_every, checkpoint_every)
    else:
        with closing(_Training(config, records, progress, stop, eval_every, checkpoint_every)) as training:
            training.run()


def _beside_one_another(config: Config, records: list[RunRecorder], progress: Any, *options: Any) -> None:
    """Train runs of a host environment in threads: while one waits for its environments, another one computes."""
    raised: list[BaseException] = []

    def train(index: int) -> None:
        told = None if progress is None else lambda _, news: progress(index, news)
        try:
            with closing(_Training(config, [records[index]], told, *options)) as training:
                training.run()
        except BaseException as error:
            raised.append(error)  # first: on a full disk the record cannot say so
            records[index].fail(error)

    threads = [threading.Thread(target=train, args=(index,), daemon=True) for index in range(len(records))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


@dataclasses.dataclass(eq=False)
class _Training:
    """State of one call of `train_runs`."""

    first: Config  # before the ladder grows
    records: list[RunRecorder]
    progress: Callable[[int, Progress], None] | None
    stop: threading.Event
    eval_every: int | None
    checkpoint_every: float
    state: Any = None
    speed: float | None = None
    host: HostTraining | None = None

    def __post_init__(self) -> None:
        self.config, self.done, self.several = self.records[0].config, self.records[0].updates, len(self.records) > 1
        if len({record.writer.restored is None or record.updates for record in self.records}) > 1:
            raise ConfigError(
                "runs that go on together must have come equally far; got updates "
                f"{[record.updates for record in self.records]}: train them one by one"
            )

    def run(self) -> None:
        """Train to the end, or until `stop` is set."""
        began, first, seconds = time.perf_counter(), self.done, 0.0
        self._tell("compiling")
        pauses, count = Pauses(self.checkpoint_every, share=SHARE / 2), 1
        compiled: Programs | None = self._start()
        while self.done < self.config.updates and not self.stop.is_set() and not all(r.fault for r in self.records):
            count = min(count, self._updates_left())
            if compiled is None:
                self._tell("compiling")
                compiled = self._compiled(jax.eval_shape(lambda state: state, self.state))
            before, block_began = self.done, time.perf_counter()
            try:
                self.state, metrics, finished = compiled.block(self.config, self.state, jnp.int32(count))
            except DataError:  # a host environment raised: what was learned before is kept
                self.records[0].save(self._learned(0))
                raise
            block = jax.tree.map(np.asarray, (metrics, finished))
            took = time.perf_counter() - block_began
            seconds += took
            self._record(block, count, took)
            if self.config.past_stages(self.done):
                self._grow()
                compiled = None
            count = int(np.clip(BLOCK_SECONDS * count / took, 1, LONGEST_BLOCK))
            if self._passed(before):  # before a checkpoint, so that the evaluation is not due again after it
                self._evaluate()
            if pauses.over and self.done < self.config.updates:
                self._save(pauses)
        complete = self.done >= self.config.updates
        if not complete:
            self._save(pauses)
        steps = (self.done - first) * self.config.batch
        for index, record in enumerate(self.records):
            self._finish(record, self._learned(index), complete=complete)
            row = {"event": "end", "seconds": time.perf_counter() - began, "steps": steps}
            row["saving_seconds"] = pauses.spent + sum(each.saving_seconds for each in self.records)
            if seconds:
                row["steps_per_second"] = steps / seconds
            record.writer.timing(row)
        if faults := [record for record in self.records if record.fault]:
            place = faults[0].writer.path / "fault.json"
            raise DataError(f"{faults[0].fault} ({place} has the numbers of that update)")

    def close(self) -> None:
        """Close the environments of the host."""
        if self.host is not None:
            self.host.close()

    def _tell(self, phase: str) -> None:
        if self.progress is None:
            return
        total = self.config.updates * self.config.batch
        left = None if self.speed is None else max(total - self.done * self.config.batch, 0) / self.speed
        for index, record in enumerate(self.records):
            self.progress(index, Progress(record.steps, total, self.speed, left, record.recent_return, phase))

    def _note(self, event: str, **values: Any) -> None:
        for record in self.records:
            record.writer.timing({"event": event, **values})

    def _start(self) -> Programs:
        """Compile, and make the first state or restore one; those of the host cannot be saved, and are made anew."""
        seeds = [record.seed for record in self.records]
        each = [run_key(seed, "train") for seed in seeds]
        keys, stages = jnp.stack(each) if self.several else each[0], self.first.past_stages(self.done)

        def grown(key: jax.Array) -> ppo.State:
            return functools.reduce(lambda state, stage: ppo.grow(stage, state), stages, ppo.init(self.first, key))

        shapes = jax.eval_shape(jax.vmap(grown) if self.several else grown, keys) if stages else None
        if isinstance(self.config.environment_object(), HostEnvironment):
            self.host = HostTraining(self.config, seeds[0], self.done, shapes)
            event = "fresh_environments" if self.done else "environments"
            self._note(event, updates=self.done, seeds=self.host.playing.seeds)
        compiled = self._compiled(shapes)
        if self.several:
            self._note("vectorized", seeds=seeds)
        saved = [record.writer.restored for record in self.records]
        if saved[0] is None:
            self.state = compiled.init(self.config, keys)
        else:
            arrays = [checkpoint.arrays for checkpoint in saved if checkpoint is not None]
            first = arrays[0]
            together = {name: np.stack([one[name] for one in arrays]) for name in first} if self.several else first
            self.state = from_arrays(together, compiled.shapes, str(saved[0].path))
        return compiled

    def _compiled(self, grown: Any) -> Programs:
        """The programs for the ladder of now; `grown` are the shapes of the state, or None for the first ladder."""
        if self.host is not None:
            self.host.compile(self.config, grown)
            compiled = self.host.programs
        else:
            compiled = programs(self.config, len(self.records) if self.several else None, grown)
        self._note("compile", seconds=round(compiled.seconds, 3))
        return compiled

    def _grow(self) -> None:
        """Go on with the next ladder; the state comes from all devices to where one that is restored would be."""
        state = from_arrays(to_arrays(self.state), jax.eval_shape(lambda state: state, self.state), "the state")
        for stage in self.config.past_stages(self.done):
            grow = functools.partial(ppo.grow, stage)
            state = (jax.vmap(grow) if self.several else grow)(state)
        self.state, self.config = state, self.config.at(self.done)
        for record in self.records:
            record.config = self.config

    def _updates_left(self) -> int:
        """Updates until the ladder grows, the end or the next evaluation."""
        left = self.config.end - self.done
        if self.eval_every is None:
            return left
        following = (self.done * self.config.batch // self.eval_every + 1) * self.eval_every
        return min(left, -(-following // self.config.batch) - self.done)

    def _record(self, block: tuple[ppo.Metrics, np.ndarray], count: int, seconds: float) -> None:
        """Bring the run directories up to date after a block of updates."""
        for index, record in enumerate(self.records):
            if record.fault is None:
                metrics, finished = self._own(block, index)
                record.add(metrics, int(finished), self._learned(index))
                record.save_episodes()
        self.done += count
        self.speed = count * self.config.batch / seconds
        timing = {"steps": self.done * self.config.batch, "seconds": seconds, "steps_per_second": self.speed}
        for record in self.records:
            record.writer.timing({"event": "block", **timing, "return_mean": record.recent_return})
        self._tell("training")

    def _passed(self, before: int) -> bool:
        """Tell whether a step to evaluate at lies in the updates since `before`; the end has its own evaluation."""
        if self.eval_every is None or self.done >= self.config.updates:
            return False
        return self.done * self.config.batch // self.eval_every > before * self.config.batch // self.eval_every

    def _evaluate(self) -> None:
        self._tell("evaluating")
        for index, record in enumerate(self.records):
            if record.fault is None:
                record.evaluate(self._learned(index))

    def _own(self, tree: Any, index: int) -> Any:
        """The part of a run."""
        return jax.tree.map(lambda leaf: leaf[index], tree) if self.several else tree

    def _learned(self, index: int) -> ppo.Learned:
        learned: ppo.Learned = self._own(self.state.learned, index)
        return learned

    def _save(self, pauses: Pauses) -> None:
        """A checkpoint of every run that has not failed."""
        with pauses.ended():
            arrays = to_arrays(self.state)
            for index, record in enumerate(self.records):
                if record.fault is None:
                    record.checkpoint(self._own(arrays, index))

    def _finish(self, record: RunRecorder, learned: ppo.Learned, *, complete: bool) -> None:
        if record.fault:
            record.writer.status("failed", message=record.fault, **record.counts())
            return
        record.save(learned)
        if not complete:
            record.writer.status("interrupted", message="stopped before its last step", **record.counts())
            return
        if self.eval_every is not None:
            self._tell("evaluating")
            record.evaluate(learned)
        self._tell("recording")
        record.hold_out(learned)
        record.writer.status("finished", **record.counts())
