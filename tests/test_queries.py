"""Values between the trained scales, other discount functions, stopping, advantages at every scale."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from tddelta.decomposition import compose, decompose
from tddelta.errors import ConfigError, ShapeError
from tddelta.queries import (
    compose_discount,
    discount_fit,
    hyperbolic,
    scale_advantages,
    stopping_horizon,
    value_at,
)
from tddelta.tabular import FiniteMDP
from tddelta.targets import advantages, td_errors
from tddelta.timescales import TimeScales

LADDERS = {
    "to 100": TimeScales.halving(0.99),
    "to 1,000": TimeScales.halving(0.999),
    "doubling to 16": TimeScales.doubling(0.9375),
    "doubling to 200": TimeScales.doubling(0.995),
}
PROCESSES = {
    "ring of 5": lambda: FiniteMDP.ring(),
    "ring of 100": lambda: FiniteMDP.ring(states=100),
    "chain": lambda: FiniteMDP.chain(19),
    "random 1": lambda: FiniteMDP.random(30, 2, 3, seed=1),
    "random 2": lambda: FiniteMDP.random(50, 3, 2, seed=2, ends=2),
}
HALVING = LADDERS["to 100"]


def returns(rewards, gammas):
    """V_γ of every moment of a list of rewards after which nothing comes, (T, len(gammas))."""
    found = np.zeros((len(rewards) + 1, len(gammas)))
    for t in reversed(range(len(rewards))):
        found[t] = rewards[t] + np.asarray(gammas) * found[t + 1]
    return found[:-1]


@pytest.mark.parametrize("process", PROCESSES)
def test_between_trained_horizons_the_error_is_below_one_percent_of_the_values_scale(process):
    mdp = PROCESSES[process]()
    finer = TimeScales.from_horizons([1, 2**0.5, 2, 8**0.5, 4, 8, 16])
    for scales in (*LADDERS.values(), finer):
        horizons = np.geomspace(scales.horizons[0], scales.horizons[-1], 61)[1:-1]
        exact = mdp.exact_values(1 - 1 / horizons)
        found = value_at(mdp.exact_deltas(scales.gammas), scales, list(1 - 1 / horizons))
        error = np.abs(found - exact).max(axis=0) / np.abs(exact).max(axis=0)
        assert error[horizons > (0 if scales is finer else 3)].max() < 0.01
        assert error.max() < 0.03  # between horizons of 1 and 2 steps, where nothing can promise 1 %


def test_two_chains_with_the_same_trained_values_differ_between_horizons_of_one_and_two_steps():
    """An error of 1 % cannot be had there: half of the distance is that on one of the two, for every function of V."""
    scales, gamma, steps = LADDERS["doubling to 16"], 1 - 1 / 1.5, 80
    times = np.arange(steps)
    suffix = np.triu(gamma ** np.maximum(times[None] - times[:, None], 0).astype(float))
    trained = np.array(scales.gammas)[:, None] ** times
    found = linprog(
        np.concatenate([-suffix[0], suffix[0]]),
        A_ub=np.kron(np.eye(2), suffix),
        b_ub=np.ones(2 * steps),  # no state is worth more than 1
        A_eq=np.concatenate([trained, -trained], axis=1),
        b_eq=np.zeros(len(scales)),
    )
    pair = found.x.reshape(2, steps)  # rewards of the two chains, none below 0
    values = [decompose(returns(rewards, scales.gammas)[0]) for rewards in pair]
    np.testing.assert_allclose(*values, atol=1e-9)
    exact = [returns(rewards, [gamma])[0, 0] for rewards in pair]
    assert abs(exact[0] - exact[1]) / 2 > 0.03
    assert value_at(values[0], scales, gamma) == pytest.approx(value_at(values[1], scales, gamma), abs=1e-9)


@pytest.mark.parametrize("ladder", LADDERS)
def test_errors_of_a_critic_are_amplified_little_and_far_horizons_do_not_count(ladder):
    scales = LADDERS[ladder]
    horizons = np.geomspace(scales.horizons[0], scales.horizons[-1], 61)[1:-1]
    weights = value_at(decompose(np.eye(len(scales))), scales, list(1 - 1 / horizons))
    assert np.abs(weights).sum(axis=0).max() < 2.5
    lebesgue = (np.array(scales.horizons)[:, None] * np.abs(weights)).sum(axis=0) / horizons
    assert lebesgue.max() < 3
    for horizon, column in zip(horizons, weights.T, strict=True):
        place = np.searchsorted(scales.horizons, horizon)
        assert not column[: max(0, place - 4)].any()
        assert not column[place + 3 :].any()


def test_trained_discounts_and_constant_rewards_are_exact():
    rng = np.random.default_rng(0)
    deltas = rng.normal(size=(4, 3, 6))
    np.testing.assert_allclose(value_at(deltas, HALVING, list(HALVING.gammas)), compose(deltas), atol=1e-12)
    steady = decompose(2.5 * np.array(HALVING.horizons))
    for horizon in (4, 10.5, 33, 99):
        assert value_at(steady, HALVING, 1 - 1 / horizon) == pytest.approx(2.5 * horizon, rel=1e-9)
    near = value_at(deltas, HALVING, HALVING.gammas[2] + 1e-7)
    np.testing.assert_allclose(near, compose(deltas)[..., 2], atol=1e-4)


def test_shapes_follow_the_components_and_the_discounts():
    deltas = np.ones((4, 3, 6), np.float32)
    assert value_at(deltas, HALVING, 0.95).shape == (4, 3)
    assert value_at(deltas, HALVING, [0.95, 0.98]).shape == (4, 3, 2)
    assert value_at(deltas[0, 0], HALVING, 0.95).shape == ()
    for found in (value_at(deltas, HALVING, 0.95), hyperbolic(deltas, HALVING, k=0.01)):
        assert found.dtype == np.float32
    assert stopping_horizon(deltas, HALVING, 0.1).shape == (4, 3)
    assert stopping_horizon(deltas[0, 0], HALVING, 0.1).shape == ()


def test_outside_the_trained_horizons_it_asks_for_consent():
    deltas = np.ones(6)
    with pytest.raises(
        ConfigError, match=r"horizon of 1000 steps, is outside the trained horizons 3.125 … 100.*extrapolate"
    ):
        value_at(deltas, HALVING, 0.999)
    with pytest.raises(ConfigError, match="outside the trained"):
        value_at(deltas, HALVING, 0.5)
    mdp = FiniteMDP.random(30, 2, 3, seed=1)
    wider = value_at(mdp.exact_deltas(HALVING.gammas), HALVING, 1 - 1 / 120, extrapolate=True)
    np.testing.assert_allclose(wider, mdp.exact_values([1 - 1 / 120])[:, 0], rtol=0.05)
    short = mdp.exact_deltas([0.9])
    np.testing.assert_allclose(value_at(short, TimeScales.single(0.9), 0.8, extrapolate=True), short[:, 0] / 2)


def test_an_undiscounted_scale_is_no_neighbour():
    scales = TimeScales.from_gammas([0.5, 0.75, 1.0])
    deltas = np.array([1.0, 1.0, 3.0])
    assert value_at(deltas, scales, 1.0) == 5
    value_at(deltas, scales, 0.6)
    with pytest.raises(ConfigError, match="beyond the longest finite horizon"):
        value_at(deltas, scales, 0.9, extrapolate=True)
    with pytest.raises(ConfigError, match="beyond the longest finite horizon"):
        value_at(np.ones(6), HALVING, 1, extrapolate=True)
    with pytest.raises(ConfigError, match="must have a discount below 1"):
        value_at(np.ones(1), TimeScales.single(1.0), 0.5)


def test_a_discount_is_a_number_from_0_to_1():
    for gamma in (-0.1, 1.1, float("nan"), "0.9", True):
        with pytest.raises(ConfigError, match=r"gamma must be a number in \[0, 1\]"):
            value_at(np.ones(6), HALVING, [gamma])


def test_components_must_fit_the_scales():
    for question in (
        lambda deltas: value_at(deltas, HALVING, 0.95),
        lambda deltas: compose_discount(deltas, HALVING, np.ones(6)),
        lambda deltas: hyperbolic(deltas, HALVING, 0.01),
        lambda deltas: stopping_horizon(deltas, HALVING, 0.1),
    ):
        with pytest.raises(ShapeError, match=r"one entry for each of the 6 scales; got shape \(6, 4\)"):
            question(np.ones((6, 4)))
        with pytest.raises(ShapeError, match="floating point"):
            question(np.ones(6, int))


def test_a_mixture_by_numbers_is_the_sum_of_values():
    deltas = np.random.default_rng(1).normal(size=(5, 6))
    weights = [0.1, 0, 0.4, -1, 0.2, 0.3]
    np.testing.assert_allclose(compose_discount(deltas, HALVING, weights), compose(deltas) @ weights)
    with pytest.raises(ConfigError, match=r"one per scale, 6; got shape \(2,\)"):
        compose_discount(deltas, HALVING, [1.0, 2.0])
    with pytest.raises(ConfigError, match="finite"):
        compose_discount(deltas, HALVING, [1.0, np.inf, 0, 0, 0, 0])


def test_a_mixture_by_a_density_is_its_integral():
    mdp = FiniteMDP.random(30, 2, 3, seed=1)

    def density(gammas):
        inside = (gammas > 0.7) & (gammas < 0.985)
        return np.where(inside, np.sin((gammas - 0.7) / 0.285 * np.pi) ** 2, 0.0)

    fine = np.linspace(0.7, 0.985, 20_001)
    exact = np.trapezoid(density(fine) * mdp.exact_values(fine[::20]).repeat(20, axis=1)[:, : len(fine)], fine)
    found = compose_discount(mdp.exact_deltas(HALVING.gammas), HALVING, density)
    np.testing.assert_allclose(found, exact, atol=0.01 * np.abs(exact).max())


def test_a_density_outside_the_trained_discounts_is_refused():
    with pytest.raises(ConfigError, match=r"has 63% of its mass outside the trained discounts 0.68 … 0.99"):
        compose_discount(np.ones(6), HALVING, lambda gammas: 100 * gammas**99)
    with pytest.raises(ConfigError, match=r"one finite number for each of \d+ discounts"):
        compose_discount(np.ones(6), HALVING, lambda gammas: 1.0)
    with pytest.raises(ConfigError, match="two trained discounts below 1"):
        compose_discount(np.ones(1), TimeScales.single(0.9), lambda gammas: gammas)


@pytest.mark.parametrize("k", [0.003, 0.01, 0.1])
def test_hyperbolic_values_are_within_the_stated_error(k):
    rewards = np.random.default_rng(2).normal(size=100)
    deltas = decompose(returns(rewards, HALVING.gammas))
    fit = discount_fit(HALVING, lambda t: 1 / (1 + k * t))
    assert fit.steps == 100
    assert fit.error < 0.02
    exact = np.array([np.sum(rewards[t:] / (1 + k * np.arange(100 - t))) for t in range(100)])
    found = hyperbolic(deltas, HALVING, k)
    bounds = np.array([fit.error * np.abs(rewards[t:]).sum() for t in range(100)])
    assert (np.abs(found - exact) <= bounds + 1e-9).all()
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()
    assert fit.amplification == pytest.approx(np.abs(fit.weights).sum())


def test_a_ladder_that_cannot_follow_the_discount_is_refused():
    with pytest.raises(ConfigError, match=r"follows 1/\(1 \+ 1 t\) for 100 steps: it is off by 0.09"):
        hyperbolic(np.ones(6), HALVING, k=1)
    hyperbolic(np.ones(6), HALVING, k=1, tolerance=0.1)
    with pytest.raises(ConfigError, match="k must be above 0"):
        hyperbolic(np.ones(6), HALVING, k=0)
    with pytest.raises(ConfigError, match="steps must be a whole number"):
        hyperbolic(np.ones(6), HALVING, k=0.01, steps=0)
    with pytest.raises(ConfigError, match="one finite number for each of 100 times"):
        discount_fit(HALVING, lambda t: 1.0)


def test_stopping_where_the_rewards_end():
    """Rewards of 1 for 20 steps, then none: V − cost · h has its top where the marginal reward is the cost."""
    scales = TimeScales.halving(0.995)
    rewards = np.zeros(400)
    rewards[:20] = 1
    deltas = decompose(returns(rewards, scales.gammas)[0])
    fine = np.geomspace(scales.horizons[0], scales.horizons[-1], 4000)
    for cost in (0.05, 0.2, 0.5):
        best = fine[np.argmax(returns(rewards, 1 - 1 / fine)[0] - cost * fine)]
        assert stopping_horizon(deltas, scales, cost) == pytest.approx(best, rel=0.1)
    assert stopping_horizon(deltas, scales, 0.0) == np.inf
    assert stopping_horizon(deltas, scales, 1.5) == 0
    with pytest.raises(ConfigError, match="cost must be at least 0"):
        stopping_horizon(deltas, scales, -1)


def test_advantages_of_every_scale_are_those_of_its_value_alone():
    rng = np.random.default_rng(3)
    scales = TimeScales.halving(0.99, lam=0.95, components=3)
    rewards, deltas, following = rng.normal(size=(9, 2)), rng.normal(size=(9, 2, 3)), rng.normal(size=(9, 2, 3))
    flags = {"terminated": rng.random((9, 2)) < 0.2, "truncated": rng.random((9, 2)) < 0.2}
    found = scale_advantages(rewards, deltas, following, scales=scales, **flags)
    np.testing.assert_allclose(found[..., -1], advantages(rewards, deltas, following, scales=scales, **flags))
    errors = np.cumsum(td_errors(rewards, deltas, following, terminated=flags["terminated"], scales=scales), axis=-1)
    for z, decay in enumerate(scales.trace_decays):
        running = np.zeros(2)
        for t in reversed(range(9)):
            running = errors[t, :, z] + decay * ~(flags["terminated"] | flags["truncated"])[t] * running
            np.testing.assert_allclose(found[t, :, z], running)
    with pytest.raises(ConfigError, match="needs trace decays"):
        scale_advantages(rewards, deltas, following, scales=TimeScales.halving(0.99, components=3), **flags)
    with pytest.raises(ShapeError, match="next_deltas must have axes"):
        scale_advantages(rewards, deltas, following[:-1], scales=scales, **flags)


QUESTIONS = {
    "value_at": lambda deltas: value_at(deltas, HALVING, [0.95, 0.9]),
    "density": lambda deltas: compose_discount(deltas, HALVING, lambda g: np.where((g > 0.7) & (g < 0.98), 1.0, 0.0)),
    "hyperbolic": lambda deltas: hyperbolic(deltas, HALVING, 0.01),
    "stopping": lambda deltas: stopping_horizon(deltas, HALVING, 0.2),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_framework_gives_numpys_numbers(question):
    ask = QUESTIONS[question]
    deltas = np.random.default_rng(4).normal(size=(7, 6)).astype(np.float32)
    expected = ask(deltas)
    found = jax.jit(ask)(jnp.asarray(deltas))
    assert isinstance(found, jax.Array)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(jax.vmap(ask)(jnp.asarray(deltas)), expected, rtol=2e-5, atol=2e-5)
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = ask(torch.asarray(deltas))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=2e-5, atol=2e-5)


def test_gradients_are_the_weights():
    fit = discount_fit(HALVING, lambda t: 1 / (1 + 0.01 * t))
    gradient = jax.grad(lambda values: hyperbolic(decompose(values), HALVING, 0.01))(jnp.ones(6))
    np.testing.assert_allclose(gradient, fit.weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("query", "given", "sentence"),
    [
        (value_at, {"gamma": None}, "gamma must be a discount or several; got None"),
        (value_at, {"gamma": "a"}, "gamma must be a discount or several; got 'a'"),
        (hyperbolic, {"k": "a"}, "k must be a plain number.*; got 'a'"),
        (hyperbolic, {"k": np.ones(2)}, "k must be a plain number.*; got .*1.0, 1.0"),
        (stopping_horizon, {"cost": "x"}, "cost must be a plain number.*; got 'x'"),
        (compose_discount, {"weights": "a"}, "one number per scale, 6, or a function"),
    ],
)
def test_what_is_no_number_is_a_sentence(query, given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        query(np.zeros(6), HALVING, **given)
