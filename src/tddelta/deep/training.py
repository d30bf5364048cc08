"""The host's side of training: compiled blocks of updates; after each the run directory is brought up to date."""

import dataclasses
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tddelta.deep import evaluation, ppo
from tddelta.deep.config import Config
from tddelta.deep.policy import tensors
from tddelta.errors import ConfigError, DataError
from tddelta.runs import FORMAT, RunWriter

BLOCK_SECONDS, LONGEST_BLOCK = 1.0, 32
"""A block takes about this long, so that progress moves and Ctrl-C is heard; and never more updates than that."""

EPISODES_SECONDS = 10.0
"""`episodes.npz` is written again at most this often."""

PROGRAMS_KEPT = 16
"""Configurations whose programs are kept. Each takes over a thousand memory mappings; on Linux a process has 65,530."""

RECENT_EPISODES = 100
"""Episodes in the mean return that progress shows."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        steps: Environment steps done.
        total_steps: Environment steps in all.
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
    """The compiled programs of a configuration: `init(config, key)`, `block(config, state, count)`."""

    init: Any
    block: Any
    seconds: float


_programs: dict[Hashable, Programs] = {}
_locks: dict[Hashable, threading.Lock] = {}
_guard = threading.Lock()


def run_config(config: Config, seed: int) -> dict[str, Any]:
    """What `config.json` says of a run: equal for equal runs, no times, no machine."""
    environment = config.environment_object()
    settings = config.to_dict()
    return {
        "format": FORMAT,
        "environment": environment.name,
        "environment_kwargs": dict(config.environment_kwargs),
        "environment_parameters": environment.to_dict(),
        "agent": config.agent.to_dict(),
        "seed": seed,
        "steps": config.steps,
        "settings": settings,
        "scales": config.scales.to_dict(),
    }


def run_key(seed: int, purpose: str) -> jax.Array:
    """A key for one purpose of a run: training, held-out data or evaluations never share random numbers."""
    purposes = ("train", "held-out", "evaluate")
    key: jax.Array = jax.random.split(jax.random.key(seed), len(purposes))[purposes.index(purpose)]
    return key


def _block(config: Config, state: ppo.State, count: jax.Array) -> tuple[ppo.State, ppo.Metrics, jax.Array]:
    """Up to `count` updates, fewer if one meets a fault.

    Returns:
        The state, the metrics (LONGEST_BLOCK, …) of which only the first rows are filled, and the number of updates
        done.
    """
    shapes = jax.eval_shape(functools.partial(ppo.update, config), state)[1]
    empty = jax.tree.map(lambda leaf: jnp.zeros((LONGEST_BLOCK, *leaf.shape), leaf.dtype), shapes)

    def going(carry: Any) -> Any:
        done, _, metrics = carry
        return (done < count) & ((done == 0) | (metrics.fault[done - 1] == 0))

    def step(carry: Any) -> Any:
        done, state, metrics = carry
        state, new = ppo.update(config, state)
        return done + 1, state, jax.tree.map(lambda rows, row: rows.at[done].set(row), metrics, new)

    done, state, metrics = jax.lax.while_loop(going, step, (jnp.zeros((), jnp.int32), state, empty))
    return state, metrics, done


def programs(config: Config, seeds: int | None = None) -> Programs:
    """Compiles the programs of a configuration once per process, whatever thread asks.

    Configurations that differ in continuous settings only share them. The last `PROGRAMS_KEPT` are kept.

    Args:
        config: Settings.
        seeds: None for one run; else the programs run so many seeds at once, vectorised.
    """
    key = (jax.tree.structure(config), seeds)
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        found = _programs.get(key)
        if found is None:
            began = time.perf_counter()
            init, block = ppo.init, _block
            if seeds is not None:
                init, block = jax.vmap(init, (None, 0)), jax.vmap(block, (None, 0, None))
            keys = jax.random.key(0) if seeds is None else jax.random.split(jax.random.key(0), seeds)
            state = jax.eval_shape(init, config, keys)
            made = jax.jit(init).lower(config, keys).compile()
            count = jax.ShapeDtypeStruct((), jnp.int32)
            compiled = jax.jit(block, donate_argnums=1).lower(config, state, count).compile()
            found = Programs(made, compiled, time.perf_counter() - began)
            with _guard:
                if len(_programs) >= PROGRAMS_KEPT:
                    # JAX keeps what it compiled, also the programs of evaluations. Who runs one now holds it.
                    _programs.clear()
                    jax.clear_caches()
                _programs[key] = found
        return found


class _Record:
    """What one run has produced so far, and the directory it goes to."""

    def __init__(self, config: Config, seed: int, writer: RunWriter):
        self.config, self.seed, self.writer = config, seed, writer
        self.updates = 0
        self.returns: list[np.ndarray] = []
        self.lengths: list[np.ndarray] = []
        self.ends: list[np.ndarray] = []
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.episodes = 0
        self.fault: str | None = None
        self.saved = 0.0

    @property
    def steps(self) -> int:
        return self.updates * self.config.batch

    def add(self, metrics: ppo.Metrics, done: int, learned: ppo.Learned) -> None:
        """Takes over the updates of a block, and what was learned then."""
        rows = [self._row(jax.tree.map(lambda leaf, i=i: leaf[i], metrics)) for i in range(done)]
        # The update that met a fault is not part of the run: its numbers would not be strict JSON.
        self.writer.metrics([row for row in rows if row is not None])
        self.writer.status("running", **self.counts())
        if self.fault is not None:
            # Now: vectorised with others, it goes on from here.
            self.save(learned)

    def counts(self) -> dict[str, Any]:
        return {"steps": self.steps, "updates": self.updates, "episodes": self.episodes}

    def _row(self, one: ppo.Metrics) -> dict[str, Any] | None:
        if one.fault:
            self.fault = self._explain(one)
            return None
        all_lengths, all_returns = np.asarray(one.finished_lengths), np.asarray(one.finished_returns)
        finished = all_lengths > 0
        time, _ = np.nonzero(finished)
        returns, lengths = all_returns[finished], all_lengths[finished]
        self.ends.append(self.steps + (time + 1) * self.config.environments)
        self.returns.append(returns)
        self.lengths.append(lengths)
        self.recent.extend(returns.tolist())
        self.episodes += len(returns)
        self.updates += 1
        row: dict[str, Any] = {
            "update": self.updates,
            "steps": self.steps,
            "episodes": self.episodes,
            "return_mean": returns.mean(dtype=float) if len(returns) else None,
            "length_mean": lengths.mean(dtype=float) if len(lengths) else None,
        }
        for name in (
            "policy_loss",
            "value_loss",
            "explained_variance",
            "value_mean",
            "entropy",
            "approximate_kl",
            "clip_fraction",
            "gradient_norm",
            "learning_rate",
        ):
            row[name] = float(getattr(one, name))
        per_component = (
            ("value_loss", one.component_losses),
            ("explained_variance", one.component_explained_variance),
            ("value_mean", one.component_means),
        )
        for name, values in per_component:
            for label, value in zip(self.config.scales.labels, values, strict=True):
                row[f"{name}/gamma={label}"] = float(value)
        return row

    def _explain(self, one: ppo.Metrics) -> str:
        what = ppo.FAULTS[int(one.fault)]
        name = self.config.environment_object().name
        if what == "loss":
            return (
                f"the loss is not finite in update {self.updates + 1} of {self.config.agent.name} on {name}, "
                f"after {self.steps} steps: lower the learning rate, or check the scale of the rewards"
            )
        return (
            f"{name}: {what} not finite in environment {int(one.fault_environment)}, "
            f"step {int(one.fault_step)}, after {self.steps} steps in all: check the environment"
        )

    def save_episodes(self, *, now: bool = False) -> None:
        if not now and time.perf_counter() - self.saved < EPISODES_SECONDS:
            return
        if self.ends:
            self.writer.episodes(np.concatenate(self.ends), np.concatenate(self.returns), np.concatenate(self.lengths))
        self.saved = time.perf_counter()

    def save(self, learned: ppo.Learned) -> None:
        self.save_episodes(now=True)
        self.writer.parameters(
            tensors(learned), {"environment": self.config.environment_object().name, "steps": str(self.steps)}
        )

    def evaluate(self, learned: ppo.Learned) -> None:
        # The same seed each time: the points of a curve differ by the agent, not by the episodes' luck.
        seed = int(jax.random.randint(run_key(self.seed, "evaluate"), (), 0, 2**31 - 1))
        row = evaluation.evaluate(self.config, learned, seed=seed)
        self.writer.evaluation({"steps": self.steps, **row})

    def hold_out(self, learned: ppo.Learned) -> None:
        rows, first, last = evaluation.streams(self.config, learned, run_key(self.seed, "held-out"))
        self.writer.arrays("critic", **evaluation.held_out(self.config, rows))
        self.writer.arrays("rollout", **evaluation.recording(self.config, first, np.asarray(last)[0]))


def train_run(
    config: Config,
    seed: int,
    writer: RunWriter,
    *,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    eval_every: int | None = None,
) -> None:
    """Trains one seed and writes its run directory: `train_runs` with one seed."""
    told = None if progress is None else lambda _, news: progress(news)
    train_runs(config, [seed], [writer], progress=told, stop=stop, eval_every=eval_every)


def train_runs(
    config: Config,
    seeds: Sequence[int],
    writers: Sequence[RunWriter],
    *,
    progress: Callable[[int, Progress], None] | None = None,
    stop: threading.Event | None = None,
    eval_every: int | None = None,
) -> None:
    """Trains seeds at once, as one vectorised program if there are several, and writes their run directories.

    The bytes of a run depend on its seed and on whether it was vectorised, never on time, threads or `eval_every`.

    Args:
        config: Settings.
        seeds: Seeds, one per run.
        writers: Where each goes.
        progress: Called with the index of a run and its news.
        stop: When set, every run saves what it has, says "interrupted" and ends.
        eval_every: Evaluate after so many steps, and at the end.

    Raises:
        DataError: If a reward, an observation or a loss is not finite. The runs that met it say "failed" and keep
            their last good parameters; the others go on to their end first.
    """
    if eval_every is not None and eval_every < 1:
        raise ConfigError(f"eval_every must be at least 1; got {eval_every}")
    # Arrays of one number are that number: the compiled programs take one kind of it.
    config = jax.tree.map(float, config)
    several = len(seeds) if len(seeds) > 1 else None
    records = [_Record(config, seed, writer) for seed, writer in zip(seeds, writers, strict=True)]
    began = time.perf_counter()
    speed: float | None = None

    def tell(phase: str, steps: int) -> None:
        for index, record in enumerate(records):
            if progress is not None:
                left = None if speed is None else max(config.updates * config.batch - steps, 0) / speed
                recent = float(np.mean(record.recent)) if record.recent else None
                total = config.updates * config.batch
                progress(index, Progress(record.steps, total, speed, left, recent, phase))

    tell("compiling", 0)
    compiled = programs(config, several)
    for record in records:
        record.writer.timing({"event": "compile", "seconds": round(compiled.seconds, 3)})
        if several:
            record.writer.timing({"event": "vectorized", "seeds": list(seeds)})
    keys = [run_key(seed, "train") for seed in seeds]
    state = compiled.init(config, keys[0] if several is None else jnp.stack(keys))

    def learned_of(index: int) -> ppo.Learned:
        picked: ppo.Learned = jax.tree.map(lambda leaf: leaf if several is None else leaf[index], state.learned)
        return picked

    done, count, training_seconds, next_evaluation = 0, 1, 0.0, eval_every
    while done < config.updates and not (stop and stop.is_set()) and not all(record.fault for record in records):
        limit = config.updates - done
        if next_evaluation is not None:
            limit = min(limit, max(1, -(-next_evaluation // config.batch) - done))
        count = min(count, limit)
        block_began = time.perf_counter()
        state, metrics, finished = compiled.block(config, state, jnp.int32(count))
        metrics, finished = jax.tree.map(np.asarray, (metrics, finished))
        seconds = time.perf_counter() - block_began
        for index, record in enumerate(records):
            if record.fault is None:
                mine = metrics if several is None else jax.tree.map(lambda leaf, i=index: leaf[i], metrics)
                record.add(mine, int(finished) if several is None else int(finished[index]), learned_of(index))
                record.save_episodes()
        done += count
        training_seconds += seconds
        speed = count * config.batch / seconds
        timing = {"event": "block", "steps": done * config.batch, "seconds": seconds, "steps_per_second": speed}
        for record in records:
            record.writer.timing(timing)
        tell("training", done * config.batch)
        count = int(np.clip(BLOCK_SECONDS * count / seconds, 1, LONGEST_BLOCK))
        if next_evaluation is not None and done * config.batch >= next_evaluation and done < config.updates:
            tell("evaluating", done * config.batch)
            for index, record in enumerate(records):
                if record.fault is None:
                    record.evaluate(learned_of(index))
            while next_evaluation <= done * config.batch:
                next_evaluation += eval_every or 1
    for index, record in enumerate(records):
        _finish(record, learned_of(index), complete=done >= config.updates, eval_every=eval_every, tell=tell)
        row = {"event": "end", "seconds": time.perf_counter() - began}
        if training_seconds:
            row["steps_per_second"] = done * config.batch / training_seconds
        record.writer.timing(row)
    faults = [record.fault for record in records if record.fault]
    if faults:
        raise DataError(faults[0])


def _finish(
    record: _Record, learned: ppo.Learned, *, complete: bool, eval_every: int | None, tell: Callable[[str, int], None]
) -> None:
    """The last writes of a run."""
    if record.fault:
        record.writer.status("failed", message=record.fault, **record.counts())
        return
    record.save(learned)
    if not complete:
        record.writer.status("interrupted", message="stopped before its last step", **record.counts())
        return
    if eval_every is not None:
        tell("evaluating", record.steps)
        record.evaluate(learned)
    tell("recording", record.steps)
    record.hold_out(learned)
    record.writer.status("finished", **record.counts())
