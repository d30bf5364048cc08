"""Finite Markov decision processes as matrices, with exact values at every time scale."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tddelta import _plain, timescales
from tddelta._arrays import BoolArray, FloatArray, array_of, first_place, numbers
from tddelta._plain import blamed
from tddelta.decomposition import decompose
from tddelta.errors import ConfigError, DataError, MissingExtra, ShapeError
from tddelta.timescales import TimeScales

_ROUNDING = 1e-6  # float32 probabilities sum to one up to this


@dataclass(frozen=True, init=False, eq=False, repr=False)
class FiniteMDP:
    """A Markov decision process with S states and A actions, together with the policy that is to be evaluated.

    An episode ends when it enters a terminal state: its value is 0, and what the matrices say about leaving it is
    ignored.

    Args:
        transition: Probabilities p(s'|s, a), shape (S, A, S), or (S, S) for one action. Rows sum to one, up to 1e-6,
            which is taken for rounding and divided out. Rows of terminal states may be anything finite.
        reward: Reward of the step from s to s' under a: shape (S, A, S), or anything that broadcasts to it with three
            axes, as (S, A, 1) for state and action; one number; shape (S,) for the state entered; shape (S, S) where
            `transition` is (S, S).
        terminal: Which states end an episode, shape (S,) of booleans; None means none.
        policy: Probabilities π(a|s), shape (S, A), or one action per state, whole numbers of shape (S,); None means
            that all actions are equally likely.
        start: State in which episodes start, or probabilities of shape (S,).
        names: Names of the states, for tables and figures; None numbers them.

    The attributes have the names of the arguments, in full: `transition` and `reward` (S, A, S), where terminal states
    lead to themselves with reward 0, `terminal` (S,), `policy` (S, A), `start` (S,) and a name for every state.

    Raises:
        ShapeError: An array has a shape that does not fit.
        DataError: A probability is negative, a row does not sum to one, or a number is not finite.
        ConfigError: A state or action does not exist, or an episode would start in a terminal state; in `ring`,
            `chain` and `random` a setting is out of range.

    Example:
        >>> loop = FiniteMDP([[1.0]], 1.0)
        >>> loop.exact_deltas([0.0, 0.5, 0.75, 0.875, 0.9375])
        array([[1., 1., 2., 4., 8.]])
    """

    transition: FloatArray
    reward: FloatArray
    terminal: BoolArray
    policy: FloatArray
    start: FloatArray
    names: tuple[str, ...]

    def __init__(
        self,
        transition: npt.ArrayLike,
        reward: npt.ArrayLike,
        *,
        terminal: npt.ArrayLike | None = None,
        policy: npt.ArrayLike | None = None,
        start: npt.ArrayLike = 0,
        names: Iterable[str] | None = None,
    ) -> None:
        probabilities, single = _transition(transition)
        ends = _terminal(terminal, len(probabilities))
        probabilities = _stochastic("transition", probabilities, ends)
        probabilities[ends] = np.eye(len(ends))[ends, None]
        rewards = _reward(reward, probabilities.shape, single)
        rewards[ends] = 0.0
        self._store(
            transition=probabilities,
            reward=rewards,
            terminal=ends,
            policy=_policy(policy, ends, probabilities.shape[1]),
            start=_start(start, ends),
            names=_names(names, len(ends)),
        )

    def _store(self, **fields: Any) -> None:
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)  # the object is frozen, its arrays too
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        ends = int(self.terminal.sum())
        return f"{type(self).__name__}({self.states} states, {self.actions} actions, {ends} terminal)"

    @property
    def states(self) -> int:
        """Number of states S, terminal ones included."""
        return int(self.transition.shape[0])

    @property
    def actions(self) -> int:
        """Number of actions A."""
        return int(self.transition.shape[1])

    @property
    def state_transition(self) -> FloatArray:
        """Probabilities of the next state under the policy, shape (S, S); rows of terminal states are zero."""
        return np.where(self.terminal[:, None], 0.0, np.einsum("sa,sat->st", self.policy, self.transition))

    @property
    def state_reward(self) -> FloatArray:
        """Mean reward of a step under the policy, shape (S,); 0 in terminal states."""
        return np.asarray(np.einsum("sa,sat,sat->s", self.policy, self.transition, self.reward))

    def exact_values(self, gammas: Iterable[float]) -> FloatArray:
        """Values of the policy at every discount by a linear solve: V_z = (I − γ_z P)^{−1} R.

        P[s, s'] = Σ_a π(a|s) p(s'|s, a), and R[s] is the mean reward of a step from s.

        Args:
            gammas: Discounts in [0, 1], strictly increasing, as in `scales.gammas`.

        Returns:
            V_z(s), float64, shape (S, Z); 0 in terminal states.

        Raises:
            ConfigError: The discounts are no ladder, or one is 1 and the sum of rewards does not converge.

        Example:
            >>> FiniteMDP.ring().exact_values([0.9375]).round(4).T
            array([[ 0.2228,  0.2384, -0.8115,  0.1421,  0.2082]])
        """
        transition, reward = self.state_transition, self.state_reward
        return np.stack([_solve(transition, reward, gamma) for gamma in TimeScales.from_gammas(gammas).gammas], axis=-1)

    def exact_deltas(self, gammas: Iterable[float]) -> FloatArray:
        """Components W_0 = V_0 and W_z = V_z − V_{z−1} of `exact_values`, with the same arguments, shape and errors."""
        return decompose(self.exact_values(gammas))

    def optimal_action_values(self, gamma: float) -> FloatArray:
        """Action values of the best policy by policy iteration: Q(s, a) = Σ_s' p(s'|s, a) (r + γ max_b Q(s', b)).

        Args:
            gamma: Discount in [0, 1]. With 1, an end must be within reach of every state.

        Returns:
            Q(s, a), float64, shape (S, A); 0 in terminal states.

        Raises:
            ConfigError: The discount is 1 and the sum of rewards does not converge.

        Example:
            >>> FiniteMDP.chain(2).optimal_action_values(0.5).T
            array([[0.5, 1. , 0. ]])
        """
        gamma = timescales.unit_number("gamma", gamma)
        gains = np.einsum("sat,sat->sa", self.transition, self.reward)
        chosen = np.full((self.states, self.actions), 1 / self.actions)
        rows, total = np.arange(self.states), -np.inf
        while True:
            current = self.with_policy(chosen)
            values = _solve(current.state_transition, current.state_reward, gamma)
            action_values: FloatArray = gains + gamma * self.transition @ values
            best, now = action_values.argmax(axis=1), np.einsum("sa,sa->s", chosen, action_values)
            # An action is given up only for a better one: among equal ones the next may never end where this one does.
            noise = 1e-12 * np.abs(now) + 1e-15 * np.abs(action_values).max()
            better = action_values[rows, best] > now + noise
            if not better.any() or values.sum() <= total:  # the sum grows until rounding stops it
                break
            total = values.sum()
            chosen = np.where(better[:, None], np.eye(self.actions)[best], chosen)
        action_values[self.terminal] = 0.0
        return action_values

    def greedy_policy(self, action_values: npt.ArrayLike) -> FloatArray:
        """Policy, (S, A) for `with_policy`, that takes the action of largest value Q(s, a), the lowest among equals.

        A ShapeError or DataError if the values have not the shape (S, A), or are not finite.
        """
        shape = self.states, self.actions
        advice = "pass one value per state and action"
        array = numbers("action_values", action_values, shape, f"(S, A) = {shape}", advice)
        return np.asarray(np.eye(self.actions)[array.argmax(axis=1)])

    def with_policy(self, policy: npt.ArrayLike | None) -> "FiniteMDP":
        """Return the same process under another policy, as for `FiniteMDP`; the large arrays are shared."""
        other = object.__new__(type(self))
        other._store(**vars(self) | {"policy": _policy(policy, self.terminal, self.actions)})
        return other

    # ------------------------------------------------------------ well-known processes

    @classmethod
    def ring(
        cls, reward_on: Literal["entered", "edges", "left"] = "entered", *, states: int = 5, slip: float = 0.05
    ) -> "FiniteMDP":
        """Ring of the paper's tabular experiment: each step advances, or stays with probability `slip`.

        Args:
            reward_on: Steps that earn +1 for state 2 and −1 for state 3. "entered": those that end there, staying
                included, as in the released code. "edges": the moves 1→2 and 2→3 only, as in the paper's figure.
                "left": those that begin there.
            states: Number of states, at least 4.
            slip: Probability of staying, in [0, 1).

        Returns:
            The process, one action, starting in state 0, without an end.

        Reference:
            Romoff et al. 2019, section 6.1; Kearns and Singh 2000.
        """
        states, slip = _plain.whole("states", states, least=4), timescales.unit_number("slip", slip)
        if slip == 1:
            raise ConfigError("slip must be below 1; got 1.0: a ring whose state never advances is no ring")
        ahead = np.roll(np.eye(states), 1, axis=1)
        sign = np.zeros(states)
        sign[2], sign[3] = 1.0, -1.0
        rewards = {"entered": sign[None] + 0 * ahead, "edges": ahead * sign, "left": sign[:, None] + 0 * ahead}
        reward = rewards[_plain.one_of("reward_on", reward_on, list(rewards))]
        return cls((1 - slip) * ahead + slip * np.eye(states), reward)

    @classmethod
    def chain(
        cls,
        length: int,
        *,
        forward: float = 1.0,
        reward: float = 1.0,
        step_reward: float = 0.0,
        left_reward: float = 0.0,
    ) -> "FiniteMDP":
        """Chain of states 0 … length − 1 with an end: state `length`, behind the last one.

        With forward < 1 a step goes back otherwise, and there is a second end, state `length` + 1, before the first
        state; forward = ½ is the random walk: V_1(s) = (s + 1)/(length + 1) for the default rewards.

        Args:
            length: Number of states that are not ends, at least 1.
            forward: Probability of a step forward, in (0, 1].
            reward: Reward for entering the end behind the last state.
            step_reward: Reward for any step that enters no end.
            left_reward: Reward for entering the end before the first state; needs forward < 1.

        Returns:
            The process, one action, starting in state 0, or in the middle where steps go both ways.
        """
        length, forward = _plain.whole("length", length), timescales.unit_number("forward", forward)
        gains = {"reward": reward, "step_reward": step_reward, "left_reward": left_reward}
        reward, step_reward, left_reward = (_plain.finite(name, gain) for name, gain in gains.items())
        if forward == 0:
            raise ConfigError("forward must be above 0; got 0.0: with no step forward the end is never reached")
        if forward == 1 and left_reward != 0:
            raise ConfigError(f"left_reward={left_reward!r} is never earned with forward=1: pass forward below 1")
        both = forward < 1
        states = length + 1 + both
        transition, entered = np.zeros((states, states)), np.full(states, step_reward)
        for state in range(length):
            transition[state, state + 1] = forward
            transition[state, state - 1 if state else -1] += 1 - forward
        entered[length] = reward
        if both:
            entered[-1] = left_reward
        return cls(transition, entered, terminal=np.arange(states) >= length, start=length // 2 if both else 0)

    @classmethod
    def random(cls, states: int, actions: int, branching: int, seed: int, *, ends: int = 0) -> "FiniteMDP":
        """Random process, also called Garnet: every action leads to a few random states.

        The successors of a state and action are drawn without replacement, their probabilities are the gaps between
        uniform cuts of [0, 1], and the reward of every transition is standard normal.

        Args:
            states: Number of states S.
            actions: Number of actions A.
            branching: Number of possible successors, from 1 to S.
            seed: Seed; the same one gives the same process.
            ends: How many states, the last ones, are terminal, fewer than S.

        Returns:
            The process under the uniform policy, starting in state 0.

        Reference:
            Archibald, McKinnon and Thomas, "On the generation of Markov decision processes", 1995.
        """
        states, actions = _plain.whole("states", states), _plain.whole("actions", actions)
        branching = _plain.whole("branching", branching)
        if branching > states:
            raise ConfigError(f"branching must be at most the number of states, {states}; got {branching}: pass less")
        ends = _plain.whole("ends", ends, least=0)
        if ends >= states:
            raise ConfigError(
                f"ends must be below the number of states, {states}; got {ends}: one must be left to start in"
            )
        rng = np.random.default_rng(_plain.whole("seed", seed, least=0))
        transition = np.zeros((states, actions, states))
        for state in range(states):
            for action in range(actions):
                successors = rng.choice(states, branching, replace=False)
                cuts = np.sort(rng.random(branching - 1))
                transition[state, action, successors] = np.diff(cuts, prepend=0.0, append=1.0)
        reward = rng.normal(size=(states, actions, states))
        return cls(transition, reward, terminal=np.arange(states) >= states - ends)

    @classmethod
    def from_gymnasium(cls, environment: Any, **kwargs: Any) -> "FiniteMDP":
        """Process of a Gymnasium environment that holds its transition table in `P`: FrozenLake, CliffWalking, Taxi.

        States and actions keep their order, counted from 0. A state that every transition enters with `terminated`
        becomes terminal; where others pass through it, as in Taxi, transitions that end lead to one more state, the
        last one. The reward of s, a, s' is the mean over the table's entries. Time limits are no part of the process.

        Args:
            environment: Id such as "FrozenLake-v1", or an environment.
            **kwargs: Keyword arguments for `gymnasium.make`, as in is_slippery=False.

        Returns:
            The process under the uniform policy, with the environment's distribution of first states.

        Raises:
            MissingExtra: Gymnasium is not installed.
            ConfigError: The environment is unknown, or has no transition table that it follows.
            DataError: The table is no probability distribution.
        """
        return cls(**_from_table(*_table(environment, kwargs)))


def check_mdp(mdp: Any) -> None:
    """ConfigError for what is no process."""
    if not isinstance(mdp, FiniteMDP):
        raise ConfigError(f"mdp must be a FiniteMDP; got {type(mdp).__name__}: FiniteMDP(transition, reward) makes one")


def _solve(transition: FloatArray, reward: FloatArray, gamma: float) -> FloatArray:
    """V = (I − γ P)^{−1} R; with γ = 1 over the states from which rewards still come, if these all end."""
    if gamma < 1:
        try:
            return np.asarray(np.linalg.solve(np.eye(len(reward)) - gamma * transition, reward), np.float64)
        except np.linalg.LinAlgError:  # only by rounding
            raise ConfigError(f"gamma={gamma!r} is too close to 1 for float64: pass a smaller discount") from None
    values = np.zeros(len(reward))
    linked = transition > 0
    paying = reaching(linked, reward != 0)
    stuck = paying & ~reaching(linked, ~paying)
    if stuck.any():
        raise ConfigError(
            f"the value at gamma=1 does not converge: from {int(stuck.sum())} of {len(reward)} states, the first being "
            f"{int(stuck.argmax())}, rewards go on for ever; pass discounts below 1, or mark states as terminal"
        )
    values[paying] = np.linalg.solve(np.eye(int(paying.sum())) - transition[np.ix_(paying, paying)], reward[paying])
    return values


def reaching(linked: Any, goal: BoolArray) -> BoolArray:
    """States from which the goal can be reached, the goal included; `linked[s, t]` is above 0 where s leads to t."""
    found = goal.copy()
    while True:
        more = found | (linked @ found > 0)
        if (more == found).all():
            return found
        found = more


# ---------------------------------------------------------------- Gymnasium


def _table(environment: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The transition table of a Gymnasium environment, and its distribution of first states."""
    made = isinstance(environment, str)
    if made:
        if find_spec("gymnasium") is None:
            raise MissingExtra('from_gymnasium needs gymnasium: pip install "tddelta[tabular]"')
        import gymnasium

        with blamed(f"Gymnasium cannot make {environment!r} with {kwargs},"):
            environment = gymnasium.make(environment, **kwargs)
    elif kwargs:
        raise ConfigError(f"{', '.join(kwargs)} cannot be set in an environment that is already made: pass its id")
    plain = getattr(environment, "unwrapped", environment)
    try:
        table, start = getattr(plain, "P", None), getattr(plain, "initial_state_distrib", None)
        if table is None or start is None:
            raise ConfigError(
                f"the environment must hold a transition table P and initial_state_distrib; got "
                f"{type(plain).__name__} without: FrozenLake, CliffWalking and Taxi have them"
            )
        if getattr(plain, "fickle_passenger", False):
            raise ConfigError(
                "Taxi with fickle_passenger=True does not follow its transition table: pass fickle_passenger=False"
            )
        return table, np.array(start, dtype=np.float64)
    finally:
        if made:
            environment.close()


def _from_table(table: Any, start: FloatArray) -> dict[str, Any]:
    """Arguments of a `FiniteMDP` from a transition table of Gymnasium; see `FiniteMDP.from_gymnasium`."""
    order = {state: number for number, state in enumerate(_keys(table))}
    names = _keys(table[next(iter(order))])
    entries: list[tuple[int, int, float, int, float, bool]] = []
    for state, number in order.items():
        if _keys(table[state]) != names:
            raise ConfigError(
                f"every state of the transition table P must have the actions {names}; state {state} has "
                f"{_keys(table[state])}: let those that do nothing lead back to the state"
            )
        for place, action in enumerate(names):
            for probability, after, gain, end in table[state][action]:
                if probability <= 0:
                    continue
                if after not in order:
                    raise ConfigError(
                        f"action {action} of state {state} leads to {after!r}, which is no state of the table P"
                    )
                entries.append((number, place, probability, order[after], gain, bool(end)))
    states = len(order)
    if start.shape != (states,):
        raise ConfigError(f"initial_state_distrib must have one number for each of {states} states; got {start.shape}")
    ended = {after for *_, after, _, end in entries if end}
    passed = {after for *_, after, _, end in entries if not end} | set(np.flatnonzero(start).tolist())
    size = states + bool(ended & passed)  # with one more state for ends in states that are also passed through
    transition, gains = np.zeros((2, size, len(names), size))
    for number, place, probability, after, gain, end in entries:
        target = states if end and after in passed else after
        transition[number, place, target] += probability
        gains[number, place, target] += probability * gain
    terminal = np.isin(np.arange(size), [*(ended - passed), states])
    return {
        "transition": transition,
        "reward": np.divide(gains, transition, out=np.zeros_like(gains), where=transition > 0),
        "terminal": terminal,
        "start": np.append(start, np.zeros(size - states)),
    }


def _keys(table: Any) -> list[Any]:
    """Keys of states, or of the actions of one, in order: spaces of Gymnasium need not start at 0."""
    return sorted(table) if isinstance(table, dict) else list(range(len(table)))


# ---------------------------------------------------------------- arguments of a process


def _transition(value: Any) -> tuple[FloatArray, bool]:
    """Transition probabilities as (S, A, S), and whether they were given as (S, S)."""
    array = numbers("transition", value)
    if array.ndim not in (2, 3) or array.shape[0] != array.shape[-1] or not array.size:
        raise ShapeError(
            f"transition must have shape (S, A, S), or (S, S) for one action; got {array.shape}: "
            "transition[s, a, t] is the probability that action a leads from s to t"
        )
    return (array[:, None, :], True) if array.ndim == 2 else (array, False)


def _terminal(value: Any, states: int) -> BoolArray:
    """Flags of the terminal states, (S,)."""
    if value is None:
        return np.zeros(states, bool)
    array = np.array(array_of("terminal", value))
    if array.dtype != bool or array.shape != (states,):
        raise ShapeError(
            f"terminal must hold one boolean per state, shape ({states},); got {array.dtype} of shape {array.shape}: "
            f"write it as np.isin(np.arange({states}), [states that end an episode])"
        )
    if array.all():
        raise ConfigError("terminal marks every state; an episode needs one to start in: leave one out")
    return array


def _stochastic(name: str, array: FloatArray, skipped: BoolArray) -> FloatArray:
    """Probabilities over the last axis; rows of skipped states are not looked at."""
    checked = ~skipped.reshape(-1, *[1] * (array.ndim - 1))
    place = first_place((array < 0) & checked)
    if place is not None:
        raise DataError(f"{name} must not be negative; got {array[place]:.6g} at {list(place)}: it is a probability")
    sums = array.sum(axis=-1, keepdims=True)
    place = first_place((np.abs(sums - 1) > _ROUNDING) & checked)
    if place is not None:
        advice = " or mark the state as terminal" if name == "transition" and not sums[place] else ""
        raise DataError(
            f"rows of {name} must sum to one; got {sums[place]:.9g} at {list(place[:-1])}: "
            f"divide the row by its sum{advice}"
        )
    return np.asarray(np.divide(array, sums, out=array.copy(), where=checked))


def _reward(value: Any, shape: tuple[int, ...], single: bool) -> FloatArray:
    """Rewards as (S, A, S)."""
    array = numbers("reward", value)
    if array.ndim == 2 and single:
        array = array[:, None, :]
    # Two axes could be (S, A) or (A, S): where S = A nobody would notice.
    fits = array.ndim in (0, 3) or array.shape == shape[-1:]
    fits = fits and all(given in (1, wanted) for given, wanted in zip(array.shape[::-1], shape[::-1], strict=False))
    if not fits:
        raise ShapeError(
            f"reward must broadcast to (S, A, S) = {shape} with three axes; got {np.shape(value)}: "
            "pass reward[:, :, None] for a reward per state and action, reward[:, None, None] per state left, "
            "a vector per state entered, or one number"
        )
    return np.array(np.broadcast_to(array, shape), order="C")  # one layout, so that loops are compiled once


def _policy(value: Any, ends: BoolArray, actions: int) -> FloatArray:
    """Action probabilities as (S, A); terminal states get the uniform ones."""
    states = len(ends)
    uniform = np.full((states, actions), 1 / actions)
    if value is None:
        return uniform
    given = array_of("policy", value)
    if given.shape == (states,) and np.issubdtype(given.dtype, np.integer):
        wrong = np.flatnonzero((given < 0) | (given >= actions))
        if len(wrong):
            raise ConfigError(
                f"policy must name actions from 0 to {actions - 1}; got {given[wrong[0]]} in state {wrong[0]}: "
                "pass one action per state, or probabilities of shape (S, A)"
            )
        array = np.eye(actions)[given]
    else:
        array = numbers("policy", value)
    if array.shape != (states, actions):
        raise ShapeError(
            f"policy must have shape (S, A) = {(states, actions)}, or ({states},) with one whole number per state; "
            f"got {array.shape}: pass the probability of every action in every state"
        )
    return np.where(ends[:, None], uniform, _stochastic("policy", array, ends))


def _start(value: Any, ends: BoolArray) -> FloatArray:
    """Probabilities of the first state, (S,)."""
    states = len(ends)
    array = array_of("start", value)
    if array.shape == () and np.issubdtype(array.dtype, np.integer):
        if not 0 <= array < states:
            raise ConfigError(f"start must be a state from 0 to {states - 1}; got {array}: states count from 0")
        array = np.eye(states)[array]
    else:
        array = numbers("start", value)
        if array.shape != (states,):
            raise ShapeError(
                f"start must be a whole number or have shape (S,) = ({states},); got {value!r:.80}: "
                "pass a state, or the probability of every state"
            )
        array = _stochastic("start", array[None], np.zeros(1, bool))[0]
    if array[ends].any():
        ended = int(np.flatnonzero(ends & (array > 0))[0])
        raise ConfigError(f"an episode cannot start in a terminal state; got start in state {ended}: name another")
    return np.asarray(array)


def _names(value: Any, states: int) -> tuple[str, ...]:
    """One name per state."""
    if value is None:
        return tuple(map(str, range(states)))
    listed = () if isinstance(value, (str, bytes)) or not isinstance(value, Iterable) else tuple(map(str, value))
    if len(listed) != states or len(set(listed)) != states:
        raise ConfigError(
            f"names must be {states} different texts, one per state; got {value!r:.80}: pass a list that names every "
            "state once"
        )
    return listed
