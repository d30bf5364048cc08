"""Arguments that `evaluate` and `control` refuse, and what they say."""

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
PAIRS = {"method": "td0", "features": np.ones((4, 2))}

run = partial(evaluate, PROCESS, SCALES)


def broken(truncated=(False, False, True, False, False, True), **fields):
    """The steps with other fields; episodes are cut where they ended."""
    return STEPS._replace(
        truncated=np.array([truncated]), **{name: np.array([field]) for name, field in fields.items()}
    )


def result(states, seeds=1):
    """A result as of an earlier call; calling it here would compile its loop whenever tests are collected."""
    return TabularResult(
        scales=SCALES,
        deltas=np.zeros((1, seeds, states, 2)),
        rms_error=np.zeros((1, seeds)),
        abs_error=np.zeros((1, seeds)),
        step_sizes=np.full((1, 2), 0.1),
        seeds=tuple(range(seeds)),
        exact=np.zeros((states, 2)),
        visits=np.ones((seeds, states), np.int64),
        weights=None if states == PROCESS.states else np.zeros((1, seeds, 2, 2)),
    )


SETTINGS = [
    ({"method": "n_steps"}, "method must be .* got 'n_steps': did you mean 'n_step'"),
    ({"mdp": "ring"}, "mdp must be a FiniteMDP; got str"),
    ({"scales": 0.9}, "scales must name time scales; got 0.9"),
    ({"scales": (0.5, 0.9)}, "method 'n_step' needs n-step windows; these scales have none"),
    ({"scales": BARE}, "method 'n_step' needs n-step windows; these scales have none: .* n_step=16"),
    ({"mdp": FiniteMDP.ring(), "scales": make_scales((0.5, 1.0), None, (1, 1))}, "at gamma=1 does not converge"),
    ({"scales": BARE, "method": "traces"}, "method 'traces' needs trace decays; .* lam="),
    ({"step_sizes": 0.0}, "a step size must be a number above 0 or .* got 0.0: pass"),
    ({"step_sizes": [(0.1, 0.2, 0.3)]}, r"of the 2 scales; got \(0.1, 0.2, 0.3\): .* a tuple of 2"),
    ({"step_sizes": ["n"]}, "got 'n': pass, say, 0.1"),
    ({"step_sizes": []}, "step_sizes must name at least one; got none"),
    ({"step_sizes": [True]}, "got True: pass, say, 0.1"),
    ({"step_sizes": [None]}, "got None: pass, say, 0.1"),
    ({"step_sizes": np.array(np.inf)}, "a step size must be a number above 0 .* got inf"),
    ({"step_sizes": RAGGED}, r"for each of the 2 scales; got \[0.3\]: pass, say, 0.1"),
    ({"step_sizes": [RAGGED]}, r"got \[\[0.1, 0.2\], \[0.3\]\]: pass, say, 0.1"),
    ({"step_sizes": [(0.1, "1/n")]}, "must have step size '1/n' for all .*; got a mix: pass"),
    ({"seeds": []}, r"seeds must be whole numbers >= 0, at least one; got \[\]"),
    ({"seeds": [-1]}, "seeds must be whole numbers >= 0"),
    ({"seeds": 0}, "got 0: pass a list of them, or a number N >= 1 for the seeds 0 to N-1"),
    ({"steps": 0}, "steps must be a whole number of at least 1; got 0"),
    ({"record": (10, 5)}, r"'final', 'curve' or increasing .* up to 1000; got \(10, 5\)"),
    ({"record": (2000,)}, "up to 1000"),
    ({"record": "all"}, "got 'all'"),
    ({"record": np.array([10, 5])}, r"numbers of steps up to 1000; got array\(\[10,  5\]\)"),
    ({"scales": LONG, "method": "phased"}, "must hold at most 200,000,000 steps; got 4 states x 1"),
    ({"chunk": 5}, "chunk has no meaning for method 'n_step'; got 5: it does not learn offline"),
    ({"method": "lambda_return", "chunk": 0}, "chunk must be a whole number of at least 1; got 0"),
    ({"trajectories": 5}, "trajectories has no meaning for method 'n_step'; got 5: 'phased' samples"),
    ({"method": "phased", "time_limit": 5}, "time_limit has no meaning for method 'phased'; got 5"),
    ({"method": "phased", "trajectory": STEPS}, "trajectory has no meaning for method 'phased'"),
    ({"trajectory": STEPS, "steps": 6}, "no meaning for method 'n_step'; got 6: the trajectory is"),
    ({"features": np.eye(4)}, "features has no meaning for method 'n_step'"),
    ({"method": "linear"}, r"method 'linear' needs features=, shape \(S, F\); got None: one_hot"),
    ({"threads": 0}, "threads must be a whole number of at least 1; got 0"),
    ({"initial_deltas": result(4), "step_sizes": "1/n"}, "cannot go on with step sizes '1/n'"),
]
SHAPES = [
    ({"method": "td0", "features": np.eye(3)}, r"one row for each of the 4 states; got float64 of"),
    ({"method": "td0", "features": [*RAGGED, [1], [2]]}, "features must be an array of numbers; got"),
    ({"initial_deltas": RAGGED}, "initial_deltas must be an array of numbers; got .* of equal length"),
    ({"trajectory": STEPS._replace(rewards=RAGGED)}, "rewards of the trajectory must be an array"),
    ({**PAIRS, "initial_deltas": result(5)}, "of the same process, with 4 states; got a result with 5: pass its"),
    ({"initial_deltas": result(4, seeds=3), "seeds": 2}, r"must have shape .* = \(1, 2, 4, 2\); got float64"),
    ({"initial_deltas": np.zeros((4, 3))}, r"must have shape \(states, scales\) = \(4, 2"),
    ({**PAIRS, "initial_deltas": np.zeros((4, 2))}, r"initial_deltas must .* \(features, scales\) = \(2, 2\)"),
    ({"trajectory": STEPS._replace(rewards=np.zeros((1, 5)))}, r"all have shape \(T,\) or \(N, T\)"),
    ({"trajectory": STEPS._replace(states=STEPS.states / 2)}, "states must be whole numbers; got float64"),
    ({"trajectory": STEPS._replace(terminated=STEPS.states)}, "terminated and truncated must be bool"),
    ({"method": lambda *arrays, **options: arrays[0], "steps": 5}, r"targets of shape .* = \(3, 1, 2\); got"),
]
DATA = [
    ({"trajectory": broken(states=[0, 1, 9, 0, 1, 2])}, "between 0 and 3; got 9 at step 2 of stream 0: the pro"),
    ({"trajectory": broken(next_states=[1, 2, 3, 1, -1, 3])}, "next_states must .* -1 at step 4 of stream 0"),
    ({"trajectory": broken(states=[0, 1, 2, 0, 0, 2])}, "got state 0 after next state 1 at step 3 of stream 0: m"),
    ({"trajectory": broken(terminated=[False] * 6)}, "goes on in one at step 2 of stream 0: set terminated there"),
    ({"method": "td0", "features": np.diag([1, 1, np.inf, 1])}, r"features must be finite; got inf at \[2, 2\]"),
]
REFUSED = {ConfigError: SETTINGS, ShapeError: SHAPES, DataError: DATA}


@pytest.mark.parametrize(
    ("error", "options", "message"), [(error, *case) for error, cases in REFUSED.items() for case in cases]
)
def test_what_cannot_be_learned_from(error, options, message):
    with pytest.raises(error, match=message):
        evaluate(**{"mdp": PROCESS, "scales": SCALES} | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": -1}, "seeds must be whole numbers >= 0, at least one; got -1"),
        ({"method": "sarsa_max"}, "one of sarsa, .* got 'sarsa_max': did you mean 'sarsa'"),
        ({"mdp": "ring"}, "mdp must be a FiniteMDP; got str"),
        ({"step_size": (0.1, 0.2, 0.3)}, r"each of the 2 scales; got \(0.1, 0.2, 0.3\)"),
        ({"epsilon": 1.5}, r"epsilon must be in \[0, 1\]; got 1.5"),
        ({"epsilon": (0.1, 0.2, 0.3)}, r"a pair \(first, last\)"),
        ({"scales": BARE, "method": "watkins"}, "method 'watkins' needs trace decays"),
        ({"scales": BARE, "method": "n_step_sarsa"}, "method 'n_step_sarsa' needs n-step windows"),
        ({"mdp": FiniteMDP.ring(), "scales": make_scales((0.5, 1.0))}, "at gamma=1 does not converge"),
        ({"initial_deltas": RAGGED}, "initial_deltas must be an array of numbers; got"),
        ({"initial_deltas": np.zeros((4, 2))}, r"initial_deltas must have shape \(S, A"),
    ],
)
def test_control(options, message):
    with pytest.raises((ConfigError, ShapeError), match=message):
        control(**{"mdp": PROCESS, "scales": SCALES} | options)


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
    np.testing.assert_array_equal(run(method="td0", step_sizes=step_size, steps=4).step_sizes, [[step_size] * 2])


def test_a_number_of_seeds_means_those_below_it():
    assert run(method="td0", seeds=np.int64(2), steps=4).seeds == (0, 1)


def test_a_stream_alone_is_enough():
    alone = Trajectory(*(field[0] for field in STEPS))
    np.testing.assert_array_equal(run(trajectory=alone).deltas, run(trajectory=STEPS).deltas)


def test_loops_compile_where_no_cache_can_be_written(monkeypatch):
    from numba.core import caching

    from tddelta.tabular.loops import compiled

    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert compiled(lambda x: x + 1)(1) == 2
