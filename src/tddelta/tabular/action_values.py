"""Control in a table: learning to act on the sum of action-value components."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tddelta import _plain, timescales
from tddelta.decomposition import compose
from tddelta.errors import ConfigError, ShapeError, own_checks
from tddelta.runs import CHECKPOINT_SECONDS, Arrays
from tddelta.tabular import _checks, _resumable, learners, loops
from tddelta.tabular._checks import FloatArray, IntArray
from tddelta.tabular.loops import over_blocks
from tddelta.tabular.mdp import FiniteMDP, check_mdp
from tddelta.tabular.sampling import Choice
from tddelta.timescales import TimeScales

Method = Literal["sarsa", "expected_sarsa", "q_learning", "n_step_sarsa", "sarsa_lambda", "watkins"]
"""Methods by name: see `control`."""

METHODS: tuple[str, ...] = get_args(Method)
"""The same, as a tuple."""

_KINDS = {
    "sarsa": loops.SARSA,
    "sarsa_lambda": loops.SARSA,
    "expected_sarsa": loops.EXPECTED,
    "q_learning": loops.GREEDY,
    "watkins": loops.GREEDY,
}


@own_checks
@dataclass(frozen=True, eq=False, repr=False)
class ControlResult:
    """What `control` learned, for N seeds.

    Attributes:
        scales: The time scales.
        deltas: Final components Q^z(s, a), shape (N, S, A, Z); 0 in terminal states.
        policy: Greedy actions argmax_a Q_Z(s, a), the lowest index among equals, shape (N, S).
        start_values: Exact value of this policy at γ_Z and the distribution of first states, shape (N,); not a number
            where γ_Z = 1 and the policy need not end.
        optimal_start_value: The same of the best policy.
        episode_returns: For every seed the sums of rewards of its finished episodes, in order.
        episode_lengths: Likewise their numbers of steps.
        seeds: Seeds, N of them.
    """

    scales: TimeScales
    deltas: FloatArray
    policy: IntArray
    start_values: FloatArray
    optimal_start_value: float
    episode_returns: tuple[FloatArray, ...]
    episode_lengths: tuple[IntArray, ...]
    seeds: tuple[int, ...]

    @property
    def action_values(self) -> FloatArray:
        """Q_z(s, a) = Σ_{i≤z} Q^i(s, a), shape (N, S, A, Z); the last entry decides."""
        with np.errstate(invalid="ignore"):  # where the components diverged
            return compose(self.deltas)

    def __repr__(self) -> str:
        seeds, states, actions, scales = self.deltas.shape
        return f"{type(self).__name__}({seeds} seeds, {states} states, {actions} actions, {scales} scales)"


@own_checks
def control(
    mdp: FiniteMDP,
    scales: Any,
    *,
    method: Method = "sarsa",
    step_size: Any = 0.1,
    epsilon: float | tuple[float, float] = 0.1,
    seeds: int | Iterable[int] = 1,
    steps: int = 10_000,
    time_limit: int | None = None,
    initial_deltas: npt.ArrayLike | None = None,
    threads: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
) -> ControlResult:
    """Learn action-value components Q^z and act ε-greedily on their sum Q_Z = Σ_z Q^z.

    Q^z(s_t, a_t) moves by α_z towards the target of component z, as in `evaluate`, where what follows a step is

    - "sarsa": Q^z(s', a') of the next action;
    - "expected_sarsa": Σ_b π(b|s') Q^z(s', b), the mean over the ε-greedy policy;
    - "q_learning": Q^z(s', a*) with a* = argmax_b Q_Z(s', b), the same action for all components: then each prefix
      of them becomes the value at its discount of the policy that is greedy in Q_Z. A maximum per component would be
      the value of another policy for each, and their sum that of none;
    - "n_step_sarsa": Q^z(x, a) at the end of a window of k_z = `scales.n_steps[z]` steps;
    - "sarsa_lambda": as "sarsa", with accumulating traces of decay c_z = `scales.trace_decays[z]`;
    - "watkins": as "q_learning", with traces that are all cut when the next action is not a*.

    The next action is chosen before the update. A truncated episode bootstraps from its true successor; no trace and
    no window goes across an end. The policy of `mdp` does not matter. Components of a step size that is too large
    become inf or nan, as in `evaluate`, and the policy has no meaning: `np.isfinite(result.deltas)` tells.

    Args:
        mdp: The process.
        scales: The time scales, as of `TimeScales.of`; γ_Z is the discount that the policy is optimised for.
        method: One of the above.
        step_size: α above 0, or "1/n": 1 over the number of updates of the state and action; or one of these per scale.
        epsilon: Probability ε in [0, 1] of an action at random, or a pair: from the first to the last step it goes in
            a line from the one number to the other.
        seeds: Seeds, N of them, or a number N for the seeds 0 to N − 1.
        steps: Steps of each seed, over all episodes.
        time_limit: Steps after which an episode is truncated; None means never.
        initial_deltas: Components to begin with, shape (S, A, Z) or (N, S, A, Z). None means zeros.
        threads: Threads; None means one per core. The result does not depend on it.
        checkpoint: Folder in which the seeds that are done are saved. A call with the same arguments goes on from
            there and returns the same bytes as one without a break; see `evaluate`.
        checkpoint_every: Seconds between two checkpoints at least; more where one takes over a hundredth of that.

    Returns:
        Components, the greedy policy, its exact value and that of the best one, and the episodes.

    Raises:
        ConfigError: A setting is out of range, or missing for the method; γ_Z is 1 and the optimal values do not
            converge; the checkpoint is of a call with other arguments.
        ShapeError: `initial_deltas` has another shape.
        CheckpointError: The checkpoint is of a newer format.
        StorageError: The checkpoint cannot be written.
        MissingExtra: numba is not installed.

    Example:
        >>> walk = FiniteMDP(
        ...     [[[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 0, 1]], [[0, 0, 1], [0, 0, 1]]],
        ...     [0, 0, 1],
        ...     terminal=[False, False, True],
        ... )
        >>> learned = control(walk, TimeScales.from_gammas([0.5, 0.9]), method="q_learning", steps=2000)
        >>> learned.policy[0, :2].tolist(), float(learned.start_values[0])
        ([1, 1], 0.9)

    Reference:
        Sutton and Barto, "Reinforcement Learning", 2018, chapters 6, 7 and 12; Watkins, "Learning from delayed
        rewards", 1989. The components are those of Romoff et al. 2019.
    """
    scales = TimeScales.of(scales)
    check_mdp(mdp)
    learners.known_method(method, METHODS)
    alphas, decaying = learners.step_sizes([step_size], len(scales))
    numbers = _checks.seeds(seeds)
    length = _plain.whole("steps", steps)
    limit = -1 if time_limit is None else _plain.whole("time_limit", time_limit)
    epsilons = _epsilons(epsilon)
    gammas, decays = np.array(scales.gammas), np.zeros(len(scales))
    windows: tuple[int, ...] = ()
    if method == "n_step_sarsa":
        given = learners.needed(scales.n_steps, "n_steps", "n_step=4", method)
        # longer ones never fill either, and flush the same
        windows = tuple(min(window, length + 1) for window in given)
    elif method in ("sarsa_lambda", "watkins"):
        decays = np.array(learners.needed(scales.trace_decays, "trace_decays", "lam=0.9", method))
    optimal = float(mdp.start @ mdp.optimal_action_values(scales.gammas[-1]).max(axis=1))
    tables = _tables(initial_deltas, (len(numbers), mdp.states, mdp.actions, len(scales)))
    tables[:, mdp.terminal] = 0.0
    first, move = Choice(mdp.start), Choice(mdp.transition)
    tables_of_chance = first.outcomes, first.bounds, move.outcomes, move.bounds
    process = (*map(np.ascontiguousarray, tables_of_chance), mdp.reward, mdp.terminal)
    episodes: list[Any] = [None] * len(numbers)

    def block(begin: int, end: int) -> None:
        for n in range(begin, end):
            generator, visits = np.random.default_rng(numbers[n]), np.zeros(tables.shape[1:3], np.int64)
            returns, lengths = np.empty(length), np.empty(length, np.int64)
            books = tables[n], visits, returns, lengths
            if windows:
                powers = gammas[:, None] ** np.arange(max(windows) + 1)
                steps_of = np.array(windows)
                count = loops.n_step(
                    generator, process, limit, gammas, steps_of, powers, alphas[0], decaying[0], epsilons, *books
                )
            else:
                kind, cut = _KINDS[method], method == "watkins"
                count = loops.one_step(
                    generator, process, limit, gammas, decays, alphas[0], decaying[0], epsilons, kind, cut, *books
                )
            episodes[n] = returns[:count].copy(), lengths[:count].copy()

    if checkpoint is None:
        over_blocks(block, len(numbers), threads)
    else:
        sizes = np.where(decaying, "1/n", alphas.astype(str)).tolist()
        arguments = {
            "method": method,
            "scales": scales.to_dict(),
            "step_size": sizes,
            "epsilon": epsilons.tolist(),
            "seeds": numbers,
            "steps": length,
            "time_limit": time_limit,
            "mdp": mdp,
            "initial_deltas": (tables,),
        }

        def state(done: int) -> Arrays:
            returns, lengths = (np.concatenate([pair[i] for pair in episodes[:done]]) for i in (0, 1))
            counts = np.array([len(pair[0]) for pair in episodes[:done]])
            return {"deltas": tables, "returns": returns, "lengths": lengths, "episodes": counts}

        def restore(done: int, arrays: Arrays) -> None:
            tables[:] = arrays["deltas"]
            cuts = np.cumsum(arrays["episodes"])[:-1]
            parts = (np.split(np.array(arrays[name]), cuts) for name in ("returns", "lengths"))
            episodes[:done] = zip(*parts, strict=True)

        _resumable.seed_by_seed(
            block, len(numbers), threads, Path(checkpoint), checkpoint_every,
            arguments=arguments, state=state, restore=restore,
        )  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):  # where they diverged
        policy = tables.sum(axis=-1).argmax(axis=-1)
    return ControlResult(
        scales=scales,
        deltas=tables,
        policy=policy,
        start_values=np.array([_start_value(mdp, actions, scales.gammas[-1]) for actions in policy]),
        optimal_start_value=optimal,
        episode_returns=tuple(returns for returns, _ in episodes),
        episode_lengths=tuple(lengths for _, lengths in episodes),
        seeds=numbers,
    )


def _start_value(mdp: FiniteMDP, policy: IntArray, gamma: float) -> float:
    """Exact value of a policy at the distribution of first states; not a number if there is none."""
    try:
        values = mdp.with_policy(policy).exact_values([gamma])
    except ConfigError:
        return float("nan")
    return float(mdp.start @ values[:, 0])


def _epsilons(value: Any) -> FloatArray:
    """ε at the first and the last step."""
    pair = value if isinstance(value, tuple) else (value, value)
    if len(pair) != 2:
        raise ConfigError(f"epsilon must be a number, or a pair (first, last); got {value!r}: pass one of the two")
    return np.array([timescales.unit_number("epsilon", number) for number in pair])


def _tables(value: Any, shape: tuple[int, ...]) -> FloatArray:
    """Components to begin with: a new array (N, S, A, Z)."""
    array = np.zeros(shape) if value is None else _checks.array_of("initial_deltas", value)
    if array.dtype.kind not in "iuf" or array.shape not in (shape, shape[1:]):
        raise ShapeError(
            f"initial_deltas must have shape (S, A, Z) = {shape[1:]} or (N, S, A, Z) = {shape}; got {array.dtype} of "
            f"shape {array.shape}: use add_scale where the ladder has grown"
        )
    return np.array(np.broadcast_to(array, shape), np.float64, order="C")
