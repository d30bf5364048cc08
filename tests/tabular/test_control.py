"""Control in a table: literal learners, Theorem 1, the values that components become, and optimal policies."""

from functools import partial

import numpy as np
import pytest

from targets_literal import make_scales
from tddelta import TimeScales
from tddelta.tabular import FiniteMDP, add_scale, control

# Six methods, and their loop to compile.
pytestmark = pytest.mark.slow

METHODS = ("sarsa", "expected_sarsa", "q_learning", "n_step_sarsa", "sarsa_lambda", "watkins")
GAMMAS = (0.0, 0.6, 0.9)
PROCESS = FiniteMDP.random(6, 3, 3, seed=5, ends=1)
LIMIT = 9


def literal(method, *, rate, epsilons, seed, steps, table, decays, windows, cuts=True):
    """One seed in plain Python. Components are differences of ordinary learners of Q_z and Q_{z−1}."""
    generator, gammas = np.random.default_rng(seed), np.array(GAMMAS)
    table, visits = table.copy(), np.zeros(table.shape[:2])
    table[PROCESS.terminal] = 0.0

    def draw(probabilities):
        return int(np.searchsorted(np.cumsum(probabilities), generator.random(), side="right"))

    def act(s, epsilon):
        explore, which = generator.random(2)
        return int(which * PROCESS.actions) if explore < epsilon else int(table[s].sum(-1).argmax())

    def begin(epsilon):
        s = draw(PROCESS.start)
        return s, act(s, epsilon)

    def mean_rate(s, a):
        visits[s, a] += 1
        return rate(visits[s, a])

    def window(episode, i, k, gamma, upto, after):
        """Ordinary n-step return of Q_{upto − 1} from step i of the episode."""
        part = episode[i : i + k]
        total = sum(gamma**j * r for j, (_, _, r) in enumerate(part))
        follower = after if i + k >= len(episode) else episode[i + k][:2]
        return total + (0.0 if follower is None else gamma ** len(part) * table[follower][:upto].sum())

    (s, a), past, episode, moved, returns = begin(epsilons[0]), [], [], 0, []
    for t in range(steps):
        epsilon = epsilons[0] + (epsilons[1] - epsilons[0]) * t / (steps - 1)
        x = draw(PROCESS.transition[s, a])
        r, terminated = PROCESS.reward[s, a, x], bool(PROCESS.terminal[x])
        b, best = act(x, epsilon), int(table[x].sum(-1).argmax())
        episode.append((s, a, r))
        ended = terminated or len(episode) == LIMIT
        if method == "n_step_sarsa":
            after = None if terminated else (x, b)
            while moved < (len(episode) if ended else len(episode) + 1 - max(windows)):
                goal = [
                    window(episode, moved, k, GAMMAS[z], z + 1, after)
                    - (window(episode, moved, k, GAMMAS[z - 1], z, after) if z else 0.0)
                    for z, k in enumerate(windows)
                ]
                u, v, _ = episode[moved]
                table[u, v] += mean_rate(u, v) * (goal - table[u, v])
                moved += 1
        else:
            if method in ("sarsa", "sarsa_lambda"):
                then = table[x, b]
            elif method == "expected_sarsa":
                policy = np.full(PROCESS.actions, epsilon / PROCESS.actions)
                policy[best] += 1 - epsilon
                then = policy @ table[x]
            else:
                then = table[x, best]
            then = np.zeros(3) if terminated else np.cumsum(then)
            delta = np.diff(r + gammas * then - np.cumsum(table[s, a]), prepend=0.0)
            past.append((t, s, a, mean_rate(s, a)))
            for i, u, v, alpha in past if method in ("sarsa_lambda", "watkins") else past[-1:]:
                table[u, v] += alpha * np.array(decays) ** (t - i) * delta
            if method == "watkins" and cuts and b != best:
                past = []
        s, a = x, b
        if ended:
            returns.append(sum(r for _, _, r in episode))
            past, episode, moved = [], [], 0
            s, a = begin(epsilon)
    return table, returns


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_what_they_say(method):
    decays, windows = (0.0, 0.5, 0.8), (2, 1, 4)
    start = np.random.default_rng(0).normal(size=(6, 3, 3))
    settings = {
        (0.1, 0.3, 0.2): lambda n: np.array([0.1, 0.3, 0.2]),
        "1/n": lambda n: np.full(3, 1 / n),
        (0.1, "1/n", 0.2): lambda n: np.array([0.1, 1 / n, 0.2]),
    }
    for given, rate in settings.items():
        result = control(
            PROCESS, make_scales(GAMMAS, decays, windows), method=method, step_size=given, epsilon=(0.6, 0.1),
            seeds=[3, 8], steps=150, time_limit=LIMIT, initial_deltas=start,
        )  # fmt: skip
        for n, seed in enumerate(result.seeds):
            options = {"rate": rate, "epsilons": (0.6, 0.1), "seed": seed, "steps": 150, "table": start}
            wanted, returns = literal(method, decays=decays, windows=windows, **options)
            np.testing.assert_allclose(result.deltas[n], wanted, rtol=0, atol=1e-11)
            np.testing.assert_allclose(result.episode_returns[n], returns, rtol=0, atol=1e-12)
            assert {LIMIT} < set(result.episode_lengths[n].tolist())  # cut by the limit, and ended before
            if method == "watkins":
                uncut, _ = literal(method, decays=decays, windows=windows, cuts=False, **options)
                assert np.abs(uncut - wanted).max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_the_sum_is_the_single_learner(method):
    """Theorem 1 for control: equal step sizes, decays and windows act alike, step by step."""
    start = np.random.default_rng(1).normal(size=(6, 3, 3))
    options = {
        "method": method, "step_size": 0.2, "epsilon": 0.3, "seeds": [0, 1], "steps": 400, "time_limit": LIMIT,
    }  # fmt: skip
    many = control(PROCESS, make_scales(GAMMAS, (0.5,) * 3, (3,) * 3), initial_deltas=start, **options)
    one = make_scales(GAMMAS[-1:], (0.5,), (3,))
    single = control(PROCESS, one, initial_deltas=start.sum(-1, keepdims=True), **options)
    np.testing.assert_allclose(many.action_values[..., -1], single.action_values[..., 0], rtol=0, atol=1e-12)
    for mine, theirs in zip(many.episode_returns, single.episode_returns, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_windows_longer_than_the_data():
    longest = (make_scales(GAMMAS, None, (2, 1, steps)) for steps in (101, 10**12))
    one, other = (control(PROCESS, scales, method="n_step_sarsa", steps=100, seeds=2).deltas for scales in longest)
    np.testing.assert_array_equal(one, other)
    assert one[1].any()


def test_a_step_size_that_is_too_large_diverges_silently():
    for method in METHODS:  # warnings are errors here
        lost = control(PROCESS, make_scales(GAMMAS, (0.5,) * 3, (3,) * 3), method=method, step_size=1e9, steps=500)
        assert not np.isfinite(lost.action_values).all()


def test_components_become_values_of_the_one_policy_that_the_sum_chooses():
    """A maximum per component would give each scale a policy of its own: here the short one would take the 1."""
    # state 0: action 0 ends with reward 1; action 1 goes on to states 1 and 2, and ends with reward 3
    transition = np.zeros((4, 2, 4))
    transition[0, 0, 3] = transition[0, 1, 1] = transition[1, :, 2] = transition[2, :, 3] = transition[3, :, 3] = 1
    reward = np.zeros((4, 2, 4))
    reward[0, 0, 3], reward[2, :, 3] = 1.0, 3.0
    fork = FiniteMDP(transition, reward, terminal=np.arange(4) == 3)
    scales = make_scales((0.3, 0.9), (0.2, 0.2), (2, 2))
    for method in ("q_learning", "watkins"):
        result = control(fork, scales, method=method, step_size=0.3, epsilon=0.5, steps=4000)
        assert result.policy[0, 0] == 1
        np.testing.assert_allclose(result.action_values[0, 0, 0], [1.0, 1.0], rtol=0, atol=1e-9)
        np.testing.assert_allclose(result.action_values[0, 0, 1], [0.3**2 * 3, 0.9**2 * 3], rtol=0, atol=1e-9)
        assert result.start_values[0] == pytest.approx(0.9**2 * 3) == result.optimal_start_value


@pytest.mark.parametrize("method", METHODS)
def test_among_equals_the_first_action_is_taken(method):
    # All rewards are 0, so that all actions stay equal; the first one ends the episode, the others stay.
    transition = np.array([[[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0]] * 3])
    door = FiniteMDP(transition, 0.0, terminal=[False, True])
    result = control(door, make_scales(GAMMAS, (0.0, 0.5, 0.8), (2, 1, 4)), method=method, epsilon=0.0, steps=50)
    np.testing.assert_array_equal(result.episode_lengths[0], np.ones(50))
    assert (result.policy == 0).all()


def test_neither_threads_nor_company_change_a_byte():
    scales = make_scales(GAMMAS, (0.0, 0.5, 0.8), (2, 1, 4))
    for method in METHODS:
        run = partial(control, PROCESS, scales, method=method, steps=100, time_limit=LIMIT)
        together = run(seeds=[3, 7, 4], threads=2).deltas
        np.testing.assert_array_equal(together, run(seeds=[3, 7, 4], threads=1).deltas)
        np.testing.assert_array_equal(together[1], run(seeds=[7]).deltas[0])


def test_a_policy_that_need_not_end_has_no_value_at_discount_one():
    # Action 0 stays for −1, action 1 ends for −1: at the start all are equal, and the first one never ends.
    transition = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    stay = FiniteMDP(transition, -1.0, terminal=[False, True])
    scales = make_scales((0.5, 1.0))
    table = np.zeros((2, 2, 2))
    table[0, 0] = 1.0
    lost = control(stay, scales, method="q_learning", steps=1, step_size=1e-9, epsilon=0.0, initial_deltas=table)
    assert np.isnan(lost.start_values[0]) and lost.optimal_start_value == -1
    found = control(stay, scales, method="q_learning", steps=500, epsilon=0.5)
    assert found.start_values[0] == -1 and repr(found) == "ControlResult(1 seeds, 2 states, 2 actions, 2 scales)"


def test_a_ladder_grows_between_two_calls():
    first = control(PROCESS, make_scales((0.5, 0.9)), steps=500, time_limit=LIMIT)
    scales, deltas = add_scale(first.scales, first.deltas, 0.97)
    then = control(PROCESS, scales, steps=1, step_size=1e-12, initial_deltas=deltas, time_limit=LIMIT)
    np.testing.assert_array_equal(then.policy, first.policy)


# On-policy methods must stop exploring in the end, slowly and with small steps: a fall from the cliff is remembered
# long by an action that is hardly tried again. Each setting: step size, ε, steps, and what all values begin with.
SETTINGS = {
    "CliffWalking-v1": [(0.0005, (0.003, 0.0), 2_000_000, -15.0)],
    "FrozenLake-v1": [(0.08, (1.0, 0.0), 1_000_000, 0.0), (0.02, (0.1, 0.0), 2_000_000, None)],
    "Taxi-v4": [(0.05, (0.3, 0.0), 4_000_000, 0.0)],
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("environment", SETTINGS)
def test_the_best_policy_of_toy_text(environment, method):
    pytest.importorskip("gymnasium")
    process = FiniteMDP.from_gymnasium(environment)
    scales = TimeScales.doubling(0.99, lam=0.5, n_step=2)
    deltas = None
    for step_size, epsilon, steps, begin in SETTINGS[environment]:
        if begin is not None:
            deltas = np.zeros((process.states, process.actions, len(scales)))
            deltas[..., -1] = begin
        result = control(
            process, scales, method=method, step_size=step_size, epsilon=epsilon, seeds=[10, 11], steps=steps,
            initial_deltas=deltas,
        )  # fmt: skip
        deltas = result.deltas
    np.testing.assert_allclose(result.start_values, result.optimal_start_value, rtol=1e-9)


def test_the_name_is_the_function_whatever_was_imported_first():
    import tddelta.tabular

    names = {}
    exec("from tddelta.tabular import *", names)
    assert names["control"] is control and tddelta.tabular.control is control
