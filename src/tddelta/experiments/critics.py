"""Policy evaluation: critics of every form learn from the stream of one frozen policy, and their errors are compared.

A seed is one stream of the policy, played once: every critic of that seed learns from the same rollouts in the same
order, as PPO's critic does, while the policy stays as it is. At certain steps V is compared with the discounted returns
of held-out states. Device environments can be forked: each held-out state is continued many times, so that the noise of
what is compared with is known and subtracted. Environments of the host have one realised return for each state.

λ and learning rate are chosen for each form and budget on tuning seeds, which are not reported.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tddelta._plain import blamed, closest, number, one_of, plain, reference, tidy, whole
from tddelta.deep import evaluation, ppo, rollout
from tddelta.deep.agents import Agent, resolve
from tddelta.deep.config import Config, check, preset
from tddelta.deep.host import HostEnvironment, spawned_seeds
from tddelta.deep.policy import Policy, choose, load, to_arrays
from tddelta.deep.rollout import Learned, Playing, Rollout, advance, learned_rewards
from tddelta.errors import CheckpointError, ConfigError, DataError, setting
from tddelta.experiments.plan import differences, folder_of
from tddelta.experiments.running import available_cores, describe_origin
from tddelta.report.critics import FORMAT, MEASURES, Cell, CriticStudy
from tddelta.runs import Run, one_run
from tddelta.runs.files import append_rows, lock_file, read_json, replace, to_json
from tddelta.runs.files import plain as json_plain
from tddelta.runs.recorder import realised_returns

NEGLIGIBLE, LONGEST = 1e-3, 100_000
"""Continuations go on until their discount is below the first, or for so many steps, as where γ is 1."""

HELD_OUT, STREAMS, HOST_STREAMS = 4_096, 32, 8
"""Steps of every held-out stream, and how many streams there are of device and of host environments."""

_BETWEEN = 61  # steps between two looks at the states of a stream: prime, so that no episode's length is a multiple
_BLOCK = 64  # steps of continuations between two looks whether any goes on


def zero_advantages(rewards: Any, deltas: Any, next_deltas: Any, **options: Any) -> Any:
    """Zeros in place of advantages: the gradient of the actor is exactly 0."""
    return jnp.zeros_like(rewards)


class CriticOnly(eqx.Module):
    """A network whose policy is constant: the compiler leaves out what computes the actor, half of the work."""

    network: Any

    def __call__(self, observation: jax.Array) -> tuple[Any, jax.Array]:
        """Zeros in place of the policy's parameters, and the critic's heads for one observation."""
        policy, heads = self.network(observation)
        return jax.tree.map(jnp.zeros_like, policy), heads

    def shifted(self, shift: jax.Array) -> "CriticOnly":
        """The same network whose heads are larger by (heads,), everywhere."""
        return CriticOnly(self.network.shifted(shift))


@dataclasses.dataclass(frozen=True)
class _WithoutActor:
    """Factory of `CriticOnly` for some settings; equal ones share their programs."""

    config: Config

    def __call__(self, *given: Any) -> CriticOnly:
        return CriticOnly(self.config.network_factory()(*given))


# ---------------------------------------------------------------- playing


class Frozen(NamedTuple):
    """A policy that stays as it is: ours, or `act`: observations (B, *observation) to actions of the environment."""

    config: Config
    learned: Learned | None
    act: Callable[[np.ndarray], Any] | None
    record: Mapping[str, Any]


class Steps(NamedTuple):
    """T steps of B environments, (T, B, …) each; see `Rollout`. `finals` are true successors, where one was cut."""

    observations: Any
    finals: Any
    rewards: Any
    reward_noise: Any
    reward_returns: Any
    terminated: Any
    truncated: Any
    weights: Any = None


@functools.partial(jax.jit, static_argnames=("count", "light"))
def _played(
    config: Config, acting: Config, learned: Learned, playing: Playing, key: jax.Array, *, count: int, light: bool
) -> tuple[Playing, Steps]:
    """Play `count` steps of a policy of ours in device environments; `light` leaves observations out."""

    def step(playing: Playing, key: jax.Array) -> tuple[Playing, Steps]:
        action_key, key = jax.random.split(key)
        chosen = choose(acting, learned, playing.observation, action_key, False)
        return _moved(config, playing, chosen.actions, key, light)

    return jax.lax.scan(step, playing, jax.random.split(key, count))


def _moved(config: Config, playing: Playing, actions: jax.Array, key: jax.Array, light: bool) -> tuple[Playing, Steps]:
    """One step of every device environment."""
    environment: Any = config.environment_object()
    step_key, noise_key = jax.random.split(key)
    count = playing.episode_return.shape[0]
    noise = config.reward_noise * jax.random.normal(noise_key, (count,)) if config.reward_noise else None
    following, moved = advance(config, environment, playing, actions, jax.random.split(step_key, count), noise)
    both = playing.observation, moved.final
    seen, final = (None if light else each.astype(environment.storage) for each in both)
    return following, Steps(seen, final, moved.rewards, noise, moved.reward_returns, moved.terminated, moved.truncated)


_moved_once = jax.jit(_moved, static_argnames="light")


class DevicePlayer:
    """The policy in device environments, which go on from `playing`."""

    def __init__(self, policy: Frozen, config: Config, playing: Playing, key: jax.Array) -> None:
        self._policy, self._config, self._key, self._calls = policy, config, key, 0
        # types that a reset leaves open would be settled by the first steps, and the next be compiled anew
        self.playing: Playing = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), playing)

    def close(self) -> None:
        """Do nothing; host environments have to be closed."""

    @property
    def observations(self) -> Any:
        """Observations that the next actions are for, (B, *observation)."""
        return self.playing.observation.astype(self._config.environment_object().storage)

    def steps(self, count: int, *, light: bool = False) -> Steps:
        """Play so many steps; `light` leaves observations out."""
        key, policy = jax.random.fold_in(self._key, self._calls), self._policy
        self._calls += 1
        if policy.learned is not None:
            given = self._config, policy.config, policy.learned, self.playing, key
            self.playing, found = _played(*given, count=count, light=light)
            return found  # type: ignore[no-any-return]
        rows = []
        for one in jax.random.split(key, count):
            actions = jnp.asarray(_actions(policy, np.asarray(self.playing.observation)))
            self.playing, row = _moved_once(self._config, self.playing, actions, one, light=light)
            rows.append(row)
        return _stacked(rows)


class HostPlayer(evaluation.HostPlayer):
    """The policy in host environments, made from a seed for a purpose of `host.spawned_seeds`."""

    def __init__(self, policy: Frozen, config: Config, count: int, seed: int, purpose: str) -> None:
        self._policy, self._rewarded = policy, config
        self._noise = np.random.default_rng(spawned_seeds(seed, "reward noise", 1))
        self._reward_returns = np.zeros(count)
        super().__init__(policy.config, policy.learned, count, seed, purpose)  # type: ignore[arg-type]

    def steps(self, count: int) -> Steps:
        """Play so many steps."""
        return _stacked([self._row() for _ in range(count)])

    def _row(self) -> Steps:
        config, seen = self._rewarded, self.observations
        moved = self.step(self.chosen().moves if self._policy.act is None else _actions(self._policy, seen))
        terminated, truncated = moved.terminated, moved.truncated
        if config.time_limit == "terminate":
            terminated, truncated = terminated | truncated, np.zeros_like(truncated)
        finals = np.zeros_like(seen)
        for place, final in moved.finals.items():
            finals[place] = final
        noise = None
        if config.reward_noise:
            noise = (config.reward_noise * self._noise.normal(size=len(seen))).astype(np.float32)
        returns = learned_rewards(config, moved.rewards, noise) + config.return_discount * self._reward_returns
        self._reward_returns = np.where(terminated | truncated | ~moved.played, 0.0, returns)
        weights = moved.played.astype(np.float32) if self.waits else None
        return Steps(seen, finals, moved.rewards, noise, returns.astype(np.float32), terminated, truncated, weights)


def _stacked(rows: Sequence[Steps]) -> Steps:
    found: Steps = jax.tree.map(lambda *each: np.stack(each), *rows)
    return found


def _actions(policy: Frozen, observations: np.ndarray) -> np.ndarray:
    """Actions of a foreign policy, checked."""
    environment = policy.config.environment_object()
    assert policy.act is not None
    with blamed(f"the policy {policy.record['act']} raised"):
        actions = np.asarray(policy.act(observations))
    expected = (len(observations), *(() if environment.discrete else environment.action_space.shape))
    if actions.shape != expected or actions.dtype.kind not in "biuf" or not np.all(np.isfinite(actions)):
        raise ConfigError(
            f"the policy must return finite actions of shape {expected} for observations {observations.shape}; got "
            f"{actions.dtype} of shape {actions.shape}: it is called with a batch, and returns one action for each"
        )
    if environment.discrete:
        least = getattr(environment, "first_action", 0)
        most = least + environment.action_space.n - 1
        wrong = actions[(actions != np.floor(actions)) | (actions < least) | (actions > most)]
        if len(wrong):
            raise ConfigError(
                f"the policy must return whole numbers from {least} to {most}, as {environment.name} takes them; got "
                f"{wrong[0]}: correct it, or name the environment it was made for"
            )
    return actions


def _player(policy: Frozen, config: Config, count: int, seed: int, purpose: str) -> Any:
    """Fresh environments with the policy in them: for the stream of a seed ("train"), or "held-out"."""
    environment = config.environment_object()
    if isinstance(environment, HostEnvironment):
        return HostPlayer(policy, config, count, seed, purpose)
    start_key, key = jax.random.split(_key(seed, purpose))
    return DevicePlayer(policy, config, rollout.start(environment, start_key, count), key)


def _key(seed: int, purpose: str) -> jax.Array:
    purposes = ("train", "held-out", "critic", "fork")
    key: jax.Array = jax.random.split(jax.random.key(seed), len(purposes))[purposes.index(purpose)]
    return key


# ---------------------------------------------------------------- truth


class Truth(NamedTuple):
    """Held-out states and what followed them.

    Attributes:
        observations: (N, *observation).
        values: Mean discounted return of the continuations of each state, (N,).
        variances: Variance of that mean, (N,): what is noise of it. NaN where it is not known.
        cut: Share of continuations that the environment cut short although the learner would bootstrap there.
        unknown: Share of the states of a stream that were left out, since a cut came before their return was known.
    """

    observations: np.ndarray
    values: np.ndarray
    variances: np.ndarray
    cut: float = 0.0
    unknown: float = 0.0

    def errors(self, predicted: np.ndarray) -> dict[str, float | None]:
        """Squared error of V, plain and without its mean, both without the noise of `values`; and the mean error.

        Var(ε) of the means is added to both in expectation, whatever the critic, since what it learned from is
        independent of the continuations.
        """
        off = predicted.astype(np.float64) - self.values
        found = {"error": np.mean(off**2) - self.noise, "centred": np.var(off, ddof=1) - self.noise, "bias": off.mean()}
        return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}

    @property
    def noise(self) -> float:
        """Mean of the variances; 0 where they are not known."""
        return float(np.nan_to_num(self.variances).mean())

    def record(self, **more: Any) -> dict[str, Any]:
        """Summary of it for `truth.json`."""
        spread = np.var(self.values, ddof=1) - self.noise
        rounding = (1e-6 * np.abs(self.values).max()) ** 2
        return {
            "kind": "realised" if np.isnan(self.variances).any() else "forked",
            "states": len(self.values),
            "mean": float(self.values.mean()),
            "variance": float(spread) if abs(spread) > rounding else 0.0,
            "noise": self.noise,
            "cut": self.cut,
            "unknown": self.unknown,
            **more,
        }


def forked(policy: Frozen, config: Config, *, states: int, continuations: int, seed: int) -> Truth:
    """V of held-out states in a device environment, by independent continuations of the policy from each.

    States are drawn from all over 32 streams of 4,096 steps. Where the learner bootstraps at the time limit,
    continuations go on beyond it: the environment's `max_steps_in_episode` is lifted. Rewards are the learner's,
    without noise. There are at least two states and at least two continuations of each.
    """
    player = _player(policy, config, STREAMS, seed, "held-out")
    found: list[Playing] = []
    while len(found) * _BETWEEN < HELD_OUT or len(found) * STREAMS < states:
        player.steps(_BETWEEN, light=True)
        found.append(player.playing)
    drawn = np.random.default_rng(seed).choice(len(found) * STREAMS, states, replace=False)
    everything = jax.tree.map(lambda *each: jnp.concatenate(each)[drawn], *found)
    observations = np.asarray(everything.observation.astype(config.environment_object().storage))
    lifted, gamma = without_limit(config), config.ladder.gammas[-1]
    length = horizon(gamma)
    returns, cut = np.zeros((continuations, states)), 0
    for one in range(continuations):
        player = DevicePlayer(policy, lifted, everything, jax.random.fold_in(_key(seed, "fork"), one))
        alive = np.ones(states, bool)
        for time in range(0, length, _BLOCK):
            row = player.steps(_BLOCK, light=True)
            rewards = np.asarray(learned_rewards(config, np.asarray(row.rewards)), np.float64)
            for step in range(min(_BLOCK, length - time)):
                returns[one] += gamma ** (time + step) * np.where(alive, rewards[step], 0.0)
                cut += int(np.count_nonzero(alive & np.asarray(row.truncated[step])))
                alive &= ~np.asarray(row.terminated[step] | row.truncated[step])
            if not alive.any():
                break
    return Truth(observations, returns.mean(0), returns.var(0, ddof=1) / continuations, cut / returns.size)


@functools.lru_cache(maxsize=16)  # one environment for the same settings, so that programs are found again
def without_limit(config: Config) -> Config:
    """Settings whose device environment has no time limit, where the learner bootstraps there."""
    environment: Any = config.environment_object()
    if config.time_limit == "terminate" or environment.time_limit is None:
        return config
    parameters = dataclasses.replace(environment.parameters, max_steps_in_episode=2**30)
    lifted = dataclasses.replace(environment, parameters=parameters, time_limit=None)
    return dataclasses.replace(config, environment=lifted, environment_kwargs=())


def horizon(gamma: float) -> int:
    """Steps after which the discount is negligible; 100,000 where it takes longer."""
    if gamma == 0:
        return 1
    return LONGEST if gamma == 1 else min(LONGEST, math.ceil(math.log(NEGLIGIBLE) / math.log(gamma)))


def realised(policy: Frozen, config: Config, *, states: int, seed: int) -> Truth:
    """Discounted returns that followed held-out states of host environments, one for each: V with its noise."""
    with contextlib.closing(_player(policy, config, HOST_STREAMS, seed, "held-out")) as player:
        found = player.steps(HELD_OUT)
    gamma, rewards = config.ladder.gammas[-1], learned_rewards(config, found.rewards)
    played = np.ones_like(found.terminated) if found.weights is None else found.weights > 0
    columns = []
    for stream, kept in enumerate(played.T):
        ends = {name: getattr(found, name)[kept, stream] for name in ("terminated", "truncated")}
        returns = realised_returns(rewards[kept, stream], [gamma], **ends)[:, 0]
        columns.append((found.observations[kept, stream], returns))
    observations, returns = map(np.concatenate, zip(*columns, strict=True))
    known = np.flatnonzero(np.isfinite(returns))
    if len(known) < 2:
        raise ConfigError(
            f"no return at gamma {gamma:g} is known within {HELD_OUT:,} steps of {config.environment_object().name}: "
            f"name a smaller {setting('gamma')}, or an environment whose episodes end sooner"
        )
    chosen = known[np.linspace(0, len(known) - 1, min(states, len(known))).astype(int)]
    unknown = 1 - len(known) / len(returns)
    return Truth(observations[chosen], returns[chosen], np.full(len(chosen), np.nan), unknown=unknown)


# ---------------------------------------------------------------- learning


@jax.jit
def _begun(config: Config, key: jax.Array) -> ppo.State:
    return ppo.init(config, key)._replace(playing=None)  # type: ignore[arg-type]


@jax.jit
def _learned(config: Config, state: ppo.State, steps: Steps, last: jax.Array, key: jax.Array) -> Any:
    """A critic after one more rollout, as `ppo.update` with a frozen actor; and the number of its fault."""
    environment, evaluate = config.environment_object(), rollout.evaluator(config, state.learned)
    shape = steps.rewards.shape
    final_heads = jax.lax.cond(
        jnp.any(steps.truncated),
        lambda: jax.vmap(evaluate)(steps.finals)[1],
        lambda: jnp.zeros((*shape, config.heads)),
    )
    kind = (shape, jnp.int32) if environment.discrete else ((*shape, *environment.action_space.shape), jnp.float32)
    same = ("observations", "rewards", "reward_noise", "reward_returns", "terminated", "truncated")
    played = Rollout(
        **{name: getattr(steps, name) for name in same},
        actions=jnp.zeros(*kind),  # the actor learns nothing, so that any will do
        log_probabilities=jnp.zeros(shape),
        heads=jax.vmap(evaluate)(steps.observations)[1],
        final_heads=final_heads,
        final_finite=~steps.truncated | jax.vmap(rollout.finite)(steps.finals),
        last_heads=evaluate(last)[1],
        finished_returns=jnp.zeros(shape),
        finished_lengths=jnp.zeros(shape, jnp.int32),
        weights=None if steps.weights is None else steps.weights / jnp.mean(steps.weights),
    )
    state, metrics = ppo.learn(config, state, played, last, key)
    return state, metrics.fault


@jax.jit
def _values(config: Config, learned: Learned, observations: jax.Array) -> jax.Array:
    """V at the longest horizon in units of the learner's reward, (N,)."""
    heads = rollout.evaluator(config, learned)(observations)[1]
    return jnp.sum(rollout.components(config, learned, heads), -1)


def train_critics(
    policy: Frozen,
    configs: Sequence[Config],
    seed: int,
    truth: Truth,
    budgets: Sequence[int],
    stop: Callable[[], bool] = lambda: False,
) -> list[list[dict[str, Any]]] | None:
    """Train critics side by side on one stream of the policy, whose seed is also theirs.

    Their settings differ in agent, λ and learning rate. `budgets` are the updates after which they are measured,
    ascending; `stop` says whether to give up.

    Returns:
        For each critic its measures at each budget, None in place of numbers once it has diverged; None if stopped.

    Raises:
        DataError: A reward or an observation is not finite.
    """
    key = _key(seed, "critic")
    # compiled for what is static: λ is, and does not matter here
    alike = [dataclasses.replace(config, lam=1.0) for config in configs]
    states = [_begun(config, key) for config in alike]
    fault, first = [0] * len(configs), configs[0]
    rows: list[list[dict[str, Any]]] = [[] for _ in configs]
    with contextlib.closing(_player(policy, first, first.environments, seed, "train")) as player:
        for update in range(budgets[-1]):
            steps = player.steps(first.rollout_length)
            last = player.observations
            shuffle = jax.random.fold_in(key, update)
            for place, config in enumerate(configs):
                if stop():
                    return None
                if not fault[place]:
                    states[place], found = _learned(config, states[place], steps, last, shuffle)
                    fault[place] = int(found)
                if ppo.FAULTS[fault[place]] in ("reward", "observation"):
                    name = first.environment_object().name
                    raise DataError(f"{name}: {ppo.FAULTS[fault[place]]} not finite in the stream of seed {seed}")
                if update + 1 in budgets:
                    predicted = np.asarray(_values(alike[place], states[place].learned, truth.observations))
                    measures = truth.errors(np.full_like(predicted, np.nan) if fault[place] else predicted)
                    rows[place].append({"steps": (update + 1) * first.batch, **measures})
    return rows


# ---------------------------------------------------------------- the study


def critics(
    policy: Any,
    *,
    environment: Any = None,
    forms: Sequence[Any] = ("ppo", "ppo-multi", "ppo-delta", "ppo-delta-bootstrap"),
    gamma: float | None = None,
    lam: float | Sequence[float] = (0.8, 0.9, 0.95, 1.0),
    learning_rate: float | Sequence[float] | None = None,
    budgets: Sequence[int] = (25_000, 50_000, 100_000, 200_000),
    seeds: int | Sequence[int] = 10,
    tuning_seeds: Sequence[int] = (100, 101, 102, 103, 104),
    reward_noise: float | None = None,
    measure: str = "centred",
    states: int = 512,
    continuations: int = 32,
    truth_seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] | None = None,
    command: Sequence[str] = (),
    **settings: Any,
) -> CriticStudy:
    """Train critics of several forms on the stream of one frozen policy, and compare their errors of V.

    A critic learns as PPO's does, from the same rollouts, minibatches and epochs, with a constant learning rate, while
    the actor stays as it is. All forms of a seed learn from the same stream in the same order. λ and learning rate of
    each form are chosen at each budget by the mean `measure` over the tuning seeds; then the chosen critics are trained
    with the other seeds, which alone are reported.

    What is finished is kept in `out`: the same call goes on there, and at most the seeds in progress are lost.

    Args:
        policy: A run directory, a `Policy`, a model of Stable-Baselines3 or anything else with `predict`, or a function
            `act(observations) -> actions` of a batch without a memory of its own. The last three need `environment`,
            and see it as it is: without wrappers that the model was trained with.
        environment: See `environments.resolve`; of a run, only where it is one of your own.
        forms: Agents, by name or themselves. "NAME@λ" is one with that λ alone, such as "ppo-delta-bootstrap@1". The
            first is the baseline.
        gamma: Discount of the values; None takes that of the run or of the environment's preset.
        lam: λ of the traces in [0, 1], or several to choose from.
        learning_rate: Adam's step size, or several to choose from; None takes that of the run or of the preset.
        budgets: Environment steps at which critics are measured, rounded up to whole updates.
        seeds: A number N for the seeds 0 … N−1, or the seeds that are reported.
        tuning_seeds: Seeds on which is chosen; not used where there is nothing to choose.
        reward_noise: Standard deviation of the noise on every reward that critics learn from; None takes that of the
            run.
        measure: What is chosen by and tested: "centred", the variance of V̂ − V over held-out states, or "error", the
            mean of its square, which a constant adds to.
        states: Number of held-out states, ≥ 2.
        continuations: Number of continuations of each in a device environment, ≥ 2.
        truth_seed: Of held-out states and continuations.
        out: Folder of the study; None is a new one, `runs/YYYYMMDD-HHMMSS`.
        say: Called with a line of text for every step of the work.
        command: The command line, for `timing.jsonl`.
        **settings: Fields of `ppo.Config` in which critics differ from the run or the preset.

    Returns:
        The study, read from its folder: errors, what was chosen, differences with their tests, tables, a page.

    Raises:
        ConfigError: A name or setting is wrong, or the folder holds something else.
        DataError: A reward or an observation is not finite.
        CheckpointError: A file of the study is damaged.
        KeyboardInterrupt: Ctrl-C; what was finished is kept.
    """
    frozen = _frozen(policy, environment, settings.pop("environment_kwargs", ()), settings.get("network"))
    steps = sorted(_listed("budgets", budgets, whole))
    base = _base(frozen, {"gamma": gamma, **settings}, reward_noise, steps[-1])
    lams = _listed("lam", lam, number)
    several = _listed("forms", forms, lambda _, one: _form(one, lams))
    rates = _listed("learning_rate", base.learning_rate if learning_rate is None else learning_rate, number)
    seed = functools.partial(whole, least=0)
    reported = range(whole("seeds", seeds)) if isinstance(plain(seeds), int) else seeds
    question: dict[str, Any] = {
        "policy": frozen.record,
        "environment": base.environment_object().name,
        "measure": one_of("measure", measure, tuple(MEASURES)),
        "gamma": base.ladder.gammas[-1],
        "reward_noise": base.reward_noise,
        "budgets": steps,
        "forms": [{"label": form.label, "lam": form.lams, "agent": form.agent.to_dict()} for form in several],
        "learning_rates": rates,
        "seeds": _listed("seeds", reported, seed),
        "tuning_seeds": _listed("tuning_seeds", tuning_seeds, seed),
        "states": whole("states", states, 2, 1_000_000),
        "continuations": whole("continuations", continuations, 2, 1_000_000),
        "truth_seed": seed("truth_seed", truth_seed),
        "settings": {name: it for name, it in base.to_dict().items() if name not in (*_NAMED, "gamma", "actor_lam")},
    }
    _check(question, base)
    configs = _configs(base, several, rates)
    folder = folder_of(out)
    with _opened(folder, question, command):
        work = _Work(folder, question, frozen, base, configs, say or (lambda _: None))
        work.find_truth()
        study = CriticStudy(folder)
        work.train("tuning seed", question["tuning_seeds"], study.grid())
        work.train("seed", question["seeds"], CriticStudy(folder).needed())
    return CriticStudy(folder)


_NAMED = ("environment", "environment_kwargs", "agent", "lam", "learning_rate", "steps", "reward_noise")
"""Settings that `critics` has arguments for, or that critics differ in."""


class Form(NamedTuple):
    """One of the forms that are compared: an agent, and the λ that it may have."""

    label: str
    agent: Agent
    lams: list[float]


def _form(given: Any, lams: list[float]) -> Form:
    given = tidy(given)
    if not (isinstance(given, str) and "@" in given):
        agent = resolve(given)
        return Form(agent.name, agent, lams)
    name, _, value = given.rpartition("@")
    try:
        lam = float(value)
    except ValueError as error:
        raise ConfigError(
            f"{setting('forms')} must be agents, or an agent and its λ as in ppo@1; got {given!r}"
        ) from error
    if not 0 <= lam <= 1:
        raise ConfigError(f"the λ of {setting('forms')} must be in [0, 1]; got {given!r}: write it as in ppo@0.95")
    agent = resolve(name)
    return Form(f"{agent.name}@{lam:g}", agent, [lam])


def _listed(name: str, given: Any, check: Callable[[str, Any], Any]) -> list[Any]:
    """One value or several, each as `check(name, value)` has it; ConfigError for none."""
    given = plain(given)
    found = [check(name, one) for one in (given if isinstance(given, list | tuple | range) else [given])]
    if not found:
        raise ConfigError(f"{setting(name)} must name at least one; got none")
    return found


def _frozen(policy: Any, environment: Any, options: Any = (), network: Any = None) -> Frozen:
    """The policy in the one form that everything here takes."""
    if isinstance(policy, str | os.PathLike | Run):
        run = policy if isinstance(policy, Run) else one_run(policy)
        own = ":" in str(run.config.get("settings", {}).get("network"))  # then it must be named
        policy = load(run, environment=environment, network=network if own else None)
    if isinstance(policy, Policy):
        if options:
            raise ConfigError(
                f"the policy has its environment; got {setting('environment_kwargs')} {options!r:.80}: drop them"
            )
        record = {"agent": policy.config.agent.name, "sha256": _digest(to_arrays(policy.learned))}
        return Frozen(policy.config, policy.learned, None, record)
    act: Any = (lambda seen: policy.predict(seen, deterministic=False)[0]) if hasattr(policy, "predict") else policy
    if not callable(act):
        raise ConfigError(
            "policy must be a run directory, a Policy, a model with predict or a function of observations; got "
            f"{type(policy).__name__}"
        )
    if environment is None:
        raise ConfigError(f"a policy that is not a run needs its environment: pass {setting('environment', '')}")
    record = {"act": reference(policy)}
    if hasattr(policy, "get_parameters"):  # Stable-Baselines3's: two models of one class are two policies
        record["sha256"] = _digest(policy.get_parameters()["policy"])
    return Frozen(preset(environment, "ppo", environment_kwargs=options), None, act, record)


def _digest(arrays: Mapping[str, Any]) -> str:
    """Checksum that tells the parameters of one policy from those of another."""
    content = (name.encode() + np.ascontiguousarray(arrays[name]).tobytes() for name in sorted(arrays))
    return hashlib.sha256(b"".join(content)).hexdigest()


_STILL: Mapping[str, Any] = {
    "anneal_learning_rate": False,
    "entropy_coefficient": 0.0,
    "normalize_advantages": False,
    "shared_trunk": False,
    "actor_lam": None,
    "shards": 1,
    "grow": (),
    "component_weights": None,
}
"""Settings that make the actor stand still, and every form of critic learn with one rate and one ladder."""


def _base(policy: Frozen, changes: Mapping[str, Any], noise: float | None, steps: int) -> Config:
    """Settings that all critics share: those of the policy with these changes."""
    named = {name: value for name, value in plain(dict(changes)).items() if value is not None}
    known = tuple(field.name for field in dataclasses.fields(Config) if field.name not in (*_STILL, *_NAMED))
    for name in named:
        if name in _STILL:
            raise ConfigError(f"{setting(name)} is fixed for critics of a frozen policy; got {named[name]!r}: drop it")
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}: {closest(name, known)}")
    if noise is not None:
        named["reward_noise"] = noise
    config = dataclasses.replace(policy.config, **_STILL, **named, steps=steps)
    check(config)
    return config


def _configs(base: Config, forms: Sequence[Form], rates: Sequence[float]) -> dict[Cell, Config]:
    """Settings of every critic, checked."""
    base, found = _without_actor(base), {}
    for form in forms:
        agent = form.agent.replace(advantages=zero_advantages)
        for lam, rate in itertools.product(form.lams, rates):
            config = dataclasses.replace(base, agent=agent, lam=lam, learning_rate=rate)
            check(config)
            found[Cell(agent.name, lam, rate)] = config
    return found


def _without_actor(base: Config) -> Config:
    """Settings whose network leaves its actor out; nature-conv keeps it, since it learns in parts by its name."""
    return base if base.network == "nature-conv" else dataclasses.replace(base, network=_WithoutActor(base))


def _check(question: Mapping[str, Any], base: Config) -> None:
    """ConfigError for what would make the result worthless."""
    labels = [form["label"] for form in question["forms"]]
    for name, values in (("forms", labels), ("seeds", question["seeds"]), ("tuning_seeds", question["tuning_seeds"])):
        if len(set(values)) < len(values):
            raise ConfigError(f"{setting(name)} must differ; got {' '.join(map(str, values))}: drop one")
    several = len(question["learning_rates"]) > 1 or any(len(form["lam"]) > 1 for form in question["forms"])
    both = sorted(set(question["seeds"]) & set(question["tuning_seeds"]))
    if several and both:
        raise ConfigError(
            f"{setting('seeds')} and {setting('tuning_seeds')} share {both[0]}: nothing may be chosen on seeds that "
            "are reported"
        )
    updates = [-(-one // base.batch) for one in question["budgets"]]
    if len(set(updates)) < len(updates):
        raise ConfigError(
            f"{setting('budgets')} must differ by whole updates of {base.batch:,} steps; got "
            f"{' '.join(map(str, question['budgets']))}: drop one, or lower {setting('rollout_length')}"
        )


@contextlib.contextmanager
def _opened(folder: Path, question: Mapping[str, Any], command: Sequence[str]) -> Iterator[None]:
    """Begin the study in a folder or go on with it, and keep others from it meanwhile."""
    asked, file = {"format": FORMAT, "question": json_plain(question)}, folder / "study.json"
    advice = f"choose another folder with {setting('out', '')}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written to ({error.strerror}): {advice}") from error
    if not file.exists() and any(one.name != "timing.jsonl" for one in folder.iterdir()):
        raise ConfigError(f"{folder} holds something else: {advice}")
    with contextlib.closing(lock_file(folder / "timing.jsonl", advice)):
        begun = read_json(file, advice) if file.exists() else None
        if begun is None:
            replace(file, to_json(asked))
        elif any(begun.get(name) != value for name, value in asked.items()):
            told = differences(begun.get("question", {}), asked["question"]) or [f"format {begun.get('format')!r}"]
            raise ConfigError(f"{folder} is a study of something else, {'; '.join(told)}: {advice}")
        append_rows(folder / "timing.jsonl", [{"event": "start", **describe_origin(command)}])
        yield


@dataclasses.dataclass
class _Work:
    """One study in progress."""

    folder: Path
    question: Mapping[str, Any]
    policy: Frozen
    base: Config
    configs: Mapping[Cell, Config]
    say: Callable[[str], None]
    truth: Truth = dataclasses.field(init=False)

    def find_truth(self) -> None:
        """Play the held-out states, or read them."""
        question, path = self.question, self.folder / "truth.npz"
        options = {"states": question["states"], "seed": question["truth_seed"]}
        count, length = question["continuations"], horizon(self.base.ladder.gammas[-1])
        on_host = isinstance(self.base.environment_object(), HostEnvironment)
        if path.exists():
            try:
                with np.load(path, allow_pickle=False) as stored:
                    self.truth = Truth(**{name: stored[name][()] for name in Truth._fields})
            except Exception as error:  # damaged files have many ways to fail
                raise CheckpointError(
                    f"{path} is damaged ({error}): delete it and repeat the command, which makes it anew"
                ) from error
        elif on_host:
            self.say(f"returns of held-out states, {HOST_STREAMS} streams of {HELD_OUT:,} steps")
            self.truth = realised(self.policy, self.base, **options)
        else:
            self.say(f"continuations: {options['states']:,} held-out states, {count} of up to {length:,} steps each")
            self.truth = forked(self.policy, self.base, continuations=count, **options)
        more = {} if on_host else {"continuations": count, "length": length}
        replace(self.folder / "truth.json", to_json(json_plain(self.truth.record(**more))))
        if not path.exists():
            replace(path, lambda file: np.savez_compressed(file, **self.truth._asdict()))

    def train(self, what: str, seeds: Sequence[int], cells: Sequence[Cell]) -> None:
        """Train every cell that is not there with every seed; seeds beside one another, if the policy is ours."""
        if not cells:
            return
        stop = threading.Event()
        workers = 1 if self.policy.act is not None else min(available_cores(), len(seeds))
        with ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(self._seed, seed, cells, stop): seed for seed in seeds}
            try:
                for done, future in enumerate(as_completed(futures), start=1):
                    if count := future.result():
                        self.say(f"{what} {futures[future]}: {count} critics ({done} of {len(seeds)} seeds)")
            except BaseException:
                stop.set()  # what runs gives up at its next step
                raise

    def _seed(self, seed: int, cells: Sequence[Cell], stop: threading.Event) -> int:
        """Train the cells of a seed that are not there; returns how many there were."""
        paths = {cell: self.folder / "cells" / f"seed-{seed}" / _file(*cell) for cell in cells}
        missing = [cell for cell, path in paths.items() if not path.exists()]
        if not missing or stop.is_set():
            return 0
        budgets = [-(-one // self.base.batch) for one in self.question["budgets"]]
        configs = [self.configs[cell] for cell in missing]
        rows = train_critics(self.policy, configs, seed, self.truth, budgets, stop.is_set)
        if rows is None:
            return 0
        paths[missing[0]].parent.mkdir(parents=True, exist_ok=True)
        for cell, measures in zip(missing, rows, strict=True):
            record = {**cell._asdict(), "seed": seed, "budgets": measures}
            replace(paths[cell], to_json(record), durable=False)
        return len(missing)


def _file(agent: str, lam: float, rate: float) -> str:
    return f"{agent.replace(os.sep, '-')}_lam-{lam!r}_rate-{rate!r}.json"
