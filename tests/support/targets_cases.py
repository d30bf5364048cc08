"""Random target problems for hypothesis: shapes, batch axes, flags, durations and ladders; and all targets of one."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from targets_literal import Problem
from tddelta.targets import advantages, lambda_targets, n_step_targets, td_errors

# A shared machine can be slow; the number of examples bounds the time.
examples = settings(deadline=None, max_examples=20)

_unit = st.floats(0, 1, allow_subnormal=False)


@st.composite
def problems(
    draw, *, equal_decays=False, equal_windows=False, durations=None, followed=False, max_steps=7, max_scales=5
) -> Problem:
    """A problem; `followed` makes next_deltas[t] = deltas[t+1] wherever step t ends no episode.

    With durations=None they are given or not; True or False says which.
    """
    number = draw(st.integers(1, max_scales))
    known = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])
    gammas = sorted(draw(st.lists(known | st.floats(0.01, 1), min_size=number, max_size=number, unique=True)))
    decay = _unit if not equal_decays else st.just(draw(_unit))
    window = st.integers(1, 10) if not equal_windows else st.just(draw(st.integers(1, 10)))
    decays = tuple(draw(decay) for _ in gammas)
    windows = tuple(draw(window) for _ in gammas)
    shape = (draw(st.integers(1, max_steps)), *draw(st.sampled_from([(), (1,), (2,), (3, 2)])))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.0, 0.2, 0.5]))
    deltas, next_deltas = generator.normal(size=(2, *shape, len(gammas)))
    terminated, truncated = generator.random((2, *shape)) < density
    if followed:
        next_deltas[:-1] = np.where((terminated | truncated)[:-1, ..., None], next_deltas[:-1], deltas[1:])
    timed = draw(st.booleans()) if durations is None else durations
    # The scales are made when asked for, not here: beartype draws random numbers, which hypothesis forbids.
    return Problem(
        tuple(gammas),
        decays,
        windows,
        generator.normal(size=shape),
        deltas,
        next_deltas,
        terminated,
        truncated,
        generator.uniform(0.05, 3, size=shape) if timed else None,
    )


def everything(problem):
    """Results of every function for a problem."""
    return {
        "td_errors": td_errors(*problem.arrays, **problem.td_options),
        "n_step_targets": n_step_targets(*problem.arrays, **problem.options),
        "bootstrap": lambda_targets(*problem.arrays, **problem.options, form="bootstrap"),
        "difference": lambda_targets(*problem.arrays, **problem.options),
        "advantages": advantages(*problem.arrays, **problem.options),
    }


def assert_same_bytes(one, other):
    for name, result in one.items():
        assert np.asarray(result).tobytes() == np.asarray(other[name]).tobytes(), name
