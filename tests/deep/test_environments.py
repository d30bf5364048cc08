"""Environments that there are, those refused, and the parts of observations and actions that reach the learner."""

import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep_environments import QUICKLY, SCRIPTED, Scripted, init, roll, tiny
from tddelta import ConfigError
from tddelta.deep import environments, ppo, probes, rollout

QUICK = ("Pendulum-v1",)
MINATAR = [f"{name}-MinAtar" for name in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")]
SLOW = (*MINATAR, "CartPole-v1", "Acrobot-v1", "Catch", "DiscountingChain", "DelayedReward")


def test_an_environment_trains():
    state, metrics = jax.jit(ppo.train, compiler_options=QUICKLY)(tiny(*QUICK, "ppo", steps=24), jax.random.key(0))
    for leaf in jax.tree.leaves((state.learned, metrics.policy_loss, metrics.value_loss, metrics.entropy)):
        assert np.all(np.isfinite(leaf))
    assert metrics.fault == 0 and metrics.gradient_norm > 0
    # Pendulum's preset normalises both.
    for moments in (state.learned.observation_moments, state.learned.reward_moments):
        assert moments.samples == 24 and np.all(moments.deviation != 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_an_environment_is_played(name):
    # What is learned from a rollout does not depend on the environment.
    config = tiny(name, "ppo", rollout_length=4)
    state = init(config, jax.random.key(0))
    playing, played = roll(config, state.learned, state.playing, jax.random.key(1))
    environment = config.environment_object()
    assert played.observations.shape == (4, 3, *environment.observation_shape)
    assert played.observations.dtype == environment.storage and played.actions.max() < environment.action_space.n
    for leaf in (played.observations, played.rewards, played.heads, played.log_probabilities, playing.observation):
        assert np.all(np.isfinite(leaf))
    ended = played.finished_lengths > 0
    np.testing.assert_array_equal(ended, played.terminated | played.truncated)


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_an_environment_is_found_with_its_preset(name):
    environment = environments.resolve(name)
    assert environment.name == name and environment.time_limit > 0
    config = ppo.preset(name)
    observation, _ = jax.eval_shape(environment.reset, jax.random.key(0))
    assert environment.observation_shape == observation.shape == config.environment_object().observation_shape
    # One object per name: programs compiled for it are found again.
    assert environments.resolve(name) is environment
    full = environments.SHORT_NAMES.get(name, name)
    assert full in ppo.PRESETS or ":" in full
    assert all(isinstance(value, (int, float, list)) for value in environment.to_dict().values())


def test_time_limits_that_are_the_end_of_the_game():
    assert {name for name in (*QUICK, *SLOW) if ppo.preset(name).time_limit == "terminate"} == {
        "Freeway-MinAtar",
        "DiscountingChain",
    }


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("Breakout-MinAtr", "Breakout-MinAtar"),
        ("Cach", "Catch"),
    ],
)
def test_an_unknown_name_meets_the_closest(name, closest):
    with pytest.raises(ConfigError, match=f"unknown environment '{name}': did you mean {closest}"):
        ppo.preset(name)


def test_a_name_close_to_nothing_meets_the_closest_of_all():
    with pytest.raises(ConfigError, match=r"'vvvwww': the closest of the \d+ known names is \S+ \(python -c"):
        environments.resolve("vvvwww")


@pytest.mark.parametrize("name", ["deep_environments:Nothing", "no_such_module:Scripted", "deep_environments:"])
def test_a_factory_that_is_not_there(name):
    with pytest.raises(ConfigError, match=f"no environment at '{name}': .*package.module:name"):
        environments.resolve(name)


def test_factories_and_objects():
    assert isinstance(environments.resolve("deep_environments:Scripted").instance, Scripted)
    assert environments.resolve(SCRIPTED).instance is SCRIPTED
    assert environments.resolve(SCRIPTED).name == "Scripted"
    assert environments.resolve(SCRIPTED) is environments.resolve(SCRIPTED)
    assert environments.resolve(SCRIPTED).time_limit is None
    found = environments.resolve("tddelta.deep.probes:ConstantReward", {"max_steps_in_episode": 10})
    assert isinstance(found.instance, probes.ConstantReward)
    assert found.time_limit == found.parameters.max_steps_in_episode == 10
    assert environments.resolve(found) is found
    probe = probes.ConstantReward()
    pair = environments.resolve((probe, probe.default_params.replace(max_steps_in_episode=7)))
    assert pair.instance is probe and pair.time_limit == 7


def test_an_object_with_parameters_that_are_arrays():
    from gymnax.environments.bsuite.discounting_chain import DiscountingChain

    chain = DiscountingChain()
    pair = (chain, chain.default_params)
    config = tiny(pair)
    assert config.to_dict()["environment"] == "gymnax.environments.bsuite.discounting_chain:DiscountingChain"
    assert json.dumps(config.to_dict(), allow_nan=False)
    assert hash(config) == hash(config) and config.environment_object().instance is chain
    assert jax.eval_shape(ppo.init, config, jax.random.key(0)).playing.observation.shape == (3, 2)


def test_options_are_parameters_or_arguments():
    chain = environments.resolve("tddelta.deep.probes:DelayedReward", {"length": 7, "max_steps_in_episode": 3})
    assert chain.instance.length == 7 and chain.observation_shape == (7,) and chain.time_limit == 3
    assert environments.resolve("CartPole-v1", {"gravity": 5.0}).parameters.gravity == 5.0
    assert environments.resolve("CartPole-v1", {"gravity": 5.0}).to_dict()["gravity"] == 5.0
    rows = environments.resolve("Catch-bsuite", {"rows": 6})
    assert rows.observation_shape == (6, 5)
    assert ppo.preset("CartPole-v1", environment_kwargs={"gravity": 5.0}).environment_object().parameters.gravity == 5


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ("CartPole-v1", "gravitation"),
        ("tddelta.deep.probes:DelayedReward", "gravitation"),
        ("deep_environments:Scripted", "gravitation"),
        (SCRIPTED, "environment Scripted takes no option 'gravitation': drop it"),
    ],
)
def test_an_unknown_option(environment, sentence):
    with pytest.raises(ConfigError, match=sentence):
        environments.resolve(environment, {"gravitation": 5.0})


def altered(**changes):
    """A `Scripted` with other answers: f(*answer) → answer by method."""

    def method(name, change):
        return lambda self, *given: change(*getattr(Scripted, name)(self, *given))

    return type("Odd", (Scripted,), {name: method(name, change) for name, change in changes.items()})()


class NoReset:
    step = observation_space = action_space = lambda self: None


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            altered(reset=lambda seen, state: seen),
            r"Odd: reset must return 2 values, \(observation, state\); got an array of shape \(4,\)",
        ),
        (
            altered(step=lambda seen, state, reward, over, cut, info: (seen, state, reward, over | cut, info)),
            r"Odd: step must return 6 values, .*; got 5 values: .*final_observation.*or subclass gymnax",
        ),
        (
            altered(step=lambda *answer: (*answer[:5], {})),
            'Odd: step must return info\\["final_observation"\\], .*; got {}: add it',
        ),
        (
            altered(
                step=lambda seen, state, reward, over, *rest: (seen, state, reward, over.astype(jnp.float32), *rest)
            ),
            "Odd: step must return True or False as terminated; got float32: return terminated > 0",
        ),
        (
            altered(step=lambda seen, state, reward, *rest: (seen, state, jnp.full(1, reward), *rest)),
            r"Odd: step must return one number as reward; got an array of shape \(1,\)",
        ),
        (
            altered(step=lambda seen, *rest: (jnp.append(seen, 0), *rest)),
            r"Odd: step must return observations of shape \(4,\); got shape \(5,\)",
        ),
        (
            altered(step=lambda *answer: (*answer[:5], {"final_observation": jnp.zeros(5)})),
            r"Odd: step must return a final_observation of shape \(4,\); got shape \(5,\)",
        ),
        (
            altered(reset=lambda seen, state: ({"camera": seen}, state)),
            "Odd must return one array as observation; got dict",
        ),
        (NoReset(), "NoReset has no method reset: it must have gymnax 1.0's interface"),
    ],
)
def test_an_environment_of_another_interface_is_refused(environment, sentence):
    with pytest.raises(ConfigError, match=sentence):
        tiny(environment)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("mine:number", {}, r"mine:number has no method reset \(its function made 3\): it must have gymnax"),
        ("mine:broken", {}, r"mine:broken cannot be made, RuntimeError: no licence \(.*mine.py, line 5, in broken\)"),
        ("mine:several", {}, r"mine:several cannot be made, RuntimeError: 1 licence \(.*mine.py, line 7, in several\)"),
        ("mine:pole", {"lengt": 3}, r"one of 'lengt' \(.*unexpected keyword argument.*\); its parameters are length"),
        ("unreadable:one", {}, r"unreadable, named by 'unreadable:one', cannot be imported, SyntaxError: "),
        ("mine:wrong", {}, r"mine:wrong cannot be made, TypeError: unsupported .* \(.*mine.py, line 11, in wrong\)$"),
        (
            "mine:idle",
            {},
            r"mine:idle cannot make a step, ZeroDivisionError: .* \(.*mine.py, line 13, in broke\): check",
        ),
        (
            "mine:blind",
            {},
            r"mine:blind cannot tell its spaces, ZeroDivisionError: .* \(.*mine.py, line 13, in broke\)$",
        ),
        (
            "lacking:one",
            {},
            r"lacking, .* cannot be imported, AttributeError: .* \(.*lacking.py, line 2, in <module>\)$",
        ),
        (
            "gym:lacking:One-v0",
            {},
            r"lacking, named by 'gym:lacking:One-v0', cannot be imported, AttributeError: .* line 2",
        ),
    ],
)
def test_a_function_of_ones_own_that_makes_no_environment_is_a_sentence(name, options, sentence, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\ndef number():\n    return 3\ndef broken():\n    raise RuntimeError('no licence')\n"
        "def several(num_envs):\n    raise RuntimeError(f'{num_envs} licence')\n"
        "def pole(length=200):\n    return gymnasium.make('CartPole-v1')\n"
        "def wrong():\n    return 1 + 'one'\n"
        "def broke(*given):\n    1 / 0\n"
        "def idle(method='step'):\n    import gymnax\n    made, params = gymnax.make('CartPole-v1')\n"
        "    setattr(made, method, broke)\n    return made, params\n"
        "def blind():\n    return idle('observation_space')\n",
        encoding="utf-8",
    )
    (tmp_path / "lacking.py").write_text("import math\nmath.nothing\n", encoding="utf-8")
    (tmp_path / "unreadable.py").write_text("def one(:\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        environments.resolve(name, options)
    for module in ("mine", "unreadable", "lacking"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("name", [*MINATAR, "Catch"])
def test_binary_planes_are_kept_as_bytes(name):
    # Field case B36: channels stay last, 0 and 1 stay what they are.
    environment = environments.resolve(name)
    assert environment.storage == jnp.uint8
    observation, _ = jax.jit(environment.reset)(jax.random.key(0))
    seen = rollout.inputs(observation.astype(environment.storage), None)
    assert seen.dtype == jnp.float32 and seen.shape == observation.shape
    np.testing.assert_array_equal(seen, np.asarray(observation, np.float32))
    assert set(np.unique(seen)) == {0.0, 1.0}
    if name != "Catch":
        assert observation.shape[:2] == (10, 10)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "DiscountingChain", "DelayedReward"])
def test_other_observations_are_kept_as_they_are(name):
    assert environments.resolve(name).storage == jnp.float32


@pytest.mark.slow
def test_pendulum_keeps_the_action_that_was_sampled():
    config = tiny("Pendulum-v1", steps=24)
    state = init(config, jax.random.key(0))
    # A wide policy, so that most actions leave the torque's range of ±2.
    learned = state.learned._replace(
        parameters=eqx.tree_at(lambda network: network.log_deviation, state.learned.parameters, jnp.full(1, 2.0))
    )
    _, played = roll(config, learned, state.playing, jax.random.key(1))
    assert played.actions.shape == (8, 3, 1)
    outside = np.abs(played.actions) > 2
    assert outside.mean() > 0.5
    mean = jax.vmap(jax.vmap(lambda one: ppo.network(config, learned.parameters)(one)[0][0]))(played.observations)
    standard = (played.actions - mean) / np.exp(2.0)
    expected = np.sum(-0.5 * standard**2 - 2.0 - 0.5 * np.log(2 * np.pi), -1)
    np.testing.assert_allclose(played.log_probabilities, expected, rtol=1e-4, atol=1e-5)


def test_distributions_of_actions():
    cartpole, pendulum = environments.resolve("CartPole-v1"), environments.resolve("Pendulum-v1")
    logits = jnp.log(jnp.array([0.2, 0.8]))
    np.testing.assert_allclose(
        rollout.log_probability(cartpole, logits, jnp.array([0, 1])[:, None][0]), [np.log(0.2)], rtol=1e-5
    )
    np.testing.assert_allclose(rollout.entropy(cartpole, logits), -(0.2 * np.log(0.2) + 0.8 * np.log(0.8)), rtol=1e-5)
    assert rollout.mode(cartpole, logits) == 1
    drawn = rollout.noise(cartpole, jax.random.key(0), (20_000,))
    np.testing.assert_allclose(rollout.sample(cartpole, logits, drawn).mean(), 0.8, atol=0.01)
    gaussian = (jnp.array([1.0]), jnp.array([0.5]))
    drawn = rollout.noise(pendulum, jax.random.key(0), (20_000,))
    found = rollout.sample(pendulum, gaussian, drawn)
    np.testing.assert_allclose([found.mean(), found.std()], [1, np.exp(0.5)], rtol=0.03)
    np.testing.assert_allclose(rollout.entropy(pendulum, gaussian), 0.5 + 0.5 * np.log(2 * np.pi) + 0.5, rtol=1e-5)
    assert rollout.mode(pendulum, gaussian) == gaussian[0]


def test_training_needs_no_plotting_library_and_pictures_still_can_be_drawn():
    program = (
        "import sys; sys.modules['matplotlib'] = sys.modules['seaborn'] = None\n"
        "from tddelta.deep import training, environments\n"
        "assert not [name for name in sys.modules if name.startswith(('matplotlib', 'seaborn', 'pandas'))]\n"
        "from gymnax.environments.misc import pong; print(pong.colors.ListedColormap.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("ListedColormap\n", "")
