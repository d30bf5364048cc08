"""`check_targets` accepts sound target functions and names what is wrong with others."""

from functools import partial

import numpy as np
import pytest

from tddelta.errors import ConfigError
from tddelta.targets import lambda_targets, n_step_targets, td_errors
from tddelta.testing import IDENTITIES, IdentityError, check_targets


def one_step(rewards, deltas, next_deltas, *, terminated, truncated, scales):
    return deltas + td_errors(rewards, deltas, next_deltas, terminated=terminated, scales=scales)


def recursion(
    rewards, deltas, next_deltas, *, terminated, truncated, scales,
    mask=lambda d, u: ~d, ends=np.logical_or, below=True, rewarded=1, swap_last=False,
):  # fmt: skip
    """The bootstrap form by hand, with one thing wrong at a time."""
    gammas, decays = np.array(scales.gammas), np.array(scales.trace_decays)
    ends = ends(terminated, truncated)
    successor = np.where(mask(terminated, truncated)[..., None], next_deltas, 0.0)
    smaller = below * (np.cumsum(successor, -1) - successor)
    if swap_last:
        smaller[-1] = (np.cumsum(deltas, -1) - deltas)[-1]
    gaps = np.diff(gammas, prepend=0.0)
    errors = gaps * smaller + gammas * successor - deltas
    errors[..., :rewarded] += rewards[..., None]
    advantage, later = np.zeros_like(deltas), np.zeros_like(deltas[0])
    for t in reversed(range(len(rewards))):
        later = errors[t] + np.where(ends[t][..., None], 0.0, decays * later)
        advantage[t] = later
    return deltas + advantage


@pytest.mark.parametrize(
    "f",
    [partial(lambda_targets, form="bootstrap"), lambda_targets, n_step_targets, one_step, recursion],
    ids=["bootstrap", "difference", "n-step", "one step", "by hand"],
)
def test_sound_targets_pass(f):
    check_targets(f, rollouts=10)


def test_the_difference_form_telescopes_for_any_decays_and_only_it():
    name = "telescoping, any decays"
    check_targets(lambda_targets, identities=[name])
    with pytest.raises(IdentityError, match=r"^telescoping, any decays: targets"):
        check_targets(partial(lambda_targets, form="bootstrap"), identities=[name])


def late(flags):
    """The flags of the step before."""
    return np.concatenate([np.zeros_like(flags[:1]), flags[:-1]])


def early(flags):
    """The flags of the step after."""
    return late(flags[::-1])[::-1]


def folded_into_the_reward(rewards, deltas, next_deltas, *, terminated, truncated, scales):
    """B09: the bootstrap of a truncation as a reward: right for one discount, wrong for all others."""
    cut = truncated & ~terminated
    rewards = rewards + np.where(cut, scales.gammas[-1] * next_deltas.sum(-1), 0.0)
    return recursion(rewards, deltas, next_deltas, terminated=terminated | cut, truncated=truncated, scales=scales)


def in_place(rewards, deltas, next_deltas, **options):
    next_deltas[options["terminated"]] = 0.0
    return recursion(rewards, deltas, next_deltas, **options)


def multiplied_mask(rewards, deltas, next_deltas, **options):
    """0 · NaN is NaN."""
    keep = 1.0 - options["terminated"][..., None]
    return recursion(rewards, deltas, next_deltas * keep, mask=lambda d, u: d == d, **options)


def scaled_by_the_batch(rewards, deltas, next_deltas, **options):
    targets = lambda_targets(rewards, deltas, next_deltas, **options)
    return targets - targets.mean() + targets.mean() * 1.01


def all_streams_together(rewards, deltas, next_deltas, **options):
    """Centres over streams, as a normalisation might."""
    targets = lambda_targets(rewards, deltas, next_deltas, **options)
    return targets if targets.ndim == 2 else targets - targets.mean(1, keepdims=True)


def fixed_axes(rewards, deltas, next_deltas, **options):
    """Takes the second axis for streams, whatever it is."""
    targets = lambda_targets(rewards, deltas, next_deltas, **options)
    return targets if targets.ndim < 4 else targets[:, :, ::-1]


def max_per_component(rewards, deltas, next_deltas, **options):
    return lambda_targets(rewards, deltas, np.maximum(next_deltas, 0.0), **options)


MUTANTS = {
    "mask read one step late": (partial(recursion, ends=lambda d, u: late(d | u)), "split rollouts"),
    "mask read one step early": (partial(recursion, ends=lambda d, u: early(d | u)), "split rollouts"),
    "terminal mask one step late": (partial(recursion, mask=lambda d, u: ~late(d)), "termination"),
    "no mask": (partial(recursion, mask=lambda d, u: d == d), "termination"),
    "multiplied mask": (multiplied_mask, "termination"),
    "trace leaks over a truncation": (partial(recursion, ends=lambda d, u: d), "split rollouts"),
    "truncation taken for termination": (partial(recursion, mask=lambda d, u: ~(d | u)), "truncation"),
    "both flags taken for truncation": (partial(recursion, mask=lambda d, u: ~d | u), "both flags"),
    "smaller scales dropped": (partial(recursion, below=False), "fixed point"),
    "reward for every component": (partial(recursion, rewarded=None), "telescoping"),
    "current and next swapped at the last step": (partial(recursion, swap_last=True), "last step"),
    "bootstrap folded into the reward": (folded_into_the_reward, "truncation"),
    "arguments changed in place": (in_place, "shape"),
    "streams mixed": (all_streams_together, "streams"),
    "batch axes mixed": (fixed_axes, "batch axes"),
    "maximum per component": (max_per_component, "telescoping"),
    "scaled by the batch": (scaled_by_the_batch, "streams"),
    "advantages in place of targets": (lambda *a, **o: lambda_targets(*a, **o) - a[1], "one scale"),
    "reversed scales": (lambda *a, **o: lambda_targets(*a, **o)[..., ::-1], "nesting"),
    "one step only at long rollouts": (
        lambda *a, **o: (one_step if len(a[0]) > 6 else lambda_targets)(*a, **o),
        "one scale",
    ),
    "last axis dropped": (lambda *a, **o: lambda_targets(*a, **o).sum(-1), "shape"),
}


@pytest.mark.parametrize(("mutant", "identity"), MUTANTS.values(), ids=MUTANTS)
def test_wrong_targets_are_found(mutant, identity):
    """By all checks together, and by the one identity that is about this fault."""
    with pytest.raises(IdentityError):
        check_targets(mutant)
    with pytest.raises(IdentityError) as caught:
        check_targets(mutant, identities=[identity])
    assert caught.value.identity == identity
    assert isinstance(caught.value, AssertionError)
    message = str(caught.value)
    assert message.startswith(f"{identity}: ")
    assert IDENTITIES[identity] in message
    assert "rewards = " in message


def test_a_failure_is_small():
    with pytest.raises(IdentityError) as caught:
        check_targets(partial(recursion, mask=lambda d, u: d == d), identities=["termination"])
    assert "rewards = [" in str(caught.value)
    assert len(str(caught.value)) < 800


def test_identities_can_be_chosen():
    def clipped(*arrays, **options):
        return np.clip(lambda_targets(*arrays, **options), -3, 3)

    with pytest.raises(IdentityError):
        check_targets(clipped)
    check_targets(clipped, identities=["shape", "termination", "split rollouts", "streams", "batch axes"])


def test_equal_seeds_make_equal_failures():
    messages = []
    for seed in (3, 3, 4):
        with pytest.raises(IdentityError) as caught:
            check_targets(all_streams_together, seed=seed)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] != messages[2]


def test_an_unknown_identity_is_refused():
    with pytest.raises(ConfigError, match="got 'telescope': did you mean 'telescoping'"):
        check_targets(lambda_targets, identities=["telescope"])


def test_an_error_of_the_function_comes_with_the_rollout():
    def broken(*arrays, **options):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        check_targets(broken)
    assert "rewards = " in caught.value.__notes__[0]
