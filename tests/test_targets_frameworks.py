"""One implementation for NumPy, JAX and PyTorch: the same numbers, also compiled, mapped and differentiated."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from targets_cases import assert_same_bytes
from targets_cases import everything as targets_of
from targets_literal import Problem
from tddelta.decomposition import compose, decompose
from tddelta.queries import compose_discount, scale_advantages, value_at
from tddelta.targets import advantages, lambda_targets, n_step_targets, plain_targets, successors
from tddelta.testing import check_targets
from tddelta.timescales import TimeScales

PAGE = Path(__file__).parents[1] / "docs" / "mathematics.md"
LADDER = (0.0, 0.68, 0.9, 0.99, 1.0), (0.3, 0.9, 0.9, 0.5, 1.0), (1, 2, 3, 7, 40)
SHORT = (0.0, 0.9, 1.0), (0.3, 0.9, 0.5), (1, 2, 9)
# Compiles in two thirds of the time; not for tests about bytes.
QUICK = {"compiler_options": {"xla_backend_optimization_level": 0}}
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


def make_problem(shape=(9, 3), ladder=LADDER, durations=False, dtype=np.float64) -> Problem:
    generator = np.random.default_rng(5)
    deltas, next_deltas = generator.normal(size=(2, *shape, len(ladder[0]))).astype(dtype)
    terminated, truncated = generator.random((2, *shape)) < 0.25
    times = generator.uniform(0.1, 3, shape).astype(dtype) if durations else None
    rewards = generator.normal(size=shape).astype(dtype)
    return Problem(*ladder, rewards, deltas, next_deltas, terminated, truncated, times)


def everything(problem):
    final = successors(
        problem.deltas,
        problem.next_deltas[-1],
        terminated=problem.terminated,
        truncated=problem.truncated,
        final_deltas=problem.next_deltas,
    )
    return targets_of(problem) | {"successors": final, "round trip": decompose(compose(problem.deltas))}


def compiled(problem, **options):
    """Everything inside one jit, with the scales static."""

    def run(arrays):
        return everything(replace(problem, **arrays))

    names = ("rewards", "deltas", "next_deltas", "terminated", "truncated", "durations")
    return jax.jit(run, **options)({name: getattr(problem, name) for name in names})


def assert_close(got, wanted, dtype):
    for name, result in wanted.items():
        assert str(got[name].dtype).endswith(dtype), name
        np.testing.assert_allclose(
            np.asarray(got[name]), result, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], err_msg=name
        )


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "durations"), [("float64", False), ("float64", True), ("float32", True)])
def test_jax_gives_numpys_numbers(dtype, durations):
    problem = make_problem(durations=durations, dtype=dtype)
    wanted = everything(problem)
    with jax.enable_x64(dtype == "float64"):
        there = problem.pick(jnp.asarray)
        assert_close(compiled(there, **QUICK), wanted, dtype)
        if dtype == "float64" and durations:
            assert_close(everything(there), wanted, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "ladder"),
    [
        ("float64", LADDER),
        ("float32", ((0.5,), (0.0,), (2,))),
        ("float64", ((0.5, 1.0), (0.5, 0.5), (2, 2))),  # all weights equal
    ],
)
def test_durations_of_one_give_the_same_numbers_in_jax(dtype, ladder):
    with jax.enable_x64(dtype == "float64"):
        problem = make_problem(ladder=ladder, dtype=dtype).pick(jnp.asarray)
        ones = replace(problem, durations=jnp.ones_like(problem.rewards))
        got = compiled(problem)
        wanted = compiled(ones)
        assert_close(got, wanted, dtype)
        if len(ladder[0]) == 1:
            # One scale has one code path, and it is that of the policy's advantage.
            one_path = {
                "bootstrap": got["difference"],
                "difference": (problem.deltas[..., 0] + got["advantages"])[..., None],
            }
            assert_close(got, one_path, dtype)
        if dtype == "float32":
            assert_close(everything(problem), everything(ones), dtype)


def test_vmap_over_streams():
    in_numpy = make_problem(dtype="float32")
    problem = in_numpy.pick(jnp.asarray)

    def stream(rewards, deltas, next_deltas, terminated, truncated):
        options = {"terminated": terminated, "truncated": truncated, "scales": problem.scales}
        arrays = rewards, deltas, next_deltas
        return lambda_targets(*arrays, **options), n_step_targets(*arrays, **options), advantages(*arrays, **options)

    got = jax.jit(jax.vmap(stream, in_axes=1, out_axes=1), **QUICK)(
        *problem.arrays, problem.terminated, problem.truncated
    )
    wanted = everything(in_numpy)
    for result, name in zip(got, ("difference", "n_step_targets", "advantages"), strict=True):
        np.testing.assert_allclose(result, wanted[name], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("value", "durations"), [(np.nan, False), (np.inf, True)])
def test_gradients_do_not_leak_from_terminal_successors(value, durations):
    problem = make_problem(ladder=SHORT, durations=durations, dtype="float32")
    spoilt = np.where(problem.terminated[..., None], np.float32(value), problem.next_deltas)

    def total(next_deltas, deltas, rewards, times):
        there = replace(
            problem.pick(jnp.asarray), next_deltas=next_deltas, deltas=deltas, rewards=rewards, durations=times
        )
        results = everything(there)
        return sum(jnp.sum(results[name] ** 2) for name in results if name != "successors")

    which = (0, 1, 2, 3) if durations else (0, 1, 2)
    gradients = jax.jit(jax.grad(total, argnums=which), **QUICK)
    arguments = (problem.deltas, problem.rewards, problem.durations)
    wanted, got = gradients(problem.next_deltas, *arguments), gradients(spoilt, *arguments)
    for one, other in zip(got, wanted, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert (np.asarray(got[0])[problem.terminated] == 0).all()


NAMES = ("rewards", "deltas", "next_deltas", "durations")


@cache
def finite_differences() -> tuple[Problem, dict[str, np.ndarray]]:
    """A problem and the gradients of `summary`, also in durations that are 1, and of which two sum to 2."""
    problem = replace(make_problem(shape=(3,), ladder=SHORT), durations=np.array([1.0, 1.0, 2.0]))
    step, gradients = 1e-6, {}
    for name in NAMES:
        array = getattr(problem, name)
        gradients[name] = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * step
                ends.append(summary(replace(problem, **{name: moved}), np.sin))
            gradients[name][index] = (ends[0] - ends[1]) / (2 * step)
    return problem, gradients


def summary(problem, sine):
    """One number that depends on every entry of every result."""
    return sum(sine(result).sum() for result in everything(problem).values())


@pytest.mark.slow
def test_gradients_are_those_of_finite_differences():
    problem, wanted = finite_differences()
    with jax.enable_x64(True):
        there = problem.pick(jnp.asarray)
        gradients = jax.jit(jax.grad(lambda arrays: summary(replace(there, **arrays), jnp.sin)), **QUICK)
        got = gradients({name: getattr(there, name) for name in NAMES})
    for name in NAMES:
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_actors_decay_may_be_traced():
    problem = make_problem(dtype="float32").pick(jnp.asarray)

    def policy(decay):
        return advantages(*problem.arrays, **problem.options, trace_decay=decay)

    for decay in (0.0, 0.5, 1.0):
        np.testing.assert_allclose(jax.jit(policy)(decay), policy(decay), rtol=1e-5, atol=1e-5)
    # A decay of 0 has a gradient: the next advantage, where no episode ended.
    gradient = jax.grad(lambda decay: policy(decay)[0].sum())(0.0)
    later = jnp.where(problem.terminated[0] | problem.truncated[0], 0.0, policy(0.0)[1]).sum()
    np.testing.assert_allclose(gradient, later, rtol=1e-5)
    several = jax.vmap(policy)(jnp.array([0.0, 0.9]))
    np.testing.assert_allclose(several[1], policy(0.9), rtol=1e-5, atol=1e-5)


def test_results_have_the_dtype_of_deltas():
    problem = make_problem(ladder=SHORT, dtype="float32").pick(jnp.asarray)
    half = replace(
        problem, deltas=problem.deltas.astype("bfloat16"), next_deltas=problem.next_deltas.astype("bfloat16")
    )
    for name, result in compiled(half, **QUICK).items():
        assert result.dtype == "bfloat16", name


def discounted_end(kind, dtype, reward_dtype=None):
    """First targets and advantages with γ = 0.999, λ = 1: of a reward of 100 at the end, and of 1 in every step."""
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")

    def cast(array, name):
        if kind == "torch":
            return torch.asarray(array).to(getattr(torch, name))
        return {"numpy": np.asarray, "jax": jnp.asarray}[kind](array, name)

    found = []
    for rewards in (100.0 * (np.arange(3000) == 2999), np.ones(400)):
        critic = cast(np.zeros((len(rewards), 1), np.float32), dtype)
        no = cast(np.zeros(len(rewards), bool), "bool")
        given = cast(rewards.astype(np.float32), reward_dtype or dtype), critic, critic
        options = {"terminated": no, "truncated": no, "scales": TimeScales.single(0.999, lam=1.0, n_step=4000)}
        results = lambda_targets(*given, **options), n_step_targets(*given, **options), advantages(*given, **options)
        assert {result.dtype for result in results} == {critic.dtype}
        found += [float(result.reshape(-1)[0]) for result in results]
    return found


@pytest.mark.parametrize("kind", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("reward_dtype", [None, "float32"])
def test_half_precision_keeps_the_discount(kind, dtype, reward_dtype):
    wanted = [4.976] * 3 + [329.8] * 3  # 256 where γ is rounded to 1 and the sum to 8 bits
    np.testing.assert_allclose(discounted_end(kind, dtype, reward_dtype), wanted, rtol=0.01)
    np.testing.assert_allclose(discounted_end(kind, "float32"), wanted, rtol=1e-4)


@pytest.mark.parametrize("default", ["float16", "bfloat16", "float64"])
def test_half_precision_under_autocast_and_other_defaults(torch, default):
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, default))
    try:
        with torch.autocast("cpu", torch.bfloat16):
            for dtype, tolerance in (("bfloat16", 0.01), ("float32", 1e-4)):
                wanted = [4.976] * 3 + [329.8] * 3
                np.testing.assert_allclose(discounted_end("torch", dtype), wanted, rtol=tolerance)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_half_precision_may_overflow_on_the_way_and_takes_a_decay_as_an_array(kind):
    scales = TimeScales(gammas=(0.5, 1.0))
    rewards, no = kind(np.array([6e4, 6e4, -6e4], np.float16)), kind(np.zeros(3, bool))
    critic = kind(np.zeros((3, 2), np.float16))
    flags = {"terminated": no, "truncated": no, "scales": scales}
    assert float(advantages(rewards, critic, critic, **flags, trace_decay=kind(np.float32(1.0)))[0]) == 6e4
    near_one = advantages(rewards, critic, critic, **flags, trace_decay=kind(np.float32(0.99999)))
    assert np.isfinite(np.asarray(near_one)).all()


def test_half_precision_where_components_are_summed(torch):
    scales = TimeScales.halving(0.999, lam=1.0)
    deltas = np.full((2, len(scales)), 1.0 / 3, np.float32)
    no = np.zeros(2, bool)

    def answers(critic, flags):
        wide = [compose(critic)[..., -1], value_at(critic, scales, 0.99), compose_discount(critic, scales, [1.0] * 9)]
        wide.append(scale_advantages(critic[:, 0], critic, critic, terminated=flags, truncated=flags, scales=scales))
        return [np.asarray(one if one.dtype != torch.bfloat16 else one.float(), np.float64) for one in wide]

    for got in (
        answers(deltas.astype(jnp.bfloat16), no),
        answers(jnp.asarray(deltas, jnp.bfloat16), jnp.asarray(no)),
        answers(torch.asarray(deltas).bfloat16(), torch.asarray(no)),
    ):
        for one, wanted in zip(got, answers(deltas.astype(jnp.bfloat16).astype(np.float32), no), strict=True):
            np.testing.assert_allclose(one, wanted, rtol=2**-8)  # one rounding


@pytest.mark.parametrize("kind", [np.int64, np.float64, np.bool_])
def test_rewards_are_cast_to_the_dtype_of_deltas(kind):
    problem = make_problem(dtype="float32")
    rewards = (problem.rewards > 0).astype(kind)
    got = everything(replace(problem, rewards=rewards))
    wanted = everything(replace(problem, rewards=rewards.astype(np.float32)))
    assert_same_bytes(got, wanted)
    assert all(result.dtype == np.float32 for result in got.values())


def test_check_targets_takes_other_frameworks_and_half_precision(torch):
    check_targets(lambda_targets, asarray=jnp.asarray, rollouts=1)
    check_targets(lambda_targets, asarray=torch.asarray, rollouts=3)

    def halved(array):
        return array if array.dtype == bool else array.astype("bfloat16")

    def torch_halved(array):
        return torch.asarray(array).to(torch.bool if array.dtype == bool else torch.bfloat16)

    for asarray in (halved, torch_halved):
        check_targets(lambda_targets, asarray=asarray, rollouts=10)


# PyTorch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("durations", [False, True])
def test_torch_gives_numpys_numbers(torch, dtype, durations):
    problem = make_problem(durations=durations, dtype=dtype)
    assert_close(everything(problem.pick(torch.asarray)), everything(problem), dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_durations_of_one_give_the_same_bytes_in_torch(torch, dtype):
    problem = make_problem(dtype=dtype).pick(torch.asarray)
    assert_same_bytes(everything(problem), everything(replace(problem, durations=torch.ones_like(problem.rewards))))


@pytest.mark.parametrize("durations", [False, True])
def test_gradients_do_not_leak_in_torch(torch, durations):
    problem = make_problem(durations=durations)

    def gradients(next_deltas):
        there = replace(problem, next_deltas=next_deltas).pick(torch.asarray)
        leaves = [there.rewards, there.deltas, there.next_deltas] + ([there.durations] if durations else [])
        for leaf in leaves:
            leaf.requires_grad_(True)
        results = everything(there)
        sum((results[name] ** 2).sum() for name in results if name != "successors").backward()
        return [leaf.grad.numpy() for leaf in leaves]

    spoilt = np.where(problem.terminated[..., None], np.nan, problem.next_deltas)
    for got, wanted in zip(gradients(spoilt), gradients(problem.next_deltas), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


def test_gradients_in_torch_are_those_of_finite_differences(torch):
    problem, wanted = finite_differences()
    there = problem.pick(torch.asarray)
    for name in NAMES:
        getattr(there, name).requires_grad_(True)
    summary(there, torch.sin).backward()
    for name in NAMES:
        np.testing.assert_allclose(getattr(there, name).grad, wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_tensors_stay_on_their_device(torch):
    problem = make_problem(durations=True).pick(torch.asarray).pick(lambda tensor: tensor.to("meta"))
    for name, result in everything(problem).items():
        assert result.device.type == "meta", name


def test_targets_of_traced_discounts_have_the_slope_of_finite_differences():
    """The program of docs/mathematics.md, whose discounts are arrays."""
    program = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(program[1], names)
    data = [np.asarray(array) for array in names["data"]]
    rewards, values, next_values, terminated, truncated = data
    gammas, weights = np.array([0.5, 0.9, 0.99]), np.random.default_rng(1).normal(size=values.shape)
    slope = names["jax"].grad(lambda each: (weights * names["value_targets"](each, 0.9, *names["data"])).sum())(
        names["jnp"].asarray(gammas)
    )

    def by_hand(gamma: float, z: int) -> float:
        one = (array[:, z : z + 1].astype(np.float64) for array in (values, next_values))
        discounts = {"gammas": np.array([gamma]), "trace_decays": np.array([0.9 * gamma])}
        return float(weights[:, z] @ plain_targets(rewards, *one, terminated, truncated, **discounts)[:, 0])

    expected = [(by_hand(gamma + 1e-6, z) - by_hand(gamma - 1e-6, z)) / 2e-6 for z, gamma in enumerate(gammas)]
    assert np.abs(expected).min() > 0.1
    np.testing.assert_allclose(slope, expected, rtol=1e-3)
