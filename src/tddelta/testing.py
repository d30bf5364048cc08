"""Property checks for target functions, also for yours.

`check_targets(f)` calls f on small made-up rollouts and raises `IdentityError` at the first identity that fails, with
the rollout at hand. It needs NumPy only and always makes the same rollouts for the same seed.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tddelta._arrays import widened
from tddelta._plain import one_of
from tddelta.errors import TDDeltaError
from tddelta.timescales import TimeScales

_ARRAYS = ("rewards", "deltas", "next_deltas", "terminated", "truncated")

# Steps, streams and scales.
_SIZES = (
    (1, (), 1),
    (2, (), 1),
    (1, (), 2),
    (2, (), 2),
    (3, (), 2),
    (2, (2,), 2),
    (4, (2,), 3),
    (7, (3,), 3),
    (9, (2, 2), 4),
    (12, (3,), 5),
)


@dataclass(frozen=True)
class Rollout:
    """A made-up rollout of T steps of B streams: what `lambda_targets` takes, by name."""

    rewards: np.ndarray
    deltas: np.ndarray
    next_deltas: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    scales: TimeScales

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in _ARRAYS}

    def steps(self, part: Any) -> "Rollout":
        """Some of the steps, or of the steps and streams."""
        return replace(self, **{name: array[part] for name, array in self.arrays.items()})

    def first_scales(self, number: int) -> "Rollout":
        """Without the components of longer horizons."""
        return replace(
            self,
            deltas=self.deltas[..., :number],
            next_deltas=self.next_deltas[..., :number],
            scales=_some(self.scales, slice(number)),
        )

    def value(self, z: int) -> "Rollout":
        """V_z alone, as a rollout with one scale."""
        return replace(
            self,
            deltas=self.deltas[..., : z + 1].sum(-1, keepdims=True),
            next_deltas=self.next_deltas[..., : z + 1].sum(-1, keepdims=True),
            scales=_some(self.scales, slice(z, z + 1)),
        )

    def laid_out(self, streams: tuple[int, ...]) -> "Rollout":
        """With other batch axes for the same streams."""
        steps, axes = len(self.rewards), self.rewards.ndim
        laid = {name: array.reshape(steps, *streams, *array.shape[axes:]) for name, array in self.arrays.items()}
        return replace(self, **laid)

    def __str__(self) -> str:
        lines = [f"{n} = {np.array2string(a, separator=', ', prefix=n + ' = ')}" for n, a in self.arrays.items()]
        return "\n".join([f"scales = {self.scales}", *lines])


def _some(scales: TimeScales, part: slice) -> TimeScales:
    decays, windows = scales.trace_decays, scales.n_steps
    return TimeScales(scales.gammas[part], decays and decays[part], windows and windows[part])


def make_rollout(
    generator: np.random.Generator,
    steps: int,
    streams: tuple[int, ...],
    number: int,
    *,
    equal_decays: bool,
    equal_windows: bool,
) -> Rollout:
    """Small whole numbers, so that a failure can be checked by hand."""
    gammas = np.sort(generator.choice([0.0, 0.5, 0.75, 0.9, 0.95, 0.99], number, replace=False))
    # All of these contract, so that no warning is given.
    decays = np.full(number, 0.4) if equal_decays else gammas * generator.choice([0.0, 0.5, 0.9, 1.0], number)
    windows = generator.integers(1, 5, 1 if equal_windows else number)
    scales = TimeScales(tuple(gammas), tuple(decays), tuple(np.broadcast_to(windows, number)))
    shape = (steps, *streams)
    rewards, deltas, finals = (
        generator.integers(-4, 5, size).astype(float) for size in (shape, (*shape, number), (*shape, number))
    )
    terminated, truncated = generator.random(shape) < 0.25, generator.random(shape) < 0.25
    return Rollout(rewards, deltas, follow(deltas, finals, terminated | truncated), terminated, truncated, scales)


def follow(deltas: np.ndarray, finals: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The components at the true successors: the next ones, but the final ones at an end and after the last step."""
    return np.where(ends[..., None], finals, np.concatenate([deltas[1:], finals[-1:]]))


def one_step_target(rollout: Rollout) -> np.ndarray:
    """One-step targets of the components, written as differences of values."""
    gammas = np.array(rollout.scales.gammas)
    discounted = gammas * np.where(rollout.terminated[..., None], 0.0, rollout.next_deltas).cumsum(-1)
    first = rollout.rewards[..., None] + discounted[..., :1]
    return np.concatenate([first, np.diff(discounted, axis=-1)], axis=-1)


def lambda_return(rollout: Rollout) -> np.ndarray:
    """The ordinary λ-return of the only scale."""
    (decay,), target = rollout.scales.trace_decays or (0.0,), one_step_target(rollout)
    ends = (rollout.terminated | rollout.truncated)[..., None]
    for t in reversed(range(len(target) - 1)):
        target[t] += decay * np.where(ends[t], 0.0, target[t + 1] - rollout.deltas[t + 1])
    return target


def n_step_return(rollout: Rollout) -> np.ndarray:
    """The ordinary n-step return of the only scale."""
    target = one_step = one_step_target(rollout)
    ends = (rollout.terminated | rollout.truncated)[..., None]
    (window,) = rollout.scales.n_steps or (1,)
    for _ in range(window - 1):
        longer = rollout.rewards[:-1, ..., None] + rollout.scales.gammas[0] * target[1:]
        target = np.concatenate([np.where(ends[:-1], one_step[:-1], longer), one_step[-1:]])
    return target


_KINDS: dict[str, Callable[[Rollout], np.ndarray]] = {
    "λ-return": lambda_return,
    "n-step return": n_step_return,
    "one-step target": one_step_target,
}


Targets = Callable[..., Any]
"""f(rewards, deltas, next_deltas, *, terminated, truncated, scales) → targets of the shape of deltas."""


class IdentityError(TDDeltaError, AssertionError):
    """A target function breaks an identity; the message holds a rollout that shows it.

    Attributes:
        identity: Name of the identity, a key of `IDENTITIES`.
    """

    def __init__(self, message: str, identity: str = "") -> None:
        super().__init__(message)
        self.identity = identity


IDENTITIES: dict[str, str] = {}
"""The identities by name. All but the last hold for every sound target and are checked unless you choose."""

# The distance from 1 to the next number.
_HALF = {"float16": 2.0**-10, "bfloat16": 2.0**-7}

_OPTIONAL = ("telescoping, any decays",)

_CHECKS: dict[str, Callable[["_Check", Rollout, np.random.Generator], None]] = {}


def _identity(name: str, sentence: str) -> Callable[[Any], Any]:
    """Decorator of the check of an identity."""

    def add(check: Any) -> Any:
        IDENTITIES[name], _CHECKS[name] = sentence, check
        return check

    return add


def check_targets(
    f: Targets,
    *,
    identities: Iterable[str] | None = None,
    asarray: Callable[[np.ndarray], Any] = np.asarray,
    rollouts: int = 30,
    seed: int = 0,
) -> None:
    """Check that a target function keeps the identities that every sound one keeps.

    The rollouts grow from one step of one stream with one scale to a few of each, so that the first that fails is
    small. In them, `next_deltas[t]` is `deltas[t+1]` wherever step t ends no episode.

    Args:
        f: Called as f(rewards, deltas, next_deltas, terminated=…, truncated=…, scales=…) with arrays of the shapes
            (T, *batch) and (T, *batch, Z) in double precision; returns the targets of W, (T, *batch, Z). The scales
            have `trace_decays` and `n_steps`.
        identities: Names from `IDENTITIES`; None means all but "telescoping, any decays". Leave out what is not meant
            to hold: a function that clips targets does not telescope.
        asarray: Makes the arrays that f gets, such as `jax.numpy.asarray` or `torch.asarray`.
        rollouts: How many rollouts.
        seed: Which rollouts.

    Raises:
        IdentityError: An `AssertionError` that names the identity and holds a rollout that breaks it. Which precision
            is asked for depends on the dtype that f returns.
        ConfigError: An unknown identity.

    Example:
        >>> from tddelta.targets import lambda_targets
        >>> check_targets(lambda_targets, rollouts=10)
        >>> def forgets_to_bootstrap(rewards, deltas, next_deltas, **options):
        ...     return lambda_targets(rewards, deltas, 0 * next_deltas, **options)
        >>> check_targets(forgets_to_bootstrap)
        Traceback (most recent call last):
        ...
        tddelta.testing.IdentityError: one scale: ...
    """
    names = [name for name in IDENTITIES if name not in _OPTIONAL] if identities is None else list(identities)
    for name in names:
        one_of("each of identities", name, list(IDENTITIES))
    check = _Check(f, asarray)
    generator = np.random.default_rng(seed)
    for index in range(rollouts):
        size = _SIZES[index * len(_SIZES) // rollouts]
        for name in names:
            decays, windows = name == "telescoping", "telesc" in name
            rollout = make_rollout(generator, *size, equal_decays=decays, equal_windows=windows)
            check.identity = name
            _CHECKS[name](check, rollout, generator)


class _Check:
    """Calls the function and compares, for the identity at hand."""

    def __init__(self, f: Targets, asarray: Callable[[np.ndarray], Any]) -> None:
        self.f = f
        self.asarray = asarray
        self.identity = ""
        self.tolerance = 0.0  # half the digits of what f returns
        self.kinds = dict(_KINDS)  # what f may still be

    def targets(self, rollout: Rollout) -> np.ndarray:
        arrays = [self.asarray(getattr(rollout, name).copy()) for name in _ARRAYS]
        before = [_plain(array)[0].copy() for array in arrays]
        *steps, terminated, truncated = arrays
        try:
            with np.errstate(all="ignore"):  # a warning about 0 · ∞ would say less than the identity
                result = self.f(*steps, terminated=terminated, truncated=truncated, scales=rollout.scales)
        except Exception as error:
            error.add_note(f"in tddelta.testing.check_targets, {self.identity!r}, called with\n{rollout}")
            raise
        targets, epsilon = _plain(result)
        self.tolerance = math.sqrt(epsilon)
        if targets.shape != rollout.deltas.shape:
            raise self.failure(rollout, f"targets have shape {targets.shape} for deltas of {rollout.deltas.shape}")
        for name, array, copy in zip(_ARRAYS, arrays, before, strict=True):
            if not np.array_equal(_plain(array)[0], copy, equal_nan=copy.dtype != bool):
                raise self.failure(rollout, f"the function changes its argument {name} in place")
        return targets

    def equal(self, rollout: Rollout, got: np.ndarray, wanted: np.ndarray, when: str) -> None:
        """IdentityError with the first entry that differs."""
        differences = self.differing(got, wanted)
        if len(differences):
            place = tuple(differences[0])
            entry = ", ".join(map(str, place))
            words = f"targets[{entry}] is {got[place]:.6g} where {wanted[place]:.6g} is wanted, {when}"
            raise self.failure(rollout, words)

    def differing(self, got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Places where two arrays differ by more than the tolerance."""
        size = max(1.0, float(np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted))))
        return np.argwhere(~(np.abs(got - wanted) <= self.tolerance * size))

    def failure(self, rollout: Rollout, what: str) -> IdentityError:
        message = f"{self.identity}: {what}. The identity: {IDENTITIES[self.identity]}. It fails for\n{rollout}"
        return IdentityError(message, self.identity)


def _plain(array: Any) -> tuple[np.ndarray, float]:
    """An array as one of NumPy's, in single precision at least, and the distance from 1 to the next number in it."""
    half = _HALF.get(str(getattr(array, "dtype", None)).removeprefix("torch."))
    plain = np.asarray(array if half is None else widened(array))
    return plain, half or (float(np.finfo(plain.dtype).eps) if np.issubdtype(plain.dtype, np.floating) else 0.0)


@_identity("shape", "targets have the shape of deltas, are numbers, and the arguments are left as they were")
def _check_shape(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    targets = check.targets(rollout)
    check.equal(rollout, targets, np.where(np.isfinite(targets), targets, 0.0), "since it must be a number")


@_identity("one scale", "with one scale the targets are the ordinary λ-return, n-step return or one-step target")
def _check_one_scale(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    for z in range(len(rollout.scales)):
        alone = rollout.value(z)
        got = check.targets(alone)
        wanted = {kind: ordinary(alone) for kind, ordinary in check.kinds.items()}
        fits = {kind: check.kinds[kind] for kind in wanted if not len(check.differing(got, wanted[kind]))}
        if not fits:
            kind = min(wanted, key=lambda name: float(np.nan_to_num(np.abs(got - wanted[name]), nan=np.inf).max()))
            check.equal(alone, got, wanted[kind], f"the {kind}")
        check.kinds = fits


@_identity("telescoping", "with equal decays and windows, the first components sum to the ordinary target of each V_z")
def _check_telescoping(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    sums = check.targets(rollout).cumsum(-1)
    for z in range(len(rollout.scales)):
        ordinary = check.targets(rollout.value(z))
        check.equal(rollout, sums[..., z : z + 1], ordinary, f"summed over components 0 to {z}")


@_identity(
    "nesting", "the targets of the first components do not change when the components of longer horizons are left out"
)
def _check_nesting(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    targets = check.targets(rollout)
    for number in range(1, len(rollout.scales)):
        fewer = check.targets(rollout.first_scales(number))
        check.equal(rollout, targets[..., :number], fewer, f"as with the first {number} components only")


@_identity("termination", "what the critic says at a terminal successor never counts, not even if it is not a number")
def _check_termination(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    wanted = check.targets(
        replace(rollout, next_deltas=np.where(rollout.terminated[..., None], 0.0, rollout.next_deltas))
    )
    for value in (100.0, np.nan, np.inf):
        there = replace(rollout, next_deltas=np.where(rollout.terminated[..., None], value, rollout.next_deltas))
        check.equal(there, check.targets(there), wanted, "as with zeros at the terminal successors")


@_identity(
    "truncation", "where an episode is cut, each component bootstraps once from the true successor, without a trace"
)
def _check_truncation(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    targets, cut = check.targets(rollout), (rollout.truncated & ~rollout.terminated)[..., None]
    check.equal(rollout, targets, np.where(cut, one_step_target(rollout), targets), "since the episode is cut there")


@_identity("both flags", "terminated and truncated together mean terminated")
def _check_both_flags(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    both = replace(rollout, truncated=rollout.truncated | rollout.terminated)
    only = replace(rollout, truncated=rollout.truncated & ~rollout.terminated)
    check.equal(both, check.targets(both), check.targets(only), "as with terminated alone")


@_identity(
    "last step", "the last step of the data bootstraps each component from the last next_deltas, without a trace"
)
def _check_last_step(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    check.equal(rollout, check.targets(rollout)[-1:], one_step_target(rollout)[-1:], "counted from the last step")


@_identity("split rollouts", "cut where an episode ends, a rollout has the same targets in two calls as in one")
def _check_split_rollouts(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    steps = len(rollout.rewards)
    if steps == 1:
        return
    cut = int(generator.integers(1, steps))
    terminated, truncated = rollout.terminated.copy(), rollout.truncated.copy()
    truncated[cut - 1] = ~terminated[cut - 1]
    finals = generator.integers(-4, 5, rollout.deltas.shape).astype(float)
    next_deltas = follow(rollout.deltas, finals, terminated | truncated)
    rollout = replace(rollout, next_deltas=next_deltas, terminated=terminated, truncated=truncated)
    halves = [check.targets(rollout.steps(part)) for part in (slice(cut), slice(cut, None))]
    check.equal(rollout, check.targets(rollout), np.concatenate(halves), f"as in two calls, the first of {cut} steps")


@_identity("streams", "a stream has the same targets alone as beside others, even if another holds no numbers")
def _check_streams(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    if rollout.rewards.ndim == 1:
        return
    wanted, others = check.targets(rollout), np.arange(rollout.rewards.shape[1]) > 0
    for stream in range(rollout.rewards.shape[1]):
        part = (slice(None), slice(stream, stream + 1))
        check.equal(rollout, wanted[part], check.targets(rollout.steps(part)), f"as of stream {stream} alone")
    spoilt = {name: rollout.arrays[name].copy() for name in ("rewards", "deltas", "next_deltas")}
    for array in spoilt.values():
        array[:, 0] = np.nan
    got = check.targets(replace(rollout, **spoilt))
    check.equal(rollout, got[:, others], wanted[:, others], "beside a stream 0 of not-a-number")


@_identity("batch axes", "the targets do not depend on how the streams are laid out over batch axes")
def _check_batch_axes(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    wanted, count = check.targets(rollout), rollout.rewards[0].size
    for streams in ((count,), (1, count), (count, 1)):
        other = rollout.laid_out(streams)
        check.equal(other, check.targets(other), wanted.reshape(other.deltas.shape), "as with other batch axes")


@_identity("fixed point", "exact components of a process with constant reward are their own targets")
def _check_fixed_point(check: _Check, rollout: Rollout, generator: np.random.Generator) -> None:
    values = 1 / (1 - np.array(rollout.scales.gammas))
    deltas = np.broadcast_to(np.diff(values, prepend=0.0), rollout.deltas.shape).copy()
    never = np.zeros(rollout.rewards.shape, dtype=bool)
    exact = Rollout(np.ones(never.shape), deltas, deltas.copy(), never, rollout.truncated, rollout.scales)
    check.equal(exact, check.targets(exact), deltas, "the exact component")


_identity("telescoping, any decays", "as telescoping, whatever the decays: holds for the difference form only")(
    _check_telescoping
)
