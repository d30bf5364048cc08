"""Settings: presets, what is refused, and what an option changes and what it leaves alone."""

import dataclasses
import functools
import json
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tddelta as tdd
from deep_environments import QUICKLY, init, play, roll, state_of, tiny, update
from tddelta import ConfigError, ContractionWarning
from tddelta.deep import agents, networks, ppo
from tddelta.deep.agents import AGENTS, Agent
from tddelta.deep.ppo import shuffled
from tddelta.deep.rollout import Moments, no_moments
from tddelta.deep.training import run_config
from tddelta.experiments.plan import differences
from tddelta.runs import config_hash
from tddelta.targets import lambda_targets

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(16, 16), (128, 64), (17, 31), (16, 1000), (1, 1), (50, 1), (15, 40)])
def test_a_shuffle_is_a_permutation(shape):
    orders = jax.jit(jax.vmap(lambda key: shuffled(key, *shape)))(jax.random.split(jax.random.key(0), 3))
    for order in np.asarray(orders):
        np.testing.assert_array_equal(np.sort(order), np.arange(shape[0] * shape[1]))
    if orders.shape[1] > 5:
        assert not np.array_equal(orders[0], orders[1]) and not np.array_equal(orders[0], np.arange(orders.shape[1]))


@pytest.fixture(scope="module")
def places():
    """Places of every step of a 16 × 32 rollout, in 4,000 shuffles."""
    orders = jax.jit(jax.vmap(lambda key: shuffled(key, 16, 32)))(jax.random.split(jax.random.key(1), 4000))
    return np.argsort(orders, axis=1)


@pytest.mark.parametrize("step", [0, 1, 31, 32, 300, 511])
def test_a_shuffle_sends_every_step_everywhere(places, step):
    assert stats.chisquare(np.bincount(places[:, step] // 4, minlength=128)).pvalue > 1e-4


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 32), (0, 33), (5, 5 + 15 * 32), (7, 300), (100, 131)])
def test_a_shuffle_parts_neighbours_in_time_and_in_the_batch(places, one, other):
    # In the same of eight minibatches as often as by chance.
    together = np.sum(places[:, one] // 64 == places[:, other] // 64)
    assert stats.binomtest(int(together), len(places), 63 / 511).pvalue > 1e-4
    # And in any order, at any distance.
    distance = (places[:, one] - places[:, other]) % 512
    assert stats.chisquare(np.bincount(distance[distance > 0] // 32, minlength=16), None).pvalue > 1e-4


def test_presets():
    config = ppo.preset("Breakout-MinAtar")
    assert config.agent is AGENTS["ppo-delta"]
    assert (config.environments, config.rollout_length, config.epochs, config.minibatches) == (64, 128, 4, 8)
    assert (config.gamma, config.lam, config.clip, config.adam_epsilon) == (0.99, 0.95, 0.2, 1e-5)
    assert (config.learning_rate, config.anneal_learning_rate, config.entropy_coefficient) == (1e-3, True, 0.01)
    assert (config.value_coefficient, config.max_gradient_norm, config.normalize_advantages) == (1, 0.5, True)
    assert (config.network, config.hidden_sizes, config.component_scale) == ("mlp", (64, 64), "none")
    assert config.heads == len(config.critic_scales) == 6 and config.updates == -(-2_000_000 // 8192)
    assert ppo.preset("Catch") == dataclasses.replace(ppo.preset("Catch-bsuite"), environment="Catch")


def test_overrides():
    config = ppo.preset(
        "CartPole-v1", "ppo+", learning_rate=0.5, hidden_sizes=[3, 4], environment_kwargs={"gravity": 3.0}
    )
    assert (config.learning_rate, config.hidden_sizes, config.agent.name) == (0.5, (3, 4), "ppo+")
    assert config.environment_kwargs == (("gravity", 3.0),) and config.environments == 16
    assert (config.heads, len(config.critic_scales), len(config.ladder)) == (6, 1, 6)
    # Updates are rounded up.
    assert tiny().batch == 24 and tiny(steps=96).updates == 4 and tiny(steps=97).updates == 5


@pytest.mark.parametrize(
    ("agent", "heads", "scales"), [("ppo", 1, 1), ("ppo+", 2, 1), ("ppo-delta", 2, 2), ("ppo-multi", 2, 2)]
)
def test_a_ladder_of_two(agent, heads, scales):
    config = ppo.preset("CartPole-v1", agent, scales=(3.125, 100))
    assert (config.heads, len(config.critic_scales)) == (heads, scales)
    np.testing.assert_allclose(config.ladder.gammas, [0.68, 0.99])
    assert config.critic_scales.gammas[-1] == config.ladder.gammas[-1]


def test_the_longest_horizon_is_gamma():
    config = ppo.preset("CartPole-v1", scales=[10, 1000])
    np.testing.assert_allclose([config.gamma, config.ladder.gammas[-1]], 0.999)
    assert ppo.preset("CartPole-v1", scales=[10, 1000], gamma=0.999).gamma == 0.999
    assert ppo.preset("CartPole-v1", scales=np.array([3.125, 50.0])).scales == (3.125, 50.0)
    with pytest.raises(
        ConfigError, match=r"gamma must be the largest discount of scales, 0\.999, .*; got gamma=0\.99:"
    ):
        ppo.preset("CartPole-v1", scales=[10, 1000], gamma=0.99)


def test_the_rule_of_the_agent_and_another():
    assert ppo.preset("CartPole-v1", "ppo-multi").critic_scales.trace_decays[0] == pytest.approx(0.95 * 0.68)
    assert ppo.preset("CartPole-v1", "ppo-delta").critic_scales.trace_decays[0] == pytest.approx(0.95 * 0.68)
    assert ppo.preset("CartPole-v1", "ppo-delta-bootstrap").critic_scales.trace_decays[0] == pytest.approx(0.68)
    with pytest.warns(tdd.ContractionWarning):
        config = ppo.preset("CartPole-v1", "ppo-delta-matched")
        assert config.critic_scales.trace_decays[0] == pytest.approx(0.95 * 0.99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(functools.partial(ppo.init, config), jax.random.key(0))
    proportional = ppo.preset("CartPole-v1", "ppo-delta", rule="proportional").critic_scales.trace_decays
    np.testing.assert_allclose(proportional, [1 - 2 / h for h in (3.125, 6.25, 12.5, 25, 50, 100)])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"learning_rat": 1}, "unknown setting 'learning_rat': did you mean learning_rate"),
        ({"steps": 0}, "steps must be a whole number of at least 1; got 0"),
        ({"environments": 2.5}, "environments must be a whole number of at least 1; got 2.5"),
        ({"epochs": -1}, "epochs must be a whole number of at least 1; got -1"),
        ({"minibatches": 7}, "minibatches must divide environments × rollout_length = 2048; got 7: use 8"),
        ({"minibatches": 12}, "minibatches must divide .* got 12: use 8"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0 and finite; got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0 and finite; got nan"),
        ({"clip": -0.2}, "clip must be above 0 and finite; got -0.2"),
        ({"entropy_coefficient": -1}, "entropy_coefficient must be at least 0 and finite; got -1"),
        ({"gamma": 1.5}, r"gamma must be in \[0, 1\]; got 1.5"),
        ({"lam": -0.1}, r"lam must be in \[0, 1\]; got -0.1"),
        ({"lam": 1.5}, r"lam must be in \[0, 1\]; got 1.5"),
        ({"actor_lam": 1.1}, r"actor_lam must be in \[0, 1\]; got 1.1"),
        ({"reward_discount": 2.0, "normalize_rewards": True}, r"reward_discount must be in \[0, 1\]; got 2.0"),
        ({"component_scale": "big"}, "component_scale must be one of none, horizon, running; got 'big'"),
        ({"reward_clipping": "clip"}, "reward_clipping must be one of none, sign; got 'clip'"),
        ({"time_limit": "stop"}, "time_limit must be one of truncate, terminate; got 'stop'"),
        ({"rule": "caped"}, "rule must be one of capped, matched, constant, proportional; got 'caped'"),
        ({"activation": "rel"}, "unknown activation 'rel': did you mean relu"),
        ({"network": "conv"}, "unknown network 'conv': use mlp, minatar-conv, nature-conv or package.module:function"),
        ({"network": "nowhere:net"}, "no network at 'nowhere:net'"),
        ({"network": "minatar-conv"}, r"convolution needs images .*got \(4,\): use network mlp"),
        ({"hidden_sizes": (64, 0)}, r"hidden_sizes must be whole numbers of at least 1; got \(64, 0\)"),
        ({"scales": "halving factor=1"}, "factor in scales must be a finite number above 1; got 1.0"),
        ({"scales": {"ladder": "halving", "rule": "constant"}, "rule": "capped"}, "rule is for scales without traces"),
        ({"scales": "halving lam=0.5"}, "beside scales, not in it; got 0.5: drop it there and pass lam=0.5"),
        (
            {"scales": {"ladder": "halving", "lam": 0.5}, "lam": 0.9},
            "lam must be given beside scales, not in it; got 0.5",
        ),
        ({"horizons": (10, 100)}, r"horizons is part of scales now; got \(10, 100\): pass scales=\(10, 100\), say"),
        ({"components": 3}, "components is part of scales now; got 3: pass scales='halving components=4', say"),
        ({"gammas": [0.9, 0.99]}, r"gammas is part of scales now; got \[0.9, 0.99\]: pass scales=\(0.9, 0.99\), say"),
        ({"reward_discount": 0.5}, "reward_discount is the discount of normalize_rewards, which is off; got 0.5"),
        ({"filters": 8}, "filters are those of minatar-conv; got 8 for network mlp"),
        (
            {"network": "test_policy:linear", "activation": "relu"},
            "activation is for the networks mlp, minatar-conv, nature-conv; got 'relu' for a network of your own",
        ),
        (
            {"component_weights": (1, 1)},
            r"component_weights must be 6 numbers ≥ 0, one per scale of ppo-delta; got",
        ),
        ({"component_weights": [1] * 5 + [-1]}, "component_weights must be 6 numbers ≥ 0"),
        ({"gamma": 1.0}, "longest_horizon"),
        (
            {"gamma": 1.0, "scales": "halving longest_horizon=100", "component_scale": "horizon"},
            "component_scale horizon needs finite horizons; got gamma 1: use running",
        ),
        ({"hidden_sizes": 64}, "hidden_sizes must be several whole numbers, as in .* got 64"),
        ({"hidden_sizes": (64.5,)}, r"hidden_sizes must be several whole numbers, as in .* got \(64.5,\)"),
        ({"learning_rate": None}, "learning_rate must be a number; got None"),
        ({"clip": "0.2"}, "clip must be a number; got '0.2'"),
        ({"normalize_rewards": "False"}, "normalize_rewards must be True or False; got 'False'"),
        ({"epochs": True}, "epochs must be a whole number of at least 1; got True"),
        ({"network": "math:sqrt"}, "network 'math:sqrt' cannot be made, TypeError: .*: it must be a function f"),
        (
            {"environment_kwargs": {"max_steps_in_episode": "abc"}},
            "CartPole-v1 cannot make a step, TypeError: .*: check",
        ),
        ({"steps": "1e6"}, "steps must be a whole number of at least 1; got '1e6': write it without quotes"),
        ({"learning_rate": np.bool_(True)}, "learning_rate must be a number; got True"),
        ({"learning_rate": 10**400}, "learning_rate must be above 0 and finite; got inf"),
        ({"steps": 10**23}, r"steps must be at most 9,223,372,036,854,775,807; got 1000"),
        ({"steps": 2**62}, r"steps / \(environments × rollout_length\) must be at most 2,147,483,647; got 2,25"),
        ({"environments": 10**11}, "environments must be at most 2,147,483,647; got 100000000000: pass a smaller"),
        ({"rollout_length": 10**9}, "environments × rollout_length must be at most 2,147,483,647; got 16,000"),
        ({"hidden_sizes": (2**30, 2**30)}, "the network need at least .* GiB, and there are .* GiB: pass fewer env"),
        ({"hidden_sizes": ()}, r"hidden_sizes must be whole numbers of at least 1; got \(\): name one for each layer"),
        ({"environment_kwargs": {1: 2}}, r"environment_kwargs must be a dict of names and values; got \{1: 2\}"),
        ({"environments": 6, "shards": 4}, "shards must divide environments = 6; got 4: use 3"),
        ({"shards": 0}, "shards must be a whole number of at least 1; got 0"),
        (
            {"environments": 6, "rollout_length": 8, "shards": 6, "minibatches": 3},
            r"shards × rollout_length = 8; got 3: use 2, or fewer shards",
        ),
        ({"component_trunks": True, "shared_trunk": True}, "got shared_trunk too: drop one"),
        ({"anchor": -1}, "anchor must be a whole number of at least 0; got -1"),
        ({"reward_noise": -1.0}, "reward_noise must be at least 0 and finite; got -1"),
        ({"reward_noise": float("inf")}, "reward_noise must be at least 0 and finite; got inf"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ppo.preset("CartPole-v1", **settings)


def test_init_checks_too():
    with pytest.raises(ConfigError, match="minibatches must divide"):
        ppo.init(ppo.Config(environment="CartPole-v1", minibatches=7), jax.random.key(0))


def test_names_of_agents():
    assert agents.resolve("ppo") is AGENTS["ppo"] and agents.resolve(AGENTS["ppo"]) is AGENTS["ppo"]
    with pytest.raises(KeyError) as caught:
        AGENTS["ppo-dleta"]
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value) == "unknown agent 'ppo-dleta': did you mean ppo-delta?"
    assert agents.resolve(f"{__name__}:HALF") is HALF
    for name, sentence in (
        ("ppo-dleta", "unknown agent 'ppo-dleta': did you mean ppo-delta"),
        ("dqn", r"unknown agent 'dqn': known are ppo, ppo\+, ppo-multi, ppo-delta, "),
        (f"{__name__}:NOBODY", f"no agent at '{__name__}:NOBODY'"),
        (f"{__name__}:RANDOM", f"'{__name__}:RANDOM' must be a tddelta Agent; got Generator"),
        (3, r"an agent is a name, package\.module:agent or an Agent; got 3"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            agents.resolve(name)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads": "two"}, "heads must be one of one, ladder; got 'two'"),
        ({"basis": "advantages"}, "basis must be one of deltas, values, sum; got 'advantages'"),
        ({"targets": 3}, "targets must be a function; got 3"),
        ({"target": None}, "an agent has no field 'target'; it has advantages, basis, heads"),
    ],
)
def test_agents_that_cannot_be(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        AGENTS["ppo"].replace(**changes)


def test_settings_are_json():
    config = tiny(network=half_network, component_weights=[1] * 6, actor_lam=0.5, agent=HALF)
    plain = json.loads(json.dumps(config.to_dict(), allow_nan=False))
    assert plain["network"] == f"{__name__}:half_network" and plain["agent"] == "half"
    assert plain["environment"] == "deep_environments:Scripted" and plain["component_weights"] == [1] * 6
    assert HALF.to_dict()["targets"] == f"{__name__}:half_targets"
    assert AGENTS["ppo"].to_dict()["targets"] == "tddelta.targets:lambda_targets"
    partial = AGENTS["ppo-delta"].replace(name="mine", targets=functools.partial(lambda_targets, form="difference"))
    assert partial.to_dict()["targets"] == "tddelta.targets:lambda_targets(form='difference')"


def half_targets(rewards, deltas, next_deltas, *, terminated, truncated, scales):
    """Targets of one's own: half the reward for the first component, nothing for the others."""
    assert deltas.shape[-1] == len(scales) and terminated.dtype == truncated.dtype == jnp.bool_
    return jnp.zeros_like(deltas).at[..., 0].set(rewards / 2)


HALF = Agent("half", targets=half_targets)


class HalfNetwork(eqx.Module):
    """A network of one's own: linear, with the policy on the first half of the observation."""

    policy: networks.Linear
    critic: networks.Linear

    def __call__(self, observation):
        return self.policy(observation[:2]), self.critic(observation)


def half_network(key, observation_space, action_space, heads):
    policy_key, critic_key = jax.random.split(key)
    critic = networks.Linear(critic_key, observation_space.shape[0], heads, 0.1)
    return HalfNetwork(networks.Linear(policy_key, 2, action_space.n, 0.1), critic)


@pytest.mark.slow
def test_an_agent_a_network_and_weights_of_ones_own():
    weights = (2.0, 0.0, 1.0, 0.0, 0.0, 0.5)
    config = tiny(agent=HALF, network=half_network, component_weights=weights, value_coefficient=3.0)
    state = init(config, jax.random.key(0))
    rewards = RANDOM.normal(size=(8, 3))
    never = np.zeros((8, 3), bool)
    state = state._replace(playing=play(state.playing, rewards, never, never))
    _, rollout_key, _ = jax.random.split(state.key, 3)
    _, rollout = roll(config, state.learned, state.playing, rollout_key)
    following, metrics = update(config, state)
    heads = np.asarray(rollout.heads, np.float64)
    targets = np.zeros_like(heads)
    targets[..., 0] = rewards / 2
    losses = 0.5 * np.mean((heads - targets) ** 2, (0, 1))
    np.testing.assert_allclose(metrics.component_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(metrics.value_loss, losses @ weights, rtol=1e-5)
    before, after = state.learned.parameters, following.learned.parameters
    assert isinstance(after, HalfNetwork)
    moved = np.abs(after.critic.weight - before.critic.weight).max(1) > 0
    np.testing.assert_array_equal(moved, np.array(weights) > 0)


def signals(config, rollout, learned=None):
    return ppo.learning_signals(config, learned or state_of(tiny()).learned, rollout)


@pytest.fixture(scope="module")
def rollout():
    state = state_of(tiny())
    ends = RANDOM.random((8, 3)) < 0.1, RANDOM.random((8, 3)) < 0.2
    return roll(tiny(), state.learned, play(state.playing, RANDOM.normal(size=(8, 3)), *ends), jax.random.key(0))[1]


@pytest.mark.parametrize("changes", [{}, {"lam": 0.3}, {"rule": "proportional"}])
def test_the_value_of_ppo_delta_has_the_target_of_a_single_critic(rollout, changes):
    single = rollout._replace(
        heads=rollout.heads.sum(-1, keepdims=True),
        final_heads=rollout.final_heads.sum(-1, keepdims=True),
        last_heads=rollout.last_heads.sum(-1, keepdims=True),
    )
    _, targets, advantages = signals(tiny(**changes), rollout)
    _, wanted, same = signals(tiny(agent="ppo", **changes), single)
    np.testing.assert_allclose(targets.sum(-1), wanted[..., 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(advantages, same, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_the_actors_trace_leaves_the_critic_alone(rollout, lam):
    values, targets, advantages = signals(tiny(), rollout)
    same_values, same_targets, other_advantages = signals(tiny(actor_lam=lam), rollout)
    np.testing.assert_allclose(same_values, values, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(same_targets, targets, rtol=1e-5, atol=1e-5)
    assert np.abs(other_advantages - advantages).max() > 1e-3
    _, other_targets, expected = signals(tiny(lam=lam), rollout)
    np.testing.assert_allclose(other_advantages, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(other_targets - targets).max() > 1e-3


@pytest.mark.parametrize("rule", ["matched", "capped", "proportional"])
@pytest.mark.filterwarnings("ignore::tddelta.ContractionWarning")
def test_the_critics_traces_leave_the_actor_alone(rollout, rule):
    _, targets, advantages = signals(tiny(), rollout)
    _, other_targets, same_advantages = signals(tiny(rule=rule), rollout)
    np.testing.assert_allclose(same_advantages, advantages, rtol=1e-5, atol=1e-5)
    assert np.abs(other_targets - targets).max() > 1e-3


def test_normalised_rewards_reach_targets_and_not_the_record(rollout):
    config = tiny(normalize_rewards=True)
    learned = state_of(tiny()).learned
    moments = Moments(jnp.array(4.0), jnp.array(7.0), jnp.array(4 * 0.25))
    _, targets, _ = signals(config, rollout, learned._replace(reward_moments=moments))
    _, doubled, _ = signals(tiny(), rollout._replace(rewards=2 * rollout.rewards))
    np.testing.assert_allclose(targets, doubled, rtol=1e-5)
    huge = rollout._replace(rewards=1000 * jnp.sign(rollout.rewards))
    _, clipped, _ = signals(config, huge, learned._replace(reward_moments=moments))
    _, tens, _ = signals(tiny(), rollout._replace(rewards=10 * jnp.sign(rollout.rewards)))
    np.testing.assert_allclose(clipped, tens, rtol=1e-5)


def test_running_moments():
    samples = [RANDOM.normal(size=(5, 3, 2)) * [1, 10] + [0, 100] for _ in range(4)]
    moments = no_moments((2,))
    np.testing.assert_array_equal(moments.deviation, [1, 1])
    for some in samples:
        moments = moments.updated(jnp.asarray(some), (0, 1))
    together = np.concatenate(samples).reshape(-1, 2)
    np.testing.assert_allclose(moments.mean, together.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(moments.deviation, together.std(0), rtol=1e-5)
    equal = no_moments(()).updated(jnp.full((4, 2), 3.0), (0, 1))
    assert equal.deviation == 1 and equal.mean == 3


@pytest.mark.slow
def test_settings_and_seeds_are_vectorised_with_one_compilation():
    config = tiny("CartPole-v1", minibatches=2)
    rates, seeds = jnp.array([1e-3, 1e-2]), jax.random.split(jax.random.key(0), 3)
    # A function of its own: the cache of `ppo.train` also holds the programs of other tests.
    single = jax.jit(lambda config, key: ppo.train(config, key), compiler_options=QUICKLY)
    many = jax.jit(
        jax.vmap(
            jax.vmap(lambda rate, key: ppo.train(dataclasses.replace(config, learning_rate=rate), key), (None, 0)),
            (0, None),
        ),
        compiler_options=QUICKLY,
    )
    state, metrics = many(rates, seeds)
    assert metrics.value_loss.shape == (2, 3, 4)
    for i, rate in enumerate(rates):
        for j, seed in enumerate(seeds):
            alone = single(dataclasses.replace(config, learning_rate=float(rate)), seed)
            for one, other in zip(
                jax.tree.leaves((alone[0].learned, alone[1])), jax.tree.leaves((state.learned, metrics)), strict=True
            ):
                np.testing.assert_allclose(one, other[i, j], rtol=1e-4, atol=1e-4)
    assert single._cache_size() == many._cache_size() == 1
    others = np.asarray(metrics.value_loss[:, :, -1]).reshape(-1)
    assert len(np.unique(others.round(4))) == 6


def unmade_network(key, observation_space, action_space, heads):
    return {}["weights"]


class Narrow(networks.Linear):
    """Expects another observation, or leaves the heads out."""

    def __call__(self, observation):
        return observation @ self.weight


def narrow_network(key, observation_space, action_space, heads):
    return Narrow(key, observation_space.shape[0], 3, 1.0)


def headless_network(key, observation_space, action_space, heads):
    return Narrow(key, action_space.n, observation_space.shape[0], 1.0)


@pytest.mark.parametrize(
    ("network", "text"),
    [
        (
            unmade_network,
            r"'.*:unmade_network' cannot be made, KeyError: 'weights' \(.*, line \d+, in unmade_network\): it",
        ),
        (narrow_network, r"narrow_network' cannot take an observation of shape \(4,\), TypeError: .*, in __call__\)$"),
        (headless_network, r"headless_network' must return \(policy, heads\) .* shape \(6,\); got shapes \(2,\)$"),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_what_a_network_of_ones_own_raises_is_a_sentence_with_its_place(network, text, named):
    with pytest.raises(ConfigError, match=text):
        ppo.preset("CartPole-v1", network=f"{__name__}:{network.__name__}" if named else network)


def test_a_config_takes_the_name_of_an_agent():
    assert ppo.Config(agent="ppo").agent is AGENTS["ppo"]
    assert ppo.Config(network="minatar-conv").hidden_sizes == (128,)


def test_the_discount_that_normalizes_rewards_is_recorded():
    assert ppo.preset("CartPole-v1").to_dict()["reward_discount"] == 0.99
    assert ppo.preset("CartPole-v1", scales=(10.0, 50.0)).to_dict()["reward_discount"] == pytest.approx(0.98)
    assert ppo.preset("CartPole-v1", reward_discount=0.9, normalize_rewards=True).to_dict()["reward_discount"] == 0.9


def test_gamma_1_without_a_time_limit_warns():
    # Field case B24.
    settings = {"gamma": 1.0, "scales": "halving longest_horizon=100"}
    with pytest.warns(ContractionWarning, match="only if episodes end"):
        ppo.preset("tddelta.deep.probes:ConstantReward", **settings)
    ppo.preset("CartPole-v1", **settings)


def test_the_precision_is_part_of_what_a_run_is():
    single = run_config(tiny(), 0)
    with jax.enable_x64(True):
        double = run_config(tiny(), 0)
    assert differences(single, double) == ['precision null there and "float64" now']
    assert config_hash(single) != config_hash(double) and "precision" not in single


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shards", 3),
        ("component_trunks", True),
        ("reward_clipping", "sign"),
        ("reward_noise", 1.0),
        ("grow", [[30, 300.0]]),
        ("anchor", 3),
    ],
)
def test_a_new_setting_leaves_the_record_of_other_runs_as_it_was(name, value):
    plain, changed = run_config(tiny(), 0), run_config(tiny(**{name: value}), 0)
    assert name not in plain["settings"] and changed["settings"][name] == value
    assert config_hash(plain) != config_hash(changed)
