"""Golden cases, and small numbers that people who do this job checked by hand."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from targets_literal import make_scales
from tddelta.decomposition import compose
from tddelta.targets import advantages, lambda_targets, n_step_targets, successors, td_errors
from tddelta.timescales import TimeScales

CASES = json.loads((Path(__file__).parent / "data" / "targets.json").read_text(encoding="utf-8"))
NO, YES = False, True


def results(arrays, flags, scales):
    """Results that the golden cases know."""
    return {
        "td_errors": td_errors(*arrays, terminated=flags["terminated"], scales=scales),
        "n_step_targets": n_step_targets(*arrays, **flags, scales=scales),
        "lambda_targets_bootstrap": lambda_targets(*arrays, **flags, scales=scales, form="bootstrap"),
        "lambda_targets_difference": lambda_targets(*arrays, **flags, scales=scales, form="difference"),
        "advantages": advantages(*arrays, **flags, scales=scales),
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["note"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("framework", ["numpy", "jax", "torch"])
def test_golden(framework, dtype, tolerance, case):
    scales = make_scales(case["gammas"], tuple(case["trace_decays"]), tuple(case["n_steps"]))
    arrays = [np.array(case[name], dtype=dtype) for name in ("rewards", "deltas", "next_deltas")]
    flags = {name: np.array(case[name]) for name in ("terminated", "truncated")}
    if framework == "numpy":
        got = results(arrays, flags, scales)
    elif framework == "jax":
        # Unoptimised, it compiles in two thirds of the time.
        options = {"xla_backend_optimization_level": 0}
        with jax.enable_x64(dtype == "float64"):
            got = jax.jit(results, static_argnums=2, compiler_options=options)(arrays, flags, scales)
    else:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        got = results(*jax.tree.map(torch.asarray, (arrays, flags)), scales)
    for name, result in got.items():
        assert str(result.dtype).endswith(dtype), name
        np.testing.assert_allclose(result, case[name], rtol=tolerance, atol=tolerance, err_msg=name)


def gae(rewards, values, next_values, terminated=None, truncated=None, gamma=0.9, lam=0.8):
    """Ordinary advantages of one stream."""
    no = [NO] * len(rewards)
    return advantages(
        np.array(rewards, dtype=float),
        np.array(values, dtype=float)[:, None],
        np.array(next_values, dtype=float)[:, None],
        terminated=np.array(terminated or no),
        truncated=np.array(truncated or no),
        scales=TimeScales.single(gamma, lam=lam),
    )


@pytest.mark.parametrize(
    ("arrays", "options", "wanted"),
    [
        # B01: flags belong to the transition; one step early or late the first advantages were 0.5 and 1.893.
        (([1, 1, 1], [0.5, 0.5, 0.5], [0.5, 0.5, 2]), {"terminated": [NO, YES, NO]}, [1.31, 0.5, 2.3]),
        # B03: a terminal value never counts; the exact first advantage is 1.01714975.
        (([1] * 3, [2] * 3, [2] * 3), {"terminated": [NO, NO, YES], "gamma": 0.99, "lam": 0.95}, [1.01715, 0.0395, -1]),
        # B06: the last sample bootstraps.
        (([1, 1], [0, 0], [0, 0]), {"gamma": 1.0, "lam": 1.0}, [2, 1]),
        (([1, 1], [0, 0], [0, 10]), {"gamma": 1.0, "lam": 1.0}, [12, 11]),
        # B24: discount one with an end.
        (([1] * 3, [0] * 3, [0] * 3), {"terminated": [NO, NO, YES], "gamma": 1, "lam": 1}, [3, 2, 1]),
    ],
)
def test_ordinary_advantages_by_hand(arrays, options, wanted):
    np.testing.assert_allclose(gae(*arrays, **options), wanted, rtol=1e-6)


def test_b02_the_last_step_does_not_swap_current_and_next():
    scales = TimeScales.from_gammas([0.5, 0.9], lam=0.9)
    no = np.array([NO])
    arrays = np.zeros(1), np.array([[1.0, 0.0]]), np.array([[3.0, 0.0]])
    got = lambda_targets(*arrays, terminated=no, truncated=no, scales=scales)
    np.testing.assert_allclose(got, [[1.5, 1.2]])  # swapped: 0.4


def test_b08_a_time_limit_bootstraps_and_cuts_the_trace():
    deltas = np.array([[10.0], [10.0], [4.0]])
    finals = np.array([[0.0], [10.0], [0.0]])
    no, cut = np.array([NO, NO, NO]), np.array([NO, YES, NO])
    next_deltas = successors(deltas, np.array([4.0]), terminated=no, truncated=cut, final_deltas=finals)
    got = gae([1, 1, 1], deltas[:, 0], next_deltas[:, 0], truncated=[NO, YES, NO], lam=0.95)
    np.testing.assert_allclose(got, [0, 0, 0.6], atol=1e-12)


def test_b09_each_component_bootstraps_itself():
    scales = TimeScales.from_gammas([0.5, 0.9], lam=0.9, n_step=3)
    arrays = np.ones(1), np.zeros((1, 2)), np.array([[2.0, 8.0]])
    options = {"terminated": np.array([NO]), "truncated": np.array([YES]), "scales": scales}
    for got in (lambda_targets(*arrays, **options), n_step_targets(*arrays, **options)):
        np.testing.assert_allclose(got, [[2.0, 8.0]])  # folded into the reward: (10, 0)


def test_b19_the_exponents_of_an_n_step_target():
    no = np.array([NO, NO])
    single = TimeScales.single(0.5, n_step=2)
    next_deltas = np.array([[0.0], [10.0]])
    got = n_step_targets(np.ones(2), np.zeros((2, 1)), next_deltas, terminated=no, truncated=no, scales=single)
    np.testing.assert_allclose(got[0], 4.0)  # wrong exponent: 6.5
    two = TimeScales((0.5, 0.9), n_steps=(2, 2))
    next_deltas = np.array([[0.0, 0.0], [2.0, 8.0]])
    got = n_step_targets(np.array([1.0, 2.0]), next_deltas, next_deltas, terminated=no, truncated=no, scales=two)
    np.testing.assert_allclose(got[0], [2.5, 8.4])
    np.testing.assert_allclose(got[0].sum(), 1 + 0.9 * 2 + 0.81 * 10)


@pytest.mark.parametrize(("flag", "wanted"), [("terminated", [2.75, 3.5, 3.0]), ("truncated", [3.75, 5.5, 7.0])])
def test_b20_windows_end_with_the_episode(flag, wanted):
    """The rewards of another episode follow; they must not enter."""
    flags = {name: np.array([NO, NO, name == flag, NO]) for name in ("terminated", "truncated")}
    got = n_step_targets(
        np.array([1.0, 2.0, 3.0, 100.0]),
        np.zeros((4, 1)),
        np.array([[50.0], [50.0], [8.0], [50.0]]),
        **flags,
        scales=TimeScales.single(0.5, n_step=3),
    )
    np.testing.assert_allclose(got[:3, 0], wanted)


@pytest.mark.parametrize(
    ("gammas", "wanted"),
    [((0.5, 0.9), [[1.58, 0.172], [1.5, 0.1]]), ((0.0, 0.9), [[0.72, 1.032], [1.0, 0.6]])],
)
def test_b23_matched_decays_exceed_the_small_discounts(gammas, wanted):
    """λ_0 = .72/.5 > 1, and .72/0 is never computed. The advantages of the components sum to those of V = 4."""
    scales = make_scales(gammas, (0.72, 0.72))
    no, critic = np.array([NO, NO]), np.full((2, 2), [1.0, 3.0])
    arrays = np.array([1.0, 2.0]), critic, critic
    heads = lambda_targets(*arrays, terminated=no, truncated=no, scales=scales) - critic
    np.testing.assert_allclose(heads, wanted)
    np.testing.assert_allclose(heads.sum(-1), [1.752, 1.6])
    np.testing.assert_allclose(advantages(*arrays, terminated=no, truncated=no, scales=scales), [1.752, 1.6])


def test_b25_long_horizons_keep_their_digits_in_single_precision():
    """Exact components of constant reward are their own targets; gammas and their differences stay double."""
    gammas = (0.0, 0.5, 0.75, 0.875, 0.9375, 0.999999)
    values = 1 / (1 - np.array(gammas))
    deltas = np.diff(values, prepend=0.0).astype(np.float32)[None]
    no = np.array([NO])
    got = td_errors(np.ones(1, np.float32), deltas, deltas, terminated=no, scales=TimeScales(gammas))
    # The weights (γ_z − γ_{z−1}) V_{z−1} of the small components are exact here, though the last V is a million.
    np.testing.assert_array_equal(got[0, :5], 0.0)
    np.testing.assert_allclose(got[0, 5], 0.0, atol=1e6 * np.finfo(np.float32).eps)
    np.testing.assert_array_equal(compose(deltas)[0, :5], [1, 2, 4, 8, 16])


def test_durations_are_elapsed_time():
    """Two steps of 2 and ½ units: the second reward is discounted by γ^2, the bootstrap by γ^{2.5}."""
    scales, no = TimeScales((0.81,), (0.81,), (2,)), np.array([NO, NO])
    arrays = np.array([1.0, 2.0]), np.zeros((2, 1)), np.array([[0.0], [4.0]])
    options = {"terminated": no, "truncated": no, "scales": scales, "durations": np.array([2.0, 0.5])}
    wanted = 1 + 0.81**2 * 2 + 0.81**2.5 * 4
    np.testing.assert_allclose(n_step_targets(*arrays, **options)[0, 0], wanted)
    np.testing.assert_allclose(lambda_targets(*arrays, **options)[0, 0], wanted)


def test_actor_decay_is_apart_from_the_critics_traces():
    arrays = np.array([1.0, 2.0]), np.zeros((2, 6)), np.zeros((2, 6))
    no = np.array([NO, NO])
    results = [
        advantages(*arrays, terminated=no, truncated=no, scales=TimeScales.halving(0.99, lam=0.95, rule=rule))
        for rule in ("capped", "constant", "proportional")
    ]
    given = advantages(*arrays, terminated=no, truncated=no, scales=TimeScales.halving(0.99), trace_decay=0.95 * 0.99)
    for result in results:
        np.testing.assert_allclose(result, given, rtol=1e-12)
    np.testing.assert_allclose(given, [1 + 0.95 * 0.99 * 2, 2])
