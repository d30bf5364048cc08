"""Finite Markov decision processes as matrices, with exact values at every time scale."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tddelta import _plain, timescales
from tddelta._naming import blamed
from tddelta.decomposition import decompose
from tddelta.errors import ConfigError, MissingExtra, ShapeError
from tddelta.tabular import _checks
from tddelta.tabular._checks import BoolArray, FloatArray


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

    Attributes:
        transition: Probabilities, shape (S, A, S); terminal states lead to themselves.
        reward: Rewards, shape (S, A, S); 0 in terminal states.
        terminal: Which states end an episode, shape (S,).
        policy: Probabilities of the actions, shape (S, A).
        start: Probabilities of the first state, shape (S,).
        names: Name of every state.

    Raises:
        ShapeError: An array has a shape that does not fit.
        DataError: A probability is negative, a row does not sum to one, or a number is not finite.
        ConfigError: A state or action does not exist, or an episode would start in a terminal state.

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
        probabilities, single = _checks.transition(transition)
        ends = _checks.terminal(terminal, len(probabilities))
        probabilities = _checks.stochastic("transition", probabilities, ends)
        probabilities[ends] = np.eye(len(ends))[ends, None]
        rewards = _checks.reward(reward, probabilities.shape, single)
        if ends.any():
            rewards = np.where(ends[:, None, None], 0.0, rewards)
        self._store(
            transition=probabilities,
            reward=rewards,
            terminal=ends,
            policy=_checks.policy(policy, ends, probabilities.shape[1]),
            start=_checks.start(start, ends),
            names=_checks.names(names, len(ends)),
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
        reward: FloatArray = np.einsum("sa,sat,sat->s", self.policy, self.transition, self.reward)
        return reward

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
        return np.stack([_solve(transition, reward, gamma) for gamma in _checks.discounts(gammas)], axis=-1)

    def exact_deltas(self, gammas: Iterable[float]) -> FloatArray:
        """Components of the exact values, W_0 = V_0 and W_z = V_z − V_{z−1}.

        Args:
            gammas: Discounts in [0, 1], strictly increasing.

        Returns:
            W_z(s), float64, shape (S, Z).

        Raises:
            ConfigError: As for `exact_values`.
        """
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
        """Policy that takes the action of largest value, the lowest index among equals.

        Args:
            action_values: Q(s, a), shape (S, A).

        Returns:
            Probabilities of 0 and 1, shape (S, A), for `with_policy`.

        Raises:
            ShapeError, DataError: The shape is not (S, A), or a value is not finite.
        """
        array = _checks.numbers("action_values", action_values)
        if array.shape != (self.states, self.actions):
            raise ShapeError(
                f"action_values must have shape (S, A) = {(self.states, self.actions)}; got {array.shape}: pass "
                "one value per state and action"
            )
        policy: FloatArray = np.eye(self.actions)[array.argmax(axis=1)]
        return policy

    def with_policy(self, policy: npt.ArrayLike | None) -> "FiniteMDP":
        """Return the same process under another policy; the large arrays are shared.

        Args:
            policy: As for `FiniteMDP`.

        Raises:
            ShapeError, DataError, ConfigError: As for `FiniteMDP`.
        """
        other = object.__new__(type(self))
        other._store(**vars(self) | {"policy": _checks.policy(policy, self.terminal, self.actions)})
        return other

    # ------------------------------------------------------------ well-known processes

    @classmethod
    def ring(
        cls,
        reward_on: Literal["entered", "edges", "left"] = "entered",
        *,
        states: int = 5,
        slip: float = 0.05,
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

        Raises:
            ConfigError: A setting is out of range.

        Reference:
            Romoff et al. 2019, section 6.1; Kearns and Singh 2000.
        """
        states, slip = _plain.whole("states", states, least=4), timescales.unit_number("slip", slip)
        if slip == 1:
            raise ConfigError("slip must be below 1; got 1.0: a ring whose state never advances is no ring")
        ahead = np.roll(np.eye(states), 1, axis=1)
        sign = np.zeros(states)
        sign[2], sign[3] = 1.0, -1.0
        if reward_on == "entered":
            reward = np.broadcast_to(sign, (states, states))
        elif reward_on == "edges":
            reward = ahead * sign
        elif reward_on == "left":
            reward = np.broadcast_to(sign[:, None], (states, states))
        else:
            raise ConfigError(
                f"reward_on must be one of entered, edges, left; got {reward_on!r}: entered is the default"
            )
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

        Raises:
            ConfigError: A setting is out of range.
        """
        length, forward = _plain.whole("length", length), timescales.unit_number("forward", forward)
        reward, step_reward = _checks.number("reward", reward), _checks.number("step_reward", step_reward)
        left_reward = _checks.number("left_reward", left_reward)
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

        Raises:
            ConfigError: A setting is out of range.

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
    """From which states the goal can be reached, the goal included; `linked[s, t]` is above 0 where s leads to t."""
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
    numbers = {state: number for number, state in enumerate(_keys(table))}
    names = _keys(table[next(iter(numbers))])
    entries: list[tuple[int, int, float, int, float, bool]] = []
    for state, number in numbers.items():
        if _keys(table[state]) != names:
            raise ConfigError(
                f"every state of the transition table P must have the actions {names}; state {state} has "
                f"{_keys(table[state])}: let those that do nothing lead back to the state"
            )
        for place, action in enumerate(names):
            for probability, after, gain, end in table[state][action]:
                if probability > 0 and after not in numbers:
                    raise ConfigError(
                        f"action {action} of state {state} leads to {after!r}, which is no state of the table P"
                    )
                if probability > 0:
                    entries.append((number, place, probability, numbers[after], gain, bool(end)))
    states = len(numbers)
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
    """What states, or the actions of one, are called, in order: spaces of Gymnasium need not start at 0."""
    return sorted(table) if isinstance(table, dict) else list(range(len(table)))
