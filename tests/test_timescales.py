"""Ladders, trace rules, contraction and the checks of `TimeScales`."""

import copy
import json
import math
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tddelta.errors import ConfigError, ContractionWarning, TDDeltaError
from tddelta.targets import lambda_targets
from tddelta.timescales import TimeScales, plain_scales


def quietly(make, *arguments, **options):
    """Without the warning that some tests provoke on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContractionWarning)
        return make(*arguments, **options)


# Ladders


def test_halving_ladder_is_exact():
    scales = TimeScales.halving(gamma=0.99)
    assert scales.gammas == (0.6799999999999997, 0.8399999999999999, 0.9199999999999999, 0.96, 0.98, 0.99)
    np.testing.assert_allclose(scales.horizons, [3.125, 6.25, 12.5, 25, 50, 100])
    assert scales.trace_decays is None
    assert scales.n_steps is None


@pytest.mark.parametrize(
    ("gamma", "wanted"),
    [(0.0, (0.0,)), (0.5, (0.0, 0.5)), (0.6, (0.0, 0.5, 0.6)), (0.9, (0.0, 0.5, 0.75, 0.875, 0.9))],
)
def test_doubling_ladder_ends_with_the_discount_itself(gamma, wanted):
    assert TimeScales.doubling(gamma).gammas == wanted


@pytest.mark.parametrize(("gamma", "number"), [(0.0, 1), (0.5, 1), (0.74, 1), (0.75, 2), (0.875, 3), (0.9999, 13)])
def test_halving_ladder_halves_while_the_horizon_is_at_least_four(gamma, number):
    scales = TimeScales.halving(gamma)
    assert len(scales) == number
    assert scales.gammas[-1] == gamma
    np.testing.assert_allclose(np.array(scales.horizons[1:]) / scales.horizons[:-1], 2, rtol=1e-6)


def test_halving_ladder_options():
    assert len(TimeScales.halving(0.99, components=3)) == 3
    assert TimeScales.halving(0.99, components=1) == TimeScales.single(0.99)
    assert len(TimeScales.halving(0.99, shortest_horizon=10)) == 4
    np.testing.assert_allclose(TimeScales.halving(0.99, factor=10).horizons, [10, 100])
    # A horizon computed from a discount is off by rounding; it still counts as 6, and as 2 after the division.
    np.testing.assert_allclose(TimeScales.halving(1 - 1 / 6, factor=3).horizons, [2, 6])
    assert TimeScales.halving(0.75, components=3).gammas == (0.0, 0.5, 0.75)


def test_doubling_ladder_options():
    np.testing.assert_allclose(TimeScales.doubling(0.99, factor=10).horizons, [1, 10, 100])
    np.testing.assert_allclose(TimeScales.doubling(0.95, shortest_horizon=5).horizons, [5, 10, 20])


@pytest.mark.parametrize("ladder", [TimeScales.halving, TimeScales.doubling])
def test_ladders_up_to_one_need_the_longest_finite_horizon(ladder):
    with pytest.raises(ConfigError, match="longest_horizon=1000"):
        ladder(1.0)
    scales = ladder(1.0, longest_horizon=100, n_step=7)
    assert scales.gammas[-2:] == (0.99, 1.0)
    assert scales.horizons[-1] == math.inf
    assert scales.n_steps[-1] == 7
    with pytest.raises(ConfigError, match="only for gamma=1"):
        ladder(0.9, longest_horizon=100)
    assert len(TimeScales.halving(1.0, longest_horizon=100, components=3)) == 3


def test_windows_do_not_exceed_horizons():
    # 1/(1 − .9) is 10.000000000000002, of which ten steps are meant.
    assert TimeScales.from_gammas([0.9, 0.99], n_step=50).n_steps == (10, 50)
    assert TimeScales.from_gammas([0.9, 0.99], n_step=4).n_steps == (4, 4)
    assert TimeScales.from_gammas([0.89, 0.99], n_step=50).n_steps == (10, 50)
    assert TimeScales.single(0.5, n_step=9).n_steps == (9,)  # k_Z = k


@given(st.integers(2, 10_000))
def test_windows_of_whole_horizons(horizon):
    scales = TimeScales.from_horizons([horizon, 2 * horizon], n_step=10**9)
    assert scales.n_steps[0] == horizon


def test_from_horizons():
    scales = TimeScales.from_horizons([1, 3.125, 100, math.inf])
    np.testing.assert_allclose(scales.gammas, [0, 0.68, 0.99, 1])


# What users call scales


@pytest.mark.parametrize(
    ("scales", "gamma", "made"),
    [
        (None, 0.9, TimeScales.halving(0.9)),
        ("halving", 0.9, TimeScales.halving(0.9)),
        ("doubling", 0.9, TimeScales.doubling(0.9)),
        (" single ", 0.9, TimeScales.single(0.9)),
        ([0.5, 0.9], None, TimeScales.from_gammas([0.5, 0.9])),
        (np.array([0.5, 0.9]), 0.9, TimeScales.from_gammas([0.5, 0.9])),
        ((1,), None, TimeScales.single(1)),
        ([1, 10], None, TimeScales.from_horizons([1, 10])),
        ([10, 100], 0.99, TimeScales.from_horizons([10, 100])),
        ([10, math.inf], 1.0, TimeScales.from_horizons([10, math.inf])),
        ("10 100", None, TimeScales.from_horizons([10, 100])),
        ("0.5, 0.9", None, TimeScales.from_gammas([0.5, 0.9])),
        ("halving components=3 factor=4", 0.99, TimeScales.halving(0.99, components=3, factor=4)),
        ("halving lam=0.5 rule=constant", 0.99, TimeScales.halving(0.99, lam=0.5, rule="constant")),
        ({"ladder": "doubling", "shortest_horizon": 2}, 0.9, TimeScales.doubling(0.9, shortest_horizon=2)),
        ("doubling gamma=0.75", None, TimeScales.doubling(0.75)),
        ({"ladder": "single", "lam": 0.3, "n_step": 2}, 0.9, TimeScales.single(0.9, lam=0.3, n_step=2)),
        (TimeScales((0.5, 0.9), (0.1, 0.2)).to_dict(), None, TimeScales((0.5, 0.9), (0.1, 0.2))),
        (TimeScales((0.5,), None, (3,)), None, TimeScales((0.5,), None, (3,))),
    ],
)
def test_scales_of_what_a_user_names(scales, gamma, made):
    assert TimeScales.of(scales, gamma=gamma) == made
    plain = plain_scales(scales)
    assert TimeScales.of(plain, gamma=gamma) == TimeScales.of(json.loads(json.dumps(plain)), gamma=gamma) == made
    assert plain_scales(plain) == plain and isinstance(hash(plain), int)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("halving", None),
        ({"ladder": "halving", "factor": 2, "components": None}, None),
        ("halving components=4", {"ladder": "halving", "components": 4}),
        (["halving", "rule=matched"], {"ladder": "halving", "rule": "matched"}),
        ({"ladder": "single"}, "single"),
        ([10, 100], (10.0, 100.0)),
        (TimeScales((0.5, 0.9)), (0.5, 0.9)),
        ([2, math.inf], (0.5, 1.0)),
    ],
)
def test_equal_scales_have_one_plain_form(given, plain):
    found = plain_scales(given)
    assert found == plain and repr(found) == repr(plain)


def test_traces_and_windows_are_added_where_there_are_none():
    bare, own = TimeScales((0.5, 0.9)), TimeScales((0.5, 0.9), (0.1, 0.2), (1, 2))
    assert TimeScales.of(bare) is bare and TimeScales.of(own, lam=0.5, n_step=7) is own
    made = TimeScales.of(bare, lam=0.5, rule="constant", n_step=7)
    assert made == TimeScales.from_gammas((0.5, 0.9), lam=0.5, rule="constant", n_step=7)
    assert TimeScales.of(TimeScales((0.5, 0.9), None, (5, 3)), lam=0.5) == TimeScales((0.5, 0.9), (0.45, 0.45), (5, 3))
    named = {"ladder": "halving", "rule": "proportional"}
    assert TimeScales.of("halving lam=0.5", gamma=0.9, lam=0.7) == TimeScales.halving(0.9, lam=0.5)
    assert TimeScales.of(named, gamma=0.9, lam=0.5) == TimeScales.halving(0.9, lam=0.5, rule="proportional")


@pytest.mark.parametrize(
    ("scales", "gamma", "message"),
    [
        (None, None, "gamma is needed .*; got scales='halving': pass gamma=0.99, or scales='halving gamma=0.99', say"),
        ([0.5, 0.9], 0.99, r"gamma must be the largest discount of scales, 0\.9, .* got gamma=0\.99: pass gamma=0\.9"),
        ([0.9, 10], None, r"discounts, all at most 1, or horizons .*; got 0\.9 and 10\.0 in \(0\.9, 10\.0\): pass one"),
        ([], None, r"at least one discount or horizon; got none: pass, say, scales=\(10, 100\)"),
        ([-0.5], None, r"gammas must be in \[0, 1\]; got -0\.5"),
        ([0.5, "0.9"], None, "scales must be a plain number.* got '0.9'"),
        (3, None, "scales must name time scales; got 3: pass discounts, horizons in steps, or one of halving"),
        ("thirding", 0.9, "numbers, or name a ladder that is known; got 'thirding': pass discounts"),
        ("halving factor=3 components", 0.9, "'halving' as KEY=VALUE, .*; got 'components': .* 'halving components=4'"),
        ("halving rule=capped factor=x", 0.9, "must give settings of the ladder 'halving' .*; got 'factor=x': pass"),
        (
            "halving factor=3 factor=4",
            0.9,
            "each setting of the ladder 'halving' once; got 'halving factor=3 factor=4'",
        ),
        ("halving rule=", 0.9, "settings of the ladder 'halving' as KEY=VALUE, .*; got 'rule=': pass"),
        ("halving lam=0.5 rule=mached", 0.9, "rule in scales must be one of .*; got 'mached': did you mean 'matched'"),
        ({"ladder": "thirding"}, 0.9, "name a ladder that is known; got 'thirding'"),
        ({"ladder": "halving", "gamma": 0.9}, 0.9, "must leave gamma to the algorithm"),
        ({"ladder": "halving", "horizon": 9}, 0.9, "settings of the ladder 'halving'; got {'horizon': 9.0} .*horizon"),
        ({"gammas": [0.9], "gama": 1}, None, "no other keys"),
        ("doubling", 1.0, r"up to gamma=1 .*pass scales='doubling longest_horizon=1000'"),
    ],
)
def test_what_names_no_scales_is_refused(scales, gamma, message):
    with pytest.raises(ConfigError, match=message):
        TimeScales.of(scales, gamma=gamma)


# Trace rules


def test_trace_rules():
    c = 0.95 * 0.99
    capped = TimeScales.halving(0.99, lam=0.95)
    assert capped.trace_decays == tuple(min(c, gamma) for gamma in capped.gammas)
    constant = TimeScales.halving(0.99, lam=0.95, rule="constant")
    assert constant.trace_decays == tuple(0.95 * gamma for gamma in constant.gammas)
    matched = quietly(TimeScales.halving, 0.99, lam=0.95, rule="matched")
    assert matched.trace_decays == (c,) * 6
    proportional = TimeScales.halving(0.99, lam=0.95, rule="proportional")
    np.testing.assert_allclose(proportional.trace_decays, [0.36, 0.68, 0.84, 0.92, 0.96, 0.98])
    # The rule of the critic leaves the policy's advantage alone.
    assert proportional.actor_trace_decay == c
    assert {s.actor_trace_decay for s in (capped, matched)} == {None}
    assert {s.trace_decays[-1] for s in (capped, constant, matched)} == {c}


def test_long_horizons_share_a_decay_under_capped():
    """γ = .9999, λ = .95: 9 of 13 components; proportional gives each its own."""
    capped = TimeScales.halving(0.9999, lam=0.95).trace_decays
    assert capped.count(capped[-1]) == 9
    proportional = TimeScales.halving(0.9999, lam=0.95, rule="proportional").trace_decays
    assert len(set(proportional)) == 13


@pytest.mark.parametrize("rule", ["capped", "matched", "constant"])
def test_one_scale_has_one_decay(rule):
    assert TimeScales.single(0.99, lam=0.95, rule=rule) == TimeScales.single(0.99, lam=0.95)


# Contraction


def test_factors_of_the_papers_matched_rule():
    with pytest.warns(ContractionWarning, match=r"γ=0.680 .* 4.38, γ=0.840 .* 1.69; contraction needs"):
        scales = TimeScales.halving(0.99, lam=0.95, rule="matched")
    np.testing.assert_allclose(scales.contraction_factors[:2], [4.38, 1.69], atol=0.005)


def test_the_warning_names_the_callers_line_and_comes_once():
    makers = [
        lambda: TimeScales((0.1, 0.9), (0.9, 0.9)),
        lambda: TimeScales.from_gammas([0.1, 0.9], lam=1.0, rule="matched"),
        lambda: TimeScales.halving(0.99, lam=0.95, rule="matched"),
        lambda: TimeScales.doubling(0.9, lam=0.95, rule="matched"),
        lambda: TimeScales.from_horizons([2, 100], lam=0.95, rule="matched"),
    ]
    for make in makers:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make()
        assert [warning.category for warning in caught] == [ContractionWarning]
        assert caught[0].filename == __file__
        assert caught[0].lineno == make.__code__.co_firstlineno


def test_factors_at_the_limits():
    scales = quietly(TimeScales, (0.5, 0.9, 1.0), (1.0, 0.9, 1.0))
    assert scales.contraction_factors == (math.inf, 0.0, 0.0)
    assert TimeScales((1.0,), (0.3,)).contraction_factors == (1.0,)  # reported, not warned about
    assert TimeScales((0.0,), (0.25,)).contraction_factors == (1 / 3,)
    with pytest.warns(ContractionWarning):
        TimeScales((0.5,), (0.75,))  # exactly 1


def test_error_gains_at_the_limits():
    assert TimeScales((0.5, 0.9, 1.0), (0.25, 0.5, 0.75)).error_gains == (math.inf, math.inf, math.inf)
    assert TimeScales((1.0,), (1.0,)).error_gains == (1.0,)
    np.testing.assert_allclose(TimeScales((0.0, 0.9), (0.0, 0.9)).error_gains, [10, 1])


@pytest.mark.parametrize("form", ["bootstrap", "difference"])
@pytest.mark.parametrize("rule", ["capped", "constant", "proportional"])
def test_an_error_of_the_fit_grows_by_its_gain(form, rule):
    """A state that never changes, where every W_z settles at its target plus an error of its own."""
    scales = TimeScales.halving(0.96, lam=0.9, rule=rule)
    steps, size = 200, len(scales)
    errors = np.random.default_rng(0).normal(size=size)
    ends = np.zeros(steps, bool)
    parts = np.zeros(size)
    for _ in range(100):
        table = np.broadcast_to(parts, (steps, size))
        flags = {"terminated": ends, "truncated": ends, "scales": scales, "form": form}
        parts = lambda_targets(np.full(steps, 0.5), table, table, **flags)[0] + errors
    gains = np.array(scales.error_gains) if form == "bootstrap" else scales.error_gains[-1]
    np.testing.assert_allclose(parts.sum() - 0.5 * scales.horizons[-1], (gains * errors).sum(), rtol=1e-5)


@settings(max_examples=200)
@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1))
def test_warning_where_the_factor_is_at_least_one(gamma, decay):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scales = TimeScales((gamma,), (decay,))
    (factor,) = scales.contraction_factors
    assert bool(caught) == (factor >= 1)
    if abs(decay - (1 + gamma) / 2) > 1e-9:
        assert (factor < 1) == (decay < (1 + gamma) / 2)


@settings(max_examples=200)
@given(st.floats(0, 0.99999), st.floats(0, 1), st.sampled_from(["capped", "constant", "proportional"]))
def test_sound_rules_always_contract(gamma, lam, rule):
    """No warning from any of these: the test run turns warnings into errors."""
    scales = TimeScales.halving(gamma, lam=lam, rule=rule)
    for factor, discount in zip(scales.contraction_factors, scales.gammas, strict=True):
        assert 0 <= factor <= (discount if rule != "proportional" else 0.5 + 1e-9)


# An object among others


def test_scales_are_frozen_hashable_and_equal_by_value():
    scales = TimeScales([0.5, np.float64(0.9)], np.array([0.5, 0.7]), [np.int64(2), 3])
    assert scales == TimeScales((0.5, 0.9), (0.5, 0.7), (2, 3))
    assert hash(scales) == hash(TimeScales((0.5, 0.9), (0.5, 0.7), (2, 3)))
    numbers = [*scales.gammas, *scales.trace_decays, *scales.n_steps]
    assert {type(number) for number in numbers} == {float, int}
    assert len(scales) == 2
    with pytest.raises(AttributeError):
        scales.gammas = (0.5,)
    for same in (copy.deepcopy(scales), pickle.loads(pickle.dumps(scales))):
        assert same == scales


@pytest.mark.parametrize("rule", ["capped", "matched", "proportional"])
def test_round_trip_through_json(rule):
    scales = quietly(TimeScales.halving, 0.99, lam=0.95, rule=rule, n_step=5)
    # No warning here: it was given when the scales were chosen.
    assert TimeScales.from_dict(json.loads(json.dumps(scales.to_dict()))) == scales
    assert TimeScales.from_dict({"gammas": [0.5]}) == TimeScales((0.5,))


@pytest.mark.parametrize("plain", [{}, {"gammas": [0.5], "lam": 1}, [0.5], None])
def test_from_dict_refuses_other_mappings(plain):
    with pytest.raises(ConfigError, match="pass what to_dict returned"):
        TimeScales.from_dict(plain)


def test_labels_tell_discounts_apart():
    assert TimeScales.halving(0.99).labels == ("0.680", "0.840", "0.920", "0.960", "0.980", "0.990")
    assert TimeScales((0.9, 0.9999)).labels == ("0.9000", "0.9999")
    assert TimeScales((0.99991, 0.99992, 1.0)).labels == ("0.99991", "0.99992", "1.00000")
    assert TimeScales((0.0, 1.0)).labels == ("0.000", "1.000")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6, unique=True))
def test_labels_are_distinct_and_only_one_reads_as_one(gammas):
    scales = TimeScales(tuple(sorted(set(gammas))))
    assert len(set(scales.labels)) == len(scales)
    for label, gamma in zip(scales.labels, scales.gammas, strict=True):
        assert (float(label) == 1) == (gamma == 1)


def test_repr_names_what_is_given():
    assert repr(TimeScales.single(0.5)) == "TimeScales(gammas=(0.5,))"
    scales = TimeScales.halving(0.99, lam=0.95, rule="proportional")
    assert eval(repr(scales)) == scales


# Errors say what was wrong, the value, and what to do.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        # Field case B22: repeated and unsorted discounts.
        (lambda: TimeScales((0.9, 0.9)), r"strictly increasing in \[0, 1\]; got \(0.9, 0.9\): drop the repeated"),
        (lambda: TimeScales((0.9, 0.5)), r"got \(0.9, 0.5\): sort them"),
        (lambda: TimeScales((0.5, 1.1)), r"gammas must be in \[0, 1\]; got 1.1"),
        (lambda: TimeScales((math.nan,)), r"gammas must be in \[0, 1\]; got nan"),
        (lambda: TimeScales(()), "at least one discount"),
        (lambda: TimeScales(0.9), "gammas must be a sequence of numbers; got 0.9"),
        (lambda: TimeScales("0.9"), "gammas must be a sequence of numbers; got '0.9'"),
        (lambda: TimeScales(("0.9",)), "gammas must be a plain number.* got '0.9'"),
        (lambda: TimeScales((True,)), "got True"),
        (lambda: TimeScales((0.5, 0.9), (0.5,)), "trace_decays needs one entry per discount; got 1 for 2"),
        (lambda: TimeScales((0.9,), (1.01,)), r"trace_decays must be in \[0, 1\]; got 1.01: .* lower λ_z"),
        (lambda: TimeScales((0.9,), (-0.1,)), "got -0.1"),
        (lambda: TimeScales((0.9,), None, (0,)), "n_steps must be a whole number of at least 1; got 0"),
        (lambda: TimeScales((0.9,), None, (1.5,)), "n_steps must be a whole number of at least 1; got 1.5"),
        (lambda: TimeScales((0.9,), None, (1, 2)), "n_steps needs one entry per discount; got 2 for 1"),
        (lambda: TimeScales((0.9,), (0.9,), None, 2), r"actor_trace_decay must be in \[0, 1\]; got 2"),
        (lambda: TimeScales.single(0.99, lam=1.5), r"lam must be in \[0, 1\]; got 1.5: .* rule='matched'"),
        (lambda: TimeScales.single(1.5), r"gamma must be in \[0, 1\]; got 1.5"),
        (lambda: TimeScales.single(0.9, n_step=0), "n_step must be a whole number"),
        (
            lambda: TimeScales.single(0.9, lam=0.9, rule="cap"),
            "one of .* got 'cap': did you mean 'capped'",
        ),
        (lambda: TimeScales.from_gammas([]), "at least one discount"),
        (lambda: TimeScales.from_gammas([], lam=0.9, n_step=1), "at least one discount"),
        (lambda: TimeScales.from_horizons([]), r"horizons must name at least one; got none: pass.* horizons=\(100,\)"),
        (lambda: TimeScales.from_horizons([10, 5]), r"horizons must be strictly increasing; got \(10.0, 5.0\)"),
        (lambda: TimeScales.from_horizons([0.5]), "horizons must be at least 1 step; got 0.5"),
        (lambda: TimeScales.halving(0.99, components=8), "components must be between 1 and 7.* got 8"),
        (lambda: TimeScales.halving(0.99, components=0), "components must be a whole number of at least 1; got 0"),
        (lambda: TimeScales.halving(0.99, components=2, shortest_horizon=3), "pass one of them"),
        (lambda: TimeScales.halving(0.99, factor=1), "factor must be a finite number above 1; got 1.0"),
        (lambda: TimeScales.doubling(0.99, factor=1 + 1e-10), "factor must be at least 1.001; got 1.0000000001"),
        (lambda: TimeScales.halving(1, longest_horizon=math.inf), "longest_horizon must be finite"),
        (lambda: TimeScales.doubling(1, longest_horizon=1e17), "got 1e\\+17: .* no discount below 1 has that horizon"),
        (lambda: TimeScales.halving(1, longest_horizon=10, components=1), "components must be between 2 and"),
        (lambda: TimeScales.doubling(0.5, shortest_horizon=3), "shortest_horizon must be at most the longest, 2 steps"),
        (lambda: TimeScales.single(0.9).contraction_factors, "contraction_factors needs trace decays.* lam=0.95"),
        (lambda: TimeScales.single(0.9).error_gains, "error_gains needs trace decays.* lam=0.95"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TDDeltaError)
