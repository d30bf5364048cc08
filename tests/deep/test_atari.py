"""Atari: what is seen equals Gymnasium's own preprocessing, names mean what they say, a lost life is not the game."""

import math

import gymnasium
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from ale_py import roms
from ale_py.env import AtariEnv

from deep_environments import QUICKLY, init
from tddelta import ConfigError
from tddelta.deep import atari, environments, networks, ppo
from tddelta.deep.config import Config
from tddelta.deep.host import Vector
from tddelta.deep.rollout import Acted, host_rollout
from tddelta.deep.training import HostTraining

PLAIN = {"noop_max": 0, "fire_reset": False, "life_loss": False}


@pytest.mark.parametrize("game", ["Qbert", "MsPacman", "Breakout"])
def test_observations_equal_gymnasiums_preprocessing(game):
    # No-ops at the start are drawn from another range there, and a stack begins with repeats by default.
    environment = environments.resolve(game, PLAIN)
    wrapped = gymnasium.wrappers.FrameStackObservation(
        gymnasium.wrappers.AtariPreprocessing(
            AtariEnv(environment.rom, frameskip=1, repeat_action_probability=0.0), noop_max=0
        ),
        4,
        padding_type="zero",
    )
    choices = np.random.default_rng(1).integers(0, environment.action_space.n, 250)
    with Vector(environment, [7]) as vector:
        np.testing.assert_array_equal(vector.reset()[0], wrapped.reset(seed=7)[0])
        for time, choice in enumerate(choices):
            vector.begin(np.array([choice]))
            moved = vector.finish()
            seen, reward, terminated, truncated, information = wrapped.step(choice)
            assert moved.rewards[0] == reward and (moved.terminated[0], moved.truncated[0]) == (terminated, truncated)
            if terminated:
                break
            np.testing.assert_array_equal(moved.observations[0], seen, err_msg=f"step {time}")
            # Field case B39: four frames a step.
            assert vector.frames[0] == information["episode_frame_number"] == 4 * (time + 1)
    wrapped.close()


def test_every_game_in_the_wheel_can_be_named():
    assert set(atari.GAMES.values()) == set(roms.get_all_rom_ids())
    assert {"MsPacman", "UpNDown", "TicTacToe3D"} <= set(atari.GAMES)


@pytest.mark.parametrize(
    ("name", "meant", "protocol", "sticky"),
    [
        ("Qbert", "Qbert", "classic", 0.0),
        ("QbertNoFrameskip-v4", "Qbert", "classic", 0.0),
        ("ALE/Qbert-v5", "Qbert-v5", "machado", 0.25),
    ],
)
def test_names_and_what_the_record_says_they_meant(name, meant, protocol, sticky):
    # Field case B41.
    environment = environments.resolve(name)
    record = environment.to_dict()
    assert environment.name == meant and record["game"] == "Qbert" and record["protocol"] == protocol
    assert record["repeat_action_probability"] == sticky and record["frame_skip"] == 4
    assert record["life_loss"] is (protocol == "classic") and record["full_action_space"] is False
    assert environment.time_limit == 27_000 and environment.observation_shape == (4, 84, 84)
    config = ppo.preset(name)
    assert (config.environments, config.rollout_length, config.epochs, config.minibatches) == (8, 128, 4, 4)
    assert (config.clip, config.learning_rate, config.anneal_learning_rate) == (0.1, 2.5e-4, False)
    assert (config.network, config.hidden_sizes, config.shared_trunk) == ("nature-conv", (512,), True)
    assert config.reward_clipping == "sign" and config.steps == 10_000_000 and config.adam_epsilon == 1e-5
    assert environments.resolve(name, {"protocol": "classic"}).to_dict()["repeat_action_probability"] == 0


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("ALE/Qbrt-v5", {}, "unknown Atari game 'Qbrt': did you mean Qbert"),
        ("MsPacmanNoFrameskip-v0", {}, "'MsPacmanNoFrameskip-v0' is of no version .* as Qbert, QbertNoFrameskip-v4 or"),
        ("MsPackman", {}, "unknown environment 'MsPackman': did you mean MsPacman"),
        ("Joust", {}, "Joust is for two players, and ale-py does not play it with one: name another game"),
        ("Qbert", {"protocol": "modern"}, "protocol must be one of classic, machado; got 'modern'"),
        ("Qbert", {"frameskip": 2}, "Atari has no option 'frameskip': did you mean frame_skip"),
        ("Qbert", {"frame_skip": 0}, "frame_skip must be a whole number of at least 1; got 0"),
        ("Qbert", {"repeat_action_probability": 1.5}, r"repeat_action_probability must be in \[0, 1\); got 1.5"),
        ("Qbert", {"life_loss": "no"}, "life_loss must be True or False; got 'no'"),
        ("Qbert", {"threads": -1}, "threads must be a whole number"),
        ("Qbert", {"stack": 10**7}, "stack must be at most 100; got 10000000: pass a smaller one"),
        ("Qbert", {"height": 10**7}, "height must be at most 1,000; got 10000000: pass a smaller one"),
        ("Qbert", {"noop_max": 10**12}, "noop_max must be at most 10,000; got 1000000000000: pass a smaller one"),
    ],
)
def test_names_and_options_that_are_wrong(name, options, sentence):
    # Field case B57.
    with pytest.raises(ConfigError, match=sentence):
        environments.resolve(name, options)


def test_a_lost_life_ends_for_the_learner_and_the_game_goes_on():
    # Field cases B40, B44.
    environment = environments.resolve("Breakout")
    generator = np.random.default_rng(0)
    scores, score, lost, lives = [], np.zeros(2), np.zeros(2, int), []
    with Vector(environment, [5, 6]) as vector:
        vector.reset()
        while len(scores) < 2:
            vector.begin(generator.integers(0, 4, 2))
            moved = vector.finish()
            score += moved.rewards
            lost += moved.terminated
            assert not np.any(moved.over & ~moved.terminated)
            for one in np.flatnonzero(moved.over):
                scores.append(score[one])
                lives.append(lost[one])
                score[one], lost[one] = 0, 0
    # Five lives, the last of which is the game.
    assert lives == [5, 5] and max(scores) > 0


def test_the_frame_limit_truncates_at_the_true_last_frame():
    environment = environments.resolve("Breakout", {"max_frames": 200, "life_loss": False})
    assert environment.time_limit == 50
    with Vector(environment, [5]) as vector:
        vector.reset()
        for _ in range(60):
            before = vector.frames[0]
            vector.begin(np.array([0]))
            moved = vector.finish()
            if moved.truncated[0]:
                break
    assert moved.truncated[0] and moved.over[0] and not moved.terminated[0] and before >= 192
    final = moved.finals[0]
    assert final.dtype == np.uint8 and final.shape == (4, 84, 84)
    assert np.any(final[0]) and not np.any(moved.observations[0, 0])  # a new stack begins with zeros


@pytest.mark.slow
@pytest.mark.parametrize(("size", "stride", "shape"), [(4, 2, (11, 9, 3)), (3, 1, (6, 5, 3))])
def test_both_forms_of_a_convolution_are_equal(size, stride, shape):
    keys = jax.random.split(jax.random.key(0), 3)
    x, weight = jax.random.normal(keys[0], (2, *shape)), jax.random.normal(keys[1], (6, shape[-1], size, size))

    def total(form, x, weight):
        return jnp.sum(jax.vmap(lambda one: form(one, weight, stride))(x) ** 2)

    forms = networks.by_patches, networks.natively
    values, gradients = zip(*(jax.value_and_grad(total, (1, 2))(form, x, weight) for form in forms), strict=True)
    np.testing.assert_allclose(*values, rtol=1e-4)
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-2)


def test_the_device_chooses_the_form():
    x, weight = jax.ShapeDtypeStruct((84, 84, 4), jnp.float32), jax.ShapeDtypeStruct((32, 4, 8, 8), jnp.float32)
    form = jax.jit(lambda x, weight: networks.convolved(x, weight, 4))
    programs = {name: jax.export.export(form, platforms=[name])(x, weight).mlir_module() for name in ("cpu", "cuda")}
    assert "stablehlo.convolution" in programs["cuda"] and "stablehlo.concatenate" not in programs["cuda"]
    assert "stablehlo.convolution" not in programs["cpu"] and "stablehlo.concatenate" in programs["cpu"]


def images(shape, channels="auto", dtype=np.uint8):
    return networks.images_of(gymnasium.spaces.Box(0, 255, shape, dtype), channels)


def test_the_axis_of_the_channels():
    # Field case B36.
    assert images((84, 84, 4)) == (False, (84, 84, 4), 255.0)
    assert images((4, 84, 84)) == (True, (84, 84, 4), 255.0)
    assert images((4, 84, 84), dtype=np.float32).largest == 1.0
    with pytest.raises(ConfigError, match=r"either end of \(64, 84, 64\) could be the channels .* set image_channels"):
        images((64, 84, 64))
    assert images((64, 84, 64), "last").size == (64, 84, 64) and images((64, 84, 64), "first").size == (84, 64, 64)
    with pytest.raises(ConfigError, match=r"at least 36×36 pixels; got \(4, 20, 20\)"):
        images((4, 20, 20))
    assert images((84, 84)).size == (84, 84, 1)
    with pytest.raises(
        ConfigError, match=r"nature-conv needs images \(height, width\), \(channels, height, width\) or"
    ):
        images((84,))


@pytest.mark.slow
def test_pixels_are_seen_as_shares_in_either_layout():
    made = networks.ImageConvolutions(jax.random.key(0), images((4, 84, 84)))
    other = networks.ImageConvolutions(jax.random.key(0), images((84, 84, 4), dtype=np.float32))
    pixels = np.random.default_rng(0).integers(0, 256, (4, 84, 84)).astype(np.float32)
    one = made(jnp.asarray(pixels), jax.nn.relu)
    np.testing.assert_allclose(
        one, other(jnp.asarray(np.moveaxis(pixels, 0, -1) / 255), jax.nn.relu), rtol=1e-5, atol=1e-5
    )
    assert one.size == made.images.features == 7 * 7 * 32
    with pytest.raises(ConfigError, match=r"nature-conv sees every pixel as a share .* got normalize_observations"):
        ppo.preset("Pong", normalize_observations=True)


def results(program):
    """Shapes and types of all that a program computes, with the programs inside it."""
    for equation in program.eqns:
        yield from ((*variable.aval.shape, variable.aval.dtype) for variable in equation.outvars)
        for inside in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inside = getattr(inside, "jaxpr", inside)
            if hasattr(inside, "eqns"):
                yield from results(inside)


@pytest.mark.slow
@pytest.mark.parametrize("part", [None, 32])  # on a GPU, on a CPU
def test_learning_makes_no_float_copy_of_the_rollout(part, monkeypatch):
    monkeypatch.setattr(Config, "part_of_minibatch", part)
    config = jax.tree.map(float, ppo.preset("Qbert", "ppo-delta"))
    key = jax.random.key(0)
    state = jax.eval_shape(ppo.init, config, key)
    kinds = ((4, 84, 84), jnp.uint8), ((), jnp.int32), ((), jnp.float32), ((6,), jnp.float32)
    acted = Acted(*(jax.ShapeDtypeStruct((128, 8, *shape), dtype) for shape, dtype in kinds))
    rollout, last = host_rollout(config, acted, waits=False), jax.ShapeDtypeStruct((8, 4, 84, 84), jnp.uint8)
    program = jax.make_jaxpr(lambda *given: ppo.learn(*given))(config, state, rollout, last, key).jaxpr
    whole = config.batch * 4 * 84 * 84
    found = [(math.prod(shape), dtype) for *shape, dtype in results(program)]
    # The patches of the first layer are 20 × 20 of 8 × 8 × 4: the largest arrays there are.
    floats = max(size for size, dtype in found if dtype == jnp.float32)
    assert floats == (part or config.batch // config.minibatches) * 20 * 20 * 8 * 8 * 4 < whole
    assert {str(dtype) for size, dtype in found if size >= whole} == {"uint8"}


@pytest.mark.slow
def test_a_game_is_learned_from_signs_and_reported_by_scores():
    sizes = {"environments": 2, "rollout_length": 128, "minibatches": 8, "epochs": 1, "steps": 1024}
    config = jax.tree.map(float, ppo.preset("MsPacman", network="mlp", hidden_sizes=(8,), **sizes))
    player = HostTraining(config, 0)
    state = player.programs.init(config, jax.random.key(0))
    assert state.playing is None and player.programs.acting.empty().observations.dtype == jnp.uint8
    before = jax.tree.map(np.asarray, state.learned)
    state, metrics, done = player.block(config, state, 4)
    player.close()
    assert done == 4 and not metrics.fault.any() and np.all(metrics.gradient_norm > 0)
    changed = [np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (before, state.learned)), strict=True)]
    assert np.mean(changed) > 0.9
    scores = metrics.finished_returns[metrics.finished_lengths > 0]
    assert len(scores) >= 1 and scores.min() >= 60 and np.all(scores % 10 == 0)
    # Dots are worth 10 points each: values of signs stay far below the scores.
    assert np.abs(metrics.value_mean).max() < 20


@pytest.mark.slow
def test_gradients_by_parts_are_those_of_the_whole(monkeypatch):
    config = ppo.preset("CartPole-v1", environments=4, rollout_length=8, epochs=1, minibatches=2, hidden_sizes=(8,))
    found = []
    for part in (None, 4):
        monkeypatch.setattr(Config, "part_of_minibatch", part)
        updated = jax.jit(lambda state: ppo.update(config, state), compiler_options=QUICKLY)
        state, metrics = updated(init(config, jax.random.key(0)))
        found.append(jax.tree.leaves((state.learned, metrics.entropy, metrics.value_loss)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
