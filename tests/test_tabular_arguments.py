"""What `evaluate` and `control` refuse, and what they say."""

from functools import partial

import numpy as np
import pytest

from targets_literal import make_scales
from tddelta import ConfigError, DataError, ShapeError, TimeScales
from tddelta.tabular import FiniteMDP, Trajectory, control, evaluate, sample

PROCESS = FiniteMDP.chain(3)
SCALES = make_scales((0.5, 0.9), (0.4, 0.4), (2, 3))
BARE = TimeScales.from_gammas([0.5, 0.9])
STEPS = sample(PROCESS, 6, [0])

run = partial(evaluate, PROCESS, SCALES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(run, method="n_steps"), "method must be .* got 'n_steps': did you mean 'n_step'"),
        (partial(evaluate, "ring", SCALES), "mdp must be a FiniteMDP; got str"),
        (partial(evaluate, PROCESS, (0.5, 0.9)), "scales must be a TimeScales; got"),
        (partial(evaluate, PROCESS, BARE), "method 'n_step' needs scales with n_steps; these have none: .* n_step=16"),
        (partial(evaluate, PROCESS, BARE, method="traces"), "method 'traces' needs scales with trace_decays; .* lam="),
        (partial(run, step_sizes=0.0), "a step size must be a number above 0, .* got 0.0"),
        (partial(run, step_sizes=[(0.1, 0.2, 0.3)]), r"for each of the 2 scales, or '1/n'; got \(0.1, 0.2, 0.3\)"),
        (partial(run, step_sizes=["n"]), "got 'n': step_sizes="),
        (partial(run, step_sizes=[]), "step_sizes must name at least one; got none"),
        (partial(run, seeds=[]), r"seeds must be whole numbers >= 0, at least one; got \[\]"),
        (partial(run, seeds=[-1]), "seeds must be whole numbers >= 0"),
        (partial(run, steps=0), "steps must be a whole number of at least 1; got 0"),
        (partial(run, record=(10, 5)), r"record must be 'final', 'curve' or increasing .* up to 1000; got \(10, 5\)"),
        (partial(run, record=(2000,)), "up to 1000"),
        (partial(run, record="all"), "got 'all'"),
        (partial(run, chunk=5), "chunk has no meaning for method 'n_step'; got 5: it does not learn offline"),
        (partial(run, method="lambda_return", chunk=0), "chunk must be a whole number of at least 1; got 0"),
        (partial(run, trajectories=5), "trajectories has no meaning for method 'n_step'; got 5: 'phased' samples"),
        (partial(run, method="phased", time_limit=5), "time_limit has no meaning for method 'phased'; got 5"),
        (partial(run, method="phased", trajectory=STEPS), "trajectory has no meaning for method 'phased'"),
        (partial(run, trajectory=STEPS, steps=6), "steps has no meaning for method 'n_step'; got 6: the trajectory is"),
        (partial(run, features=np.eye(4)), "features has no meaning for method 'n_step'"),
        (partial(run, method="linear"), r"method 'linear' needs features=, shape \(S, F\); got None: one_hot"),
        (partial(run, threads=0), "threads must be a whole number of at least 1; got 0"),
        (partial(run, initial_deltas=run(), step_sizes="1/n"), "method 'n_step' cannot go on with step sizes '1/n'"),
        (partial(control, PROCESS, SCALES, method="sarsa_max"), "did you mean 'sarsa'"),
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
