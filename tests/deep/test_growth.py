"""Ladders that grow while an agent trains: nothing changes at that moment, and everything goes on from there."""

import functools
import json
import threading
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import host_environments
from deep_environments import QUICKLY, Faulty, roll, state_of, tiny, update
from deep_runs import BATCH, UPDATES, bytes_of, cartpole, go_on, trained, trained_together
from tddelta import ConfigError, ContractionWarning, DataError
from tddelta.cli import main
from tddelta.deep import devices, host, ppo, training
from tddelta.deep.policy import load
from tddelta.deep.rollout import Moments, evaluator
from tddelta.experiments.plan import plan_study, read_study
from tddelta.report import Report
from tddelta.runs import Run

AGENTS = ("ppo", "ppo+", "ppo-multi", "ppo-delta")  # the others differ in traces and targets, which do not grow
pytestmark = pytest.mark.filterwarnings("ignore::tddelta.ContractionWarning")


def growing(agent="ppo-delta", horizon=300, **settings):
    """A ladder of three scales that gets a fourth before the third update."""
    return tiny(agent=agent, **{"scales": (10, 30, 100), "grow": [(30, horizon)]} | settings)


def random_state(config):
    """A state in which nothing is 0 by accident, as after long training; its environments are those of nobody."""
    rng, shapes = np.random.default_rng(0), jax.eval_shape(ppo.init, config, jax.random.key(0))

    def drawn(shape):
        if not jnp.issubdtype(shape.dtype, jnp.floating):
            return jnp.full(shape.shape, 7, shape.dtype)
        return jnp.asarray(rng.normal(size=shape.shape), shape.dtype)

    learned, optimizer = jax.tree.map(drawn, (shapes.learned, shapes.optimizer))
    if learned.target_moments is not None:
        squares = 500 * jnp.exp(learned.target_moments.squares)
        learned = learned._replace(target_moments=Moments(jnp.float32(500), learned.target_moments.mean, squares))
    return ppo.State(learned, optimizer, None, jax.random.key(0), jnp.int32(2))


@functools.partial(jax.jit, compiler_options=QUICKLY)
def outputs(config, learned, observations):
    policy, heads = evaluator(config, learned)(observations)
    return policy, ppo.components(config, learned, heads)


def before_and_after(config):
    """Policy's parameters, W (N, Z) and V (N,) of 57 states, before the ladder grows and after."""
    state = random_state(config)
    shape = config.environment_object().observation_shape
    states = jnp.asarray(np.random.default_rng(1).normal(size=(57, *shape)), jnp.float32)
    for stage, now in ((config, state), (config.grown, ppo.grow(config, state))):
        policy, deltas = outputs(stage, now.learned, states)
        yield policy, np.asarray(deltas), np.asarray(deltas, np.float64).sum(-1)


@pytest.mark.parametrize("scale", ["none", "horizon", "running"])
@pytest.mark.parametrize("agent", AGENTS)
def test_nothing_changes_at_the_moment_of_growth(agent, scale):
    (policy, deltas, value), (later_policy, later, later_value) = before_and_after(
        growing(agent, component_scale=scale)
    )
    np.testing.assert_array_equal(policy, later_policy)
    one = agent in ("ppo", "ppo+")
    assert later.shape == (57, 1 if one else 4)
    # The same V in other units: 1 horizon of 100 steps is 0.333… of 300, which no float is.
    rounded = scale == "horizon" and (one or agent == "ppo-multi")
    few_ulps = {"rtol": 0, "atol": 4 * np.finfo(np.float32).eps * np.abs(value).max()} if rounded else {"rtol": 0}
    np.testing.assert_allclose(later_value, value, **few_ulps)
    if one:
        return
    np.testing.assert_array_equal(deltas, later[:, :3])
    np.testing.assert_allclose(later[:, 3], 0, **few_ulps)


@pytest.mark.parametrize("agent", AGENTS)
def test_outputs_that_count_horizons_change_to_the_bit_where_a_float_can_say_it(agent):
    _, deltas, value = (found := [*before_and_after(growing(agent, 200, component_scale="horizon"))])[0]
    np.testing.assert_array_equal(deltas, found[1][1][:, : deltas.shape[1]])
    np.testing.assert_array_equal(value, found[1][2])


def own_network(key, observation_space, action_space, heads):
    """A network whose record of its own size changes with the heads."""
    return Own(key, observation_space, action_space, heads)


class Own(eqx.Module):
    policy: eqx.nn.Linear
    critic: eqx.nn.MLP

    def __init__(self, key, observation_space, action_space, heads):
        size = observation_space.shape[0]
        self.policy = eqx.nn.Linear(size, action_space.n, key=key)
        self.critic = eqx.nn.MLP(size, heads, 8, 1, key=key)

    def __call__(self, observation):
        return self.policy(observation), self.critic(observation)


class Positive(Own):
    """The new head is softplus(0), not 0."""

    def __call__(self, observation):
        policy, heads = super().__call__(observation)
        return policy, jax.nn.softplus(heads)


class Stack(Own):
    """Two layers of every head: with zeros in both nothing would ever reach the first."""

    critic: tuple

    def __init__(self, key, observation_space, action_space, heads):
        size = observation_space.shape[0]
        self.policy = eqx.nn.Linear(size, action_space.n, key=key)
        draw = functools.partial(jax.random.normal, key)
        self.critic = draw((heads, 4, size)), draw((heads, 4)), draw((heads,))

    def __call__(self, observation):
        inner, outer, bias = self.critic
        hidden = jnp.tanh(jnp.einsum("hks,s->hk", inner, observation))
        return self.policy(observation), jnp.sum(outer * hidden, -1) + bias


class Doubled(Own):
    """A layer whose width is twice the heads."""

    last: eqx.nn.Linear

    def __init__(self, key, observation_space, action_space, heads):
        super().__init__(key, observation_space, action_space, 2 * heads)
        self.last = eqx.nn.Linear(2 * heads, heads, key=key)

    def __call__(self, observation):
        policy, wide = super().__call__(observation)
        return policy, self.last(wide)


NETWORKS = {
    "one trunk": {"shared_trunk": True},
    "a trunk each": {"component_trunks": True},
    "of one's own": {"network": own_network},
}


@pytest.mark.parametrize("agent", ["ppo-multi", "ppo-delta"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_network_grows(kind, agent):
    (policy, deltas, value), (later_policy, later, later_value) = before_and_after(growing(agent, **NETWORKS[kind]))
    np.testing.assert_array_equal(policy, later_policy)
    # One product of all trunks adds up in another order when there is one trunk more.
    few_ulps = 4 * np.finfo(np.float32).eps * np.abs(deltas).max() if kind == "a trunk each" else 0
    np.testing.assert_allclose(later[:, :3], deltas, rtol=0, atol=few_ulps)
    np.testing.assert_allclose(later_value, value, rtol=0, atol=3 * few_ulps)
    np.testing.assert_allclose(later[:, 3], 0, rtol=0, atol=few_ulps if agent == "ppo-multi" else 0)


@pytest.mark.parametrize("network", [Positive, Stack, Doubled])
def test_a_network_that_cannot_grow_is_refused_before_anything_starts(network):
    with pytest.raises(ConfigError, match=rf"grow needs a network .*{network.__name__}', in which one head"):
        growing(network=network)
    growing(network=network, grow=())
    if network is Stack:  # a new V is a copy, whose layers are none of them 0
        growing("ppo-multi", network=network)
        growing("ppo", network=network)


@pytest.mark.parametrize("settings", [{}, {"component_trunks": True}, {"network": own_network}])
def test_the_optimizer_knows_nothing_of_a_new_row(settings):
    config = growing(**settings)
    state = random_state(config)
    later = ppo.grow(config, state)
    old, new = (jax.tree.leaves(one.optimizer) for one in (state, later))
    longer = 0
    for before, after in zip(old, new, strict=True):
        np.testing.assert_array_equal(after[tuple(map(slice, before.shape))], before)
        if after.shape != before.shape:
            assert (after.shape[0], before.shape[0]) == (4, 3) and not after[3:].any()
            longer += 1
    assert longer >= 4  # weights and biases, each with two moments
    shapes = jax.eval_shape(ppo.init, config.grown, later.key)
    for found, new in ((later.learned, shapes.learned), (later.optimizer, shapes.optimizer)):
        assert jax.tree.structure(found) == jax.tree.structure(new)
        assert [leaf.shape for leaf in jax.tree.leaves(found)] == [leaf.shape for leaf in jax.tree.leaves(new)]


def test_a_new_trunk_is_a_copy_of_the_last_one():
    config = growing(component_trunks=True)
    state = random_state(config)
    trunk = ppo.grow(config, state).learned.parameters.critic.trunk
    for old, new in zip(*map(jax.tree.leaves, (state.learned.parameters.critic.trunk, trunk)), strict=True):
        np.testing.assert_array_equal(new, np.concatenate([old, old[-1:]]))


def test_running_units_of_a_new_component_are_those_of_its_own_targets():
    config = growing(component_scale="running")
    state = ppo.grow(config, random_state(config)._replace(playing=state_of(config).playing))
    np.testing.assert_array_equal(state.learned.target_moments.samples, [500, 500, 500, 0])
    np.testing.assert_array_equal(state.learned.target_moments.deviation[3], 1)
    rollout_key = jax.random.split(state.key, 3)[1]
    rollout = roll(config.grown, state.learned, state.playing, rollout_key)[1]
    targets = ppo.learning_signals(config.grown, state.learned, rollout)[1]
    after = update(config.grown, state)[0].learned.target_moments
    np.testing.assert_array_equal(after.samples, [524, 524, 524, 24])
    np.testing.assert_allclose(after.deviation[3], np.std(targets[..., 3]), rtol=1e-4)
    config = growing("ppo-multi", component_scale="running")
    deviation = ppo.grow(config, random_state(config)).learned.target_moments.deviation
    np.testing.assert_array_equal(deviation[3], deviation[2])


def test_ladder_discount_and_weights_follow():
    config = growing(grow=["30:300", "60:1e3"], component_weights=(1, 2, 3, 4, 5), normalize_rewards=True)
    assert [stage.end for stage in (config, config.grown, config.grown.grown)] == [2, 3, 4]
    last = config.at(3)
    assert (config.at(1), config.at(2), last) == (config, config.grown, config.grown.grown)
    assert last.updates == config.updates and last.grow == ()
    np.testing.assert_allclose(last.ladder.horizons, [10, 30, 100, 300, 1000])
    np.testing.assert_allclose(last.critic_scales.trace_decays, 0.95 * np.array(last.ladder.gammas))
    assert last.return_discount == last.gamma == 0.999 and config.return_discount == 0.99
    assert growing(normalize_rewards=True, reward_discount=0.5).grown.return_discount == 0.5
    matched = growing("ppo-delta-matched").grown.critic_scales
    np.testing.assert_allclose(matched.trace_decays, 0.95 * (1 - 1 / 300))
    assert growing(scales="halving components=3 rule=matched").grown.critic_scales.trace_decays == pytest.approx(
        [0.95 * (1 - 1 / 300)] * 4
    )
    one = growing("ppo").grown
    assert one.heads == 1 and one.critic_scales.gammas == (1 - 1 / 300,)
    assert (growing("ppo+").heads, growing("ppo+").grown.heads) == (3, 4)


def test_every_stage_warns_of_its_contraction():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        growing("ppo-delta-matched", lam=0.9123, scales=(2, 100))
    found = [str(one.message) for one in said if one.category is ContractionWarning]
    assert len(found) == 2 and "decay 0.9032" in found[0] and "decay 0.9093" in found[1]


def test_growth_is_recorded():
    config = growing(normalize_rewards=True)
    content = json.loads(json.dumps(training.run_config(config, 0)))
    assert content["settings"]["grow"] == [[30, 300.0]]
    assert (content["settings"]["gamma"], content["settings"]["reward_discount"]) == (0.99, None)
    assert len(content["scales"]["gammas"]) == 4
    texts = [[(30, 300), (60, 1000)], ["30:300", "6e1:1_000"], "30:300  60:1000", np.array([[30, 300], [60, 1000]])]
    assert len({growing(grow=text) for text in texts}) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grow": "30"}, r"grow must be pairs STEP:HORIZON of a whole number of at least 1 and a number; got '30'"),
        ({"grow": ["30:x"]}, r"got '30:x': pass, say, grow=\('100_000:200', '300_000:1000'\)"),
        ({"grow": ["1.5:300"]}, "got '1.5:300'"),
        ({"grow": ["0:300"]}, "got '0:300'"),
        ({"grow": [(30,)]}, r"got \(30,\)"),
        ({"grow": 30}, "got 30"),
        (
            {"grow": ["60:300", "30:1000"]},
            r"grow must be in the order of its steps, each once; got 30:1000 after step 60",
        ),
        ({"grow": ["30:300", "30:1000"]}, "got 30:1000 after step 30: sort them"),
        ({"grow": ["73:300"]}, "steps of grow must be at most 72, where the last update begins; got 73:300"),
        ({"grow": ["30:100"]}, "must be finite, and each longer than the last one on the ladder; got 30:100 after 100"),
        ({"grow": ["30:300", "60:200"]}, "got 60:200 after 300"),
        ({"grow": ["30:inf"]}, "got 30:inf after 100"),
        ({"grow": ["30:nan"]}, "got 30:nan after 100"),
        ({"grow": ["30:1e17"]}, r"got 30:1e\+17 after 100"),
        ({"scales": (0.9, 1.0)}, "got 30:300 after inf"),
        ({"component_weights": (1, 1, 1)}, "component_weights must be 4 numbers ≥ 0"),
        (
            {"scales": {"gammas": (0.9, 0.99), "trace_decays": (0.5, 0.5)}},
            r"grow is for scales whose traces follow from lam and a rule; got trace_decays=\(0\.5, 0\.5\) in them",
        ),
    ],
)
def test_growth_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        growing(**settings)


@pytest.mark.slow
def test_what_a_program_trains_is_what_its_stages_train():
    config = growing(agent="ppo-multi", grow=["10:300", "30:1000"], steps=72)
    state, expected = state_of(config), []
    for number in range(3):
        for stage in config.at(number - 1).past_stages(number) if number else ():
            state = ppo.grow(stage, state)
        state, metrics = update(config.at(number), state)
        expected.append(metrics)
    found_state, found = jax.jit(ppo.train, compiler_options=QUICKLY)(config, jax.random.key(0))
    for one, other in zip(*map(jax.tree.leaves, (state.learned, found_state.learned)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert found.component_losses.shape == (3, 5)
    for number, metrics in enumerate(expected):
        count = len(metrics.component_losses)
        assert count == (3, 4, 5)[number] and np.isnan(found.component_losses[number, count:]).all()
        np.testing.assert_allclose(found.component_losses[number, :count], metrics.component_losses, rtol=1e-4)
    # Shards count their own steps, and grow before the same update.
    shards = growing(environments=4, shards=2, grow=["33:300"])
    one, two = (
        jax.tree.map(np.asarray, found)
        for found in (
            jax.jit(ppo.train, compiler_options=QUICKLY)(shards, jax.random.key(0))[0].learned,
            devices.train_environments(shards, jax.random.key(0))[0].learned,
        )
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), one, two)


GROW = ((200, 200.0), (590, 1000.0))  # before updates 9 and 25


@pytest.mark.usefixtures("compiled_quickly")
def test_a_run_goes_on_over_its_growth_with_the_same_bytes(tmp_path, monkeypatch):
    config = cartpole(grow=GROW, component_scale="running")
    straight = trained(tmp_path / "straight", config=config)
    assert straight.scales == config.at(UPDATES).critic_scales and len(straight.scales) == 8
    monkeypatch.setattr(training, "LONGEST_BLOCK", 4)
    path, ladders = tmp_path / "broken", {}
    for number, breaking in enumerate((5, 9, 12, 25, UPDATES)):
        stop = threading.Event()

        def progress(news, stop=stop, breaking=breaking):
            if news.steps >= breaking * BATCH:
                stop.set()

        options = {"config": config, "stop": stop, "progress": progress}
        run = go_on(path, **options) if number else trained(path, **options)
        ladders[run.status["updates"]] = len(load(run).scales)
    assert {9: 7, 25: 8, UPDATES: 8}.items() <= ladders.items() and min(ladders.values()) == 6
    assert bytes_of(run) == bytes_of(straight)
    # A column of the new scale, from then on.
    new = run.metrics["value_mean/gamma=0.999"]
    assert np.isnan(new[:25]).all() and new[25] == 0 and np.isfinite(new[25:]).all() and new[-1] != 0
    assert not np.isnan(run.metrics["value_mean/gamma=0.990"]).any()
    assert run.rollout["deltas"].shape[1] == len(run.rollout["gammas"]) == 8
    assert load(run).components(np.zeros(4)).shape == (8,)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
def test_seeds_of_one_program_grow_together(tmp_path):
    config = cartpole(grow=GROW, normalize_rewards=True)
    stop = threading.Event()
    options = {"config": config, "seeds": [3, 0]}
    trained_together(tmp_path / "whole", **options)
    told = lambda index, news: news.steps >= 12 * BATCH and stop.set()  # noqa: E731
    trained_together(tmp_path / "parts", stop=stop, progress=told, **options)
    trained_together(tmp_path / "parts", resume=True, **options)
    for seed in ("0", "3"):
        assert bytes_of(Run(tmp_path / "parts" / seed)) == bytes_of(Run(tmp_path / "whole" / seed))


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
def test_a_run_that_fails_after_its_growth_keeps_what_it_had_then(tmp_path):
    def config(*faults):
        return tiny(Faulty(faults), rollout_length=4, minibatches=1, steps=40 * 12, grow=[(9, 300)])

    start = jax.jit(lambda key: ppo.init(config(), key).playing.environment.identity)
    identity = int(start(training.run_key(0, "train"))[2])
    with pytest.raises(DataError, match="reward not finite in environment 2, step 7"):
        trained(tmp_path / "run", config=config((identity, "reward")))
    run = Run(tmp_path / "run")
    assert run.status["updates"] == 1 and len(load(run, environment=Faulty()).scales) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
def test_host_environments_go_on_over_growth(tmp_path):
    made = host.from_factory(host_environments.vectors(AutoresetMode.SAME_STEP), name="Plant")
    config = host_environments.tiny(made, grow=[(30, 300)], steps=100)
    run = trained(tmp_path / "run", config=config)
    assert run.status["state"] == "finished" and len(run.scales) == 4
    events = [row["event"] for row in run.timing]
    assert events.count("environments") == 1 and events.count("compile") == 2
    assert load(run, environment=made).components(np.zeros(made.observation_shape)).shape == (4,)


SMALL = ["--environments", "3", "--rollout-length", "8", "--minibatches", "1", "--epochs", "1", "--hidden-sizes", "8"]


@pytest.mark.usefixtures("elsewhere")
def test_growth_on_the_command_line_and_in_a_study(capsys):
    assert main(["train", "CartPole-v1", *SMALL, "--steps", "96", "--grow", "30:200", "60:200"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tddelta: the horizons of --grow must be finite") and "got 60:200 after 200" in said
    assert main(["compare", "CartPole-v1", "--grow", "100_000"]) == 2
    assert "pass, say, --grow 100_000:200 300_000:1000" in capsys.readouterr().err
    Path("s.toml").write_text(
        'environments = "CartPole-v1"\nagents = ["ppo"]\nseeds = 1\n[settings]\ngrow = ["300_000:200", "4e5:1_000"]\n'
    )
    (plan,) = plan_study(read_study(Path("s.toml")))
    assert plan.config.grow == ((300_000, 200.0), (400_000, 1000.0))


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere", "compiled_quickly")
def test_a_grown_run_from_the_command_line_to_its_report_and_inspector():
    command = ["train", "CartPole-v1", *SMALL, "--steps", "96", "--out", "o", "--agent", "ppo-multi"]
    assert main([*command, "--grow", "30:1_000"]) == 0
    (path,) = Path("o").rglob("seed-0")
    assert Run(path).config["settings"]["grow"] == [[30, 1000.0]]
    report = Report([Run(path)])
    ((_, group),) = report.runs.groups.items()
    steps, shares = group.shares
    np.testing.assert_array_equal(steps, [24, 48, 72, 96])
    assert shares.shape == (4, 7) and not shares[:2, 6:].any()
    np.testing.assert_allclose(shares.sum(1), 1)
    assert "0.999" in report.write("o").read_text(encoding="utf-8") and not report.problems
    assert main(["inspect", str(path), "--seed", "1"]) == 0
    assert main(["evaluate", str(path), "--episodes", "2"]) == 0
    # Finished, and recorded so that it is the same run.
    assert main(["train", "--resume", str(path)]) == 0
