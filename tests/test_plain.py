"""Numbers and names at the door: what is right, written in an unusual way, is taken as what is usual."""

import dataclasses
import pickle
from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tddelta as tdd
from tddelta import _plain
from tddelta.deep import ppo
from tddelta.errors import ConfigError
from tddelta.experiments.plan import plan_runs, whole_seeds
from tddelta.tabular.loops import check_step_sizes
from tddelta.tabular.sampling import check_seeds

POLE = "gym:CartPole-v1"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.array(3), 3),
        (np.bool_(False), False),
        (np.str_("a"), "a"),
        (jnp.float32(0.5), 0.5),
        (jnp.bfloat16(0.5), 0.5),
        (torch.tensor(2), 2),
        (torch.tensor([0.5, 1.0], requires_grad=True), [0.5, 1.0]),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 2), 0.5),
        ({np.str_("a"): (np.int64(1), [np.array([1, 2])])}, {"a": (1, [[1, 2]])}),
    ],
)
def test_values_become_pythons_own(value, plain):
    found = _plain.plain(value)
    assert found == plain and type(found) is type(plain)


def test_what_is_traced_stays():
    assert jax.jit(lambda x: _plain.plain(x) * 2)(3.0) == 6.0


def test_settings_of_other_libraries_are_those_of_python():
    usual = ppo.preset(
        POLE,
        environment_kwargs={"max_episode_steps": 50},
        steps=1_000_000,
        environments=32,
        hidden_sizes=(32, 32),
        gamma=0.5,
        scales="halving components=1",
        component_weights=(2.0,),
        learning_rate=0.5,
        anneal_learning_rate=False,
        activation="relu",
        rule="capped",
    )
    other = ppo.preset(
        np.str_(f" {POLE}\u200b"),
        environment_kwargs={np.str_("max_episode_steps"): np.int64(50)},
        steps=1e6,
        environments=np.float64(32),
        hidden_sizes=np.array([32, 32]),
        gamma=np.float32(0.5),
        scales={"ladder": np.str_("halving"), "components": np.array(1)},
        component_weights=(torch.tensor(2),),
        learning_rate=jnp.float32(0.5),
        anneal_learning_rate=np.bool_(False),
        activation=np.str_("relu "),
        network=" mlp",
        rule=" capped ",
    )
    assert other == usual and hash(other.environment_kwargs) == hash(usual.environment_kwargs)
    assert repr(other) == repr(usual) and other.to_dict() == usual.to_dict()


def test_whole_numbers_of_a_ladder_name_the_same_run():
    paths = {
        plan_runs("Catch", "ppo-delta", seeds=[0], out="o", scales=horizons, lam=lam)[0].path
        for horizons, lam in (([2, 10], 1), ((2.0, 10.0), 1.0), (np.array([2, 10]), np.int64(1)))
    }
    assert len(paths) == 1


@pytest.mark.parametrize(
    ("environment", "name", "given"),
    [("gym:CartPole-v1", "max_episode_steps", 1e2), ("gym:CartPole-v1", "frame_stack", 2.0), ("Qbert", "stack", 2.0)],
)
def test_options_that_are_whole_numbers_name_the_same_run(environment, name, given):
    plans = [
        plan_runs(environment, "ppo", seeds=[0], out="o", environment_kwargs={name: value})[0]
        for value in (given, int(given))
    ]
    assert plans[0].path == plans[1].path and plans[0].config == plans[1].config
    recorded = plans[0].content["environment_kwargs"][name]
    assert recorded == given and type(recorded) is int
    made = plans[0].config.environment_object()
    assert name != "max_episode_steps" or (made.time_limit == 100 and type(made.time_limit) is int)


def test_options_nested_in_options_have_a_hash():
    frozen = _plain.frozen({"a": {"b": [1, {"c": 2}]}})
    assert frozen == {"a": {"b": (1, {"c": 2})}} and hash(frozen) == hash(_plain.frozen(frozen))


def test_ladders_and_seeds_and_step_sizes():
    usual = tdd.TimeScales.from_gammas([0.5, 0.75], lam=0.5, n_step=4)
    for gammas in (np.array([0.5, 0.75], np.float32), jnp.array([0.5, 0.75]), (Fraction(1, 2), torch.tensor(0.75))):
        assert tdd.TimeScales.from_gammas(gammas, lam=np.array(0.5), n_step=4.0) == usual
    named = tdd.TimeScales.of({"ladder": "halving", "components": np.float64(2)}, gamma=0.75, lam=0.5)
    assert named == tdd.TimeScales.halving(0.75, components=2, lam=0.5)
    with pytest.raises(ConfigError, match=r"lam must be a plain number.*; got True"):
        tdd.TimeScales.single(0.5, lam=np.bool_(True))
    assert whole_seeds(3.0) == whole_seeds(np.array([0, 1, 2])) == [0, 1, 2]
    assert check_seeds(3.0) == check_seeds(torch.arange(3)) == (0, 1, 2)
    rates, _ = check_step_sizes(jnp.array([0.5, 0.25]), 1)
    assert rates.tolist() == [[0.5], [0.25]]


def test_options_that_are_equal_but_of_another_kind_are_two_environments():
    from tddelta.deep import environments

    one, other = (ppo.preset("CartPole-v1", environment_kwargs={"gravity": kind}) for kind in (5, 5.0))
    assert one != other and jax.tree.structure(one) != jax.tree.structure(other)  # else they would share a program
    assert one == dataclasses.replace(one) and hash(one) == hash(dataclasses.replace(one))
    assert one == pickle.loads(pickle.dumps(one))
    one, other = (environments.resolve("gym:FrozenLake-v1", {"is_slippery": flag}) for flag in (True, 1))
    assert one is not other and one is environments.resolve("gym:FrozenLake-v1", {" is_slippery ": True})
