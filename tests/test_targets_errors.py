"""Arguments that the target functions refuse, saying what to do. Nothing is broadcast or converted silently."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tddelta.errors import ConfigError, DataError, ShapeError
from tddelta.targets import advantages, lambda_targets, n_step_targets, successors, td_errors
from tddelta.timescales import TimeScales

STEPS, STREAMS, SCALES = 5, 3, TimeScales.from_gammas([0.5, 0.9], lam=0.9, n_step=3)
FUNCTIONS = [td_errors, n_step_targets, lambda_targets, advantages]


def arguments():
    return {
        "rewards": np.ones((STEPS, STREAMS)),
        "deltas": np.ones((STEPS, STREAMS, 2)),
        "next_deltas": np.ones((STEPS, STREAMS, 2)),
        "terminated": np.zeros((STEPS, STREAMS), dtype=bool),
        "truncated": np.zeros((STEPS, STREAMS), dtype=bool),
        "durations": np.ones((STEPS, STREAMS)),
        "scales": SCALES,
    }


def call(function, **changes):
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in (arguments() | changes).items() if name in known})


def test_the_unchanged_arguments_are_fine():
    for function in FUNCTIONS:
        assert call(function).shape == (STEPS, STREAMS, 2)[: 2 if function is advantages else 3]


WRONG = [
    # Length: T values and no bootstrap value (B06).
    (
        "next_deltas",
        lambda a: a[1:],
        r"axes \(time, \*batch, scale\).*got \(4, 3, 2\): every step",
    ),
    ("rewards", lambda a: a[1:], r"the shape \(5, 3\); got \(4, 3\): every step of the data needs one entry"),
    # Broadcasting: (n,) beside (n, 1) (B31).
    ("rewards", lambda a: a[..., None], r"got \(5, 3, 1\): drop the axes at the end"),
    ("rewards", lambda a: a[:, 0], r"got \(5,\): pass one entry per step and stream, nothing is broadcast"),
    ("rewards", lambda a: a[:, :1], r"got \(5, 1\)"),
    ("terminated", lambda a: a[:, :1], r"terminated must have axes \(time, \*batch\)"),
    ("truncated", lambda a: a[:1], r"truncated must have axes \(time, \*batch\)"),
    ("durations", lambda a: a[:1], r"durations must have axes \(time, \*batch\)"),
    ("next_deltas", lambda a: a[..., :1], r"got \(5, 3, 1\)"),
    # Swapped axes.
    ("rewards", lambda a: a.T, r"got \(3, 5\): the axes are in another order"),
    ("terminated", lambda a: a.T, r"got \(3, 5\): the axes are in another order"),
    ("deltas", lambda a: a.transpose(0, 2, 1), r"2 scales; got shape \(5, 2, 3\): move the scale axis last"),
    ("deltas", lambda a: a.transpose(1, 0, 2), r"got \(5, 3\): the axes are in another order"),
    ("next_deltas", lambda a: a.transpose(1, 0, 2), r"got \(3, 5, 2\): the axes are in another order"),
    # Another number of scales.
    ("deltas", lambda a: a[..., :1], r"2 scales; got shape \(5, 3, 1\): pass the scales"),
    ("deltas", lambda a: a[0, 0], r"axes \(time, \*batch, scale\) and at least one step; got shape \(2,\)"),
    ("deltas", lambda a: a[:0], "at least one step"),
    # Dtypes.
    ("deltas", lambda a: a.astype(int), "deltas must be floating point; got dtype int64"),
    ("next_deltas", lambda a: a.astype(int), "next_deltas must be floating point; got dtype int64"),
    ("next_deltas", lambda a: a.astype(np.float32), "must have the dtype of deltas, float64; got float32"),
    ("terminated", lambda a: a.astype(float), "terminated must be boolean; got dtype float64"),
    ("truncated", lambda a: a.astype(int), "truncated must be boolean; got dtype int64"),
    ("rewards", lambda a: a.astype(complex), "rewards must be real; got dtype complex128"),
    ("durations", lambda a: a.astype(complex), "durations must be real"),
    # Other kinds of arrays.
    ("rewards", lambda a: jnp.asarray(a), "same framework as deltas, NumPy; got JAX: convert one of them"),
    ("deltas", lambda a: jnp.asarray(a), "same framework as deltas, JAX; got NumPy"),
    ("deltas", lambda a: a.tolist(), "deltas must be a NumPy array, a JAX array or a PyTorch tensor; got list"),
    ("rewards", lambda a: a.tolist(), "same framework as deltas, NumPy; got list"),
    ("terminated", lambda a: False, "same framework as deltas, NumPy; got bool"),
]


@pytest.mark.parametrize(
    ("name", "change", "message"), WRONG, ids=lambda value: value if isinstance(value, str) else ""
)
def test_shapes_dtypes_and_frameworks(name, change, message):
    for function in FUNCTIONS:
        if name in inspect.signature(function).parameters:
            with pytest.raises(ShapeError, match=message):
                call(function, **{name: change(arguments()[name])})


def test_two_frameworks_with_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(ShapeError, match="same framework as deltas, NumPy; got PyTorch"):
        call(td_errors, terminated=torch.zeros((STEPS, STREAMS), dtype=torch.bool))


@pytest.mark.parametrize("scales", [(0.5, 0.9), 0.9, None])
def test_scales_must_be_time_scales(scales):
    for function in FUNCTIONS:
        with pytest.raises(ConfigError, match=r"scales must be a TimeScales; got .*: make one"):
            call(function, scales=scales)


def test_what_scales_lack_is_named():
    bare = TimeScales.from_gammas([0.5, 0.9])
    with pytest.raises(ConfigError, match=r"lambda_targets needs trace decays.* lam=0.95"):
        call(lambda_targets, scales=bare)
    with pytest.raises(ConfigError, match=r"n_step_targets needs n-step windows.* n_step=16"):
        call(n_step_targets, scales=bare)
    with pytest.raises(ConfigError, match="advantages needs trace_decay="):
        call(advantages, scales=bare)
    call(td_errors, scales=bare)
    call(advantages, scales=bare, trace_decay=0.9)


def test_unknown_form():
    for form in ("Bootstrap", None, 1):
        with pytest.raises(ConfigError, match=f"form must be 'bootstrap' or 'difference'; got {form!r}"):
            call(lambda_targets, form=form)


def test_decay_of_the_policy():
    for decay in (1.1, -0.1, float("nan"), "0.9", True):
        with pytest.raises(ConfigError, match=r"trace_decay must be in \[0, 1\]; got"):
            call(advantages, trace_decay=decay)
    for decay in (np.ones(3), jnp.asarray(0.9)):
        with pytest.raises(ShapeError, match="without axes of the framework of deltas"):
            call(advantages, trace_decay=decay)
    for decay in (0, 1, np.float64(0.9), np.array(0.9)):
        np.testing.assert_array_equal(call(advantages, trace_decay=decay), call(advantages, trace_decay=float(decay)))


def test_durations_must_be_positive():
    durations = np.ones((STEPS, STREAMS))
    for wrong in (0.0, -1.0, np.nan, np.inf):
        durations[1, 0] = wrong
        with pytest.raises(DataError, match=rf"durations must be above 0 and finite; got {wrong} at step 1"):
            call(td_errors, durations=durations)


# successors


def successor_arguments(**changes):
    given = {name: array for name, array in arguments().items() if name in ("deltas", "terminated", "truncated")}
    return given | {"last_deltas": np.ones((STREAMS, 2))} | changes


def test_a_truncation_needs_its_final_value():
    truncated = np.zeros((STEPS, STREAMS), dtype=bool)
    truncated[3, 1] = truncated[4, 0] = True
    with pytest.raises(ConfigError, match=r"first time at step 3, batch entry \(1,\)"):
        successors(**successor_arguments(truncated=truncated))
    # Both flags mean terminated: no final value is needed.
    successors(**successor_arguments(truncated=truncated, terminated=truncated))
    successors(**successor_arguments(truncated=truncated, final_deltas=np.ones((STEPS, STREAMS, 2))))
    cut = np.array([False, True])  # without batch axes
    with pytest.raises(ConfigError, match="at step 1; got None"):
        successors(np.ones((2, 1)), np.ones(1), terminated=~cut & cut, truncated=cut)


def test_under_jit_nobody_can_look():
    given = {name: jnp.asarray(array) for name, array in successor_arguments().items()}
    with pytest.raises(ConfigError, match="final_deltas is needed under jit"):
        jax.jit(lambda arrays: successors(**arrays))(given)
    assert jax.jit(lambda arrays: successors(**arrays, final_deltas=arrays["deltas"]))(given).shape == (5, 3, 2)
    successors(**given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"last_deltas": np.ones((2, STREAMS))}, r"last_deltas must have axes \(\*batch, scale\).*another order"),
        ({"last_deltas": np.ones((1, STREAMS, 2))}, r"shape \(3, 2\); got \(1, 3, 2\)"),
        ({"last_deltas": np.ones((STREAMS, 2), np.float32)}, "last_deltas must have the dtype of deltas"),
        ({"final_deltas": np.ones((STREAMS, 2))}, r"final_deltas must have axes \(time, \*batch, scale\)"),
        ({"truncated": np.zeros((STEPS, STREAMS))}, "truncated must be boolean"),
        ({"last_deltas": jnp.ones((STREAMS, 2))}, "got JAX"),
    ],
)
def test_arguments_of_successors(changes, message):
    with pytest.raises(ShapeError, match=message):
        successors(**successor_arguments(**changes))
