"""What `evaluate` and `control` refuse, and what they say."""

from functools import partial

import numpy as np
import pytest

from targets_literal import make_scales
from tddelta import ConfigError, DataError, ShapeError, TimeScales
from tddelta.tabular import FiniteMDP, TabularResult, Trajectory, control, evaluate, sample

PROCESS = FiniteMDP.chain(3)
SCALES = make_scales((0.5, 0.9), (0.4, 0.4), (2, 3))
BARE = TimeScales.from_gammas([0.5, 0.9])
STEPS = sample(PROCESS, 6, [0])

LONG = make_scales((0.5, 0.9), (0.4, 0.4), (2, 10**12))
RAGGED = [[0.1, 0.2], [0.3]]

run = partial(evaluate, PROCESS, SCALES)


def result(states):
    """What an earlier call might have returned; calling it here would compile its loop whenever tests are collected."""
    return TabularResult(
        scales=SCALES,
        deltas=np.zeros((1, 1, states, 2)),
        rms_error=np.zeros((1, 1)),
        abs_error=np.zeros((1, 1)),
        step_sizes=np.full((1, 2), 0.1),
        seeds=(0,),
        exact=np.zeros((states, 2)),
        visits=np.ones((1, states), np.int64),
        weights=None if states == PROCESS.states else np.zeros((1, 1, 2, 2)),
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(run, method="n_steps"), "method must be .* got 'n_steps': did you mean 'n_step'"),
        (partial(evaluate, "ring", SCALES), "mdp must be a FiniteMDP; got str"),
        (partial(evaluate, PROCESS, 0.9), "scales must name time scales; got 0.9"),
        (partial(evaluate, PROCESS, (0.5, 0.9)), "method 'n_step' needs scales with n_steps; these have none"),
        (partial(evaluate, PROCESS, BARE), "method 'n_step' needs scales with n_steps; these have none: .* n_step=16"),
        (partial(evaluate, PROCESS, BARE, method="traces"), "method 'traces' needs scales with trace_decays; .* lam="),
        (partial(run, step_sizes=0.0), "a step size must be a number above 0 or .* got 0.0: pass"),
        (
            partial(run, step_sizes=[(0.1, 0.2, 0.3)]),
            r"for each of the 2 scales; got \(0.1, 0.2, 0.3\): .* a tuple of 2",
        ),
        (partial(run, step_sizes=["n"]), "got 'n': pass, say, 0.1"),
        (partial(run, step_sizes=[]), "step_sizes must name at least one; got none"),
        (partial(run, step_sizes=[True]), "got True: pass, say, 0.1"),
        (partial(run, step_sizes=[None]), "got None: pass, say, 0.1"),
        (partial(run, step_sizes=np.array(np.inf)), "a step size must be a number above 0 .* got inf"),
        (partial(run, step_sizes=RAGGED), r"for each of the 2 scales; got \[0.3\]: pass, say, 0.1"),
        (partial(run, step_sizes=[RAGGED]), r"got \[\[0.1, 0.2\], \[0.3\]\]: pass, say, 0.1"),
        (
            partial(run, step_sizes=[(0.1, "1/n")]),
            "method 'n_step' must have step size '1/n' for all .*; got a mix: pass",
        ),
        (partial(run, seeds=[]), r"seeds must be whole numbers >= 0, at least one; got \[\]"),
        (partial(run, seeds=[-1]), "seeds must be whole numbers >= 0"),
        (partial(run, seeds=0), "at least one; got 0: pass a list of them, or a number N >= 1 for the seeds 0 to N-1"),
        (partial(control, PROCESS, SCALES, seeds=-1), "seeds must be whole numbers >= 0, at least one; got -1"),
        (partial(run, steps=0), "steps must be a whole number of at least 1; got 0"),
        (partial(run, record=(10, 5)), r"record must be 'final', 'curve' or increasing .* up to 1000; got \(10, 5\)"),
        (partial(run, record=(2000,)), "up to 1000"),
        (partial(run, record="all"), "got 'all'"),
        (partial(run, record=np.array([10, 5])), r"increasing numbers of steps up to 1000; got array\(\[10,  5\]\)"),
        (
            partial(evaluate, PROCESS, LONG, method="phased"),
            "a phase must hold at most 200,000,000 steps; got 4 states x 1",
        ),
        (partial(run, chunk=5), "chunk has no meaning for method 'n_step'; got 5: it does not learn offline"),
        (partial(run, method="lambda_return", chunk=0), "chunk must be a whole number of at least 1; got 0"),
        (partial(run, trajectories=5), "trajectories has no meaning for method 'n_step'; got 5: 'phased' samples"),
        (partial(run, method="phased", time_limit=5), "time_limit has no meaning for method 'phased'; got 5"),
        (partial(run, method="phased", trajectory=STEPS), "trajectory has no meaning for method 'phased'"),
        (partial(run, trajectory=STEPS, steps=6), "steps has no meaning for method 'n_step'; got 6: the trajectory is"),
        (partial(run, features=np.eye(4)), "features has no meaning for method 'n_step'"),
        (partial(run, method="linear"), r"method 'linear' needs features=, shape \(S, F\); got None: one_hot"),
        (partial(run, threads=0), "threads must be a whole number of at least 1; got 0"),
        (
            partial(run, initial_deltas=result(4), step_sizes="1/n"),
            "method 'n_step' cannot go on with step sizes '1/n'",
        ),
        (
            partial(control, PROCESS, SCALES, method="sarsa_max"),
            "one of sarsa, .* got 'sarsa_max': did you mean 'sarsa'",
        ),
        (partial(control, "ring", SCALES), "mdp must be a FiniteMDP; got str"),
        (partial(control, PROCESS, SCALES, step_size=(0.1, 0.2, 0.3)), r"each of the 2 scales; got \(0.1, 0.2, 0.3\)"),
        (partial(control, PROCESS, SCALES, epsilon=1.5), r"epsilon must be in \[0, 1\]; got 1.5"),
        (partial(control, PROCESS, SCALES, epsilon=(0.1, 0.2, 0.3)), r"a pair \(first, last\)"),
        (partial(control, PROCESS, BARE, method="watkins"), "method 'watkins' needs scales with trace_decays"),
        (partial(control, PROCESS, BARE, method="n_step_sarsa"), "method 'n_step_sarsa' needs scales with n_steps"),
        (partial(control, FiniteMDP.ring(), make_scales((0.5, 1.0))), "at gamma=1 does not converge"),
    ],
)
def test_settings(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(run, method="td0", features=np.eye(3)), r"one row for each of the 4 states; got float64 of"),
        (
            partial(run, method="td0", features=[*RAGGED, [1], [2]]),
            "features must be an array of numbers; got .* equal",
        ),
        (
            partial(run, initial_deltas=RAGGED),
            "initial_deltas must be an array of numbers; got .* lists of equal length",
        ),
        (partial(control, PROCESS, SCALES, initial_deltas=RAGGED), "initial_deltas must be an array of numbers; got"),
        (
            partial(run, trajectory=STEPS._replace(rewards=RAGGED)),
            "rewards of the trajectory must be an array of numbers",
        ),
        (
            partial(run, method="td0", features=np.ones((4, 2)), initial_deltas=result(5)),
            "initial_deltas must be of the same process, with 4 states; got a result with 5: pass its deltas",
        ),
        (partial(run, initial_deltas=np.zeros((4, 3))), r"initial_deltas must have shape \(states, scales\) = \(4, 2"),
        (
            partial(run, method="td0", features=np.ones((4, 5)), initial_deltas=np.zeros((4, 2))),
            r"\(features, scales\) = \(5, 2\)",
        ),
        (partial(run, trajectory=STEPS._replace(rewards=np.zeros((1, 5)))), r"must all have shape \(T,\) or \(N, T\)"),
        (partial(run, trajectory=STEPS._replace(states=STEPS.states / 2)), "states must be whole numbers; got float64"),
        (partial(run, trajectory=STEPS._replace(terminated=STEPS.states)), "terminated and truncated must be boolean"),
        (partial(control, PROCESS, SCALES, initial_deltas=np.zeros((4, 2))), r"initial_deltas must have shape \(S, A"),
        (partial(run, method=lambda *arrays, **options: arrays[0], steps=5), r"targets of shape .* = \(3, 1, 2\); got"),
    ],
)
def test_shapes(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


def stuck(rewards, deltas, next_deltas, **options):
    raise RuntimeError("the valve is stuck\nin detail")


def test_what_a_target_function_raises_is_a_sentence_with_its_place():
    place = r"\(.*test_arguments.py, line \d+, in stuck\)$"
    sentence = rf"^the target function .*:stuck raised RuntimeError: the valve is stuck {place}"
    with pytest.raises(ConfigError, match=sentence) as caught:
        run(method=stuck, steps=5)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("step_size", [np.float32(0.5), np.int64(1), np.array(0.25), 1])
def test_a_step_size_is_any_number(step_size):
    given = run(method="td0", step_sizes=step_size, steps=4)
    np.testing.assert_array_equal(given.step_sizes, [[float(step_size)] * 2])
    np.testing.assert_array_equal(given.deltas, run(method="td0", step_sizes=[float(step_size)], steps=4).deltas)


def test_a_number_of_seeds_means_those_below_it():
    assert run(method="td0", seeds=3, steps=4).seeds == (0, 1, 2)
    assert run(method="td0", seeds=np.int64(2), steps=4).seeds == (0, 1)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"states": np.array([[0, 1, 9, 0, 1, 2]])}, "states must be between 0 and 3; got 9 at step 2 of stream 0"),
        ({"next_states": np.array([[1, 2, 3, 1, -1, 3]])}, "next_states must be between 0 and 3; got -1 at step 4"),
        ({"states": np.array([[0, 1, 2, 0, 0, 2]])}, "got state 0 after next state 1 at step 3 of stream 0"),
        ({"terminated": np.zeros((1, 6), bool), "truncated": STEPS.terminated}, "goes on in one at step 2 of stream 0"),
    ],
)
def test_data(broken, message):
    steps = STEPS._replace(**broken)
    with pytest.raises(DataError, match=message):
        run(trajectory=steps)


def test_features_must_be_finite():
    features = np.eye(4)
    features[2, 1] = np.inf
    with pytest.raises(DataError, match=r"features must be finite; got inf at \[2, 1\]"):
        run(method="td0", features=features)


def test_a_stream_alone_is_enough():
    alone = Trajectory(*(field[0] for field in STEPS))
    np.testing.assert_array_equal(run(trajectory=alone).deltas, run(trajectory=STEPS).deltas)


def test_loops_compile_where_no_cache_can_be_written(monkeypatch):
    from numba.core import caching

    from tddelta.tabular.loops import compiled

    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert compiled(lambda x: x + 1)(1) == 2
