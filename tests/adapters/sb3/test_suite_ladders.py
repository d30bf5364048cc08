"""Stable-Baselines3's own tests of an algorithm, asked of ladders: see `test_suite.py`."""

import csv
import io
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, TimeLimit
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecNormalize

from sb3_environments import Anything, Scripted, equal, steered, vectorised
from sb3_suite import (
    OURS,
    STEPS,
    Noisy,
    algorithms,
    arguments,
    continuous,
    environments,
    given,
    hindsight,
    learned,
    make,
    off_policy,
    on_policy,
    reloaded,
)
from tddelta import CheckpointError, ConfigError
from tddelta.adapters.sb3 import DeltaDQN


@pytest.mark.parametrize("task", [None, "dictionary", "image"])
@algorithms
def test_every_algorithm_learns_several_components_with_every_policy(plain: Any, task: str | None) -> None:
    model = make(OURS[plain], task)
    observations = model.env.reset()
    before = model.predict_components(observations)
    model.learn(48)
    after = model.predict_components(observations)
    assert after.shape == before.shape == ((2, 2, 3) if plain is DQN else (2, 3))
    assert np.isfinite(after).all() and (np.abs(after - before).max((0, 1) if plain is DQN else 0) > 0).all()
    logged = model.logger.name_to_value
    for name in ("value_loss", "explained_variance", "value_mean"):
        assert {f"{name}/gamma={label}" for label in model.scales.labels} <= logged.keys()
    assert logged["train/gradient_norm"] > 0


@algorithms
def test_a_model_is_saved_loaded_and_goes_on_alike(plain: Any, tmp_path: Path) -> None:
    kind = OURS[plain]
    model = make(kind).learn(32)
    model.save(tmp_path / "model")
    again = kind.load(tmp_path / "model", env=environments(plain), device="cpu")
    assert equal(model, again) and again.scales == model.scales and again.num_timesteps == 32
    if plain in (DQN, SAC):
        model.save_replay_buffer(tmp_path / "buffer")
        again.load_replay_buffer(tmp_path / "buffer")
    for one in (model, again):
        one.set_env(environments(plain))
        one.set_random_seed(5)
        one.learn(32, reset_num_timesteps=False)
    assert equal(model, again) and model.num_timesteps == 64


@algorithms
def test_callbacks_and_evaluation_work(plain: Any, tmp_path: Path) -> None:
    settings = {"eval_freq": 20, "n_eval_episodes": 2, "best_model_save_path": str(tmp_path / "best"), "verbose": 0}
    found = StopTrainingOnRewardThreshold(reward_threshold=-1e9)
    evaluate = EvalCallback(environments(plain, count=1), callback_on_new_best=found, **settings)
    more = {"save_replay_buffer": plain in (DQN, SAC), "save_vecnormalize": True}
    keep = CheckpointCallback(10, str(tmp_path / "kept"), **more)
    model = make(OURS[plain]).learn(640, callback=[keep, evaluate])
    assert model.num_timesteps == 40, "stopped at the first evaluation"
    best = OURS[plain].load(tmp_path / "best" / "best_model", device="cpu")
    assert best.scales == model.scales
    returns, lengths = evaluate_policy(best, environments(plain, count=1), 3, return_episode_rewards=True)
    assert np.isfinite(returns).all() and lengths == [9, 9, 9]
    assert len(list((tmp_path / "kept").glob("rl_model_*_steps.zip"))) == 2


@pytest.mark.filterwarnings("ignore:rich is experimental")
@algorithms
def test_loggers_and_the_progress_bar_work(plain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make(OURS[plain])
    model.set_logger(configure(str(tmp_path), ["csv", "json"]))
    model.learn(64, log_interval=1, progress_bar=True)
    assert "64/64" in capsys.readouterr().out
    model.logger.dump(64)
    model.logger.close()
    with (tmp_path / "progress.csv").open(encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    for name in ("value_loss", "explained_variance", "value_mean"):
        assert all(last[f"{name}/gamma={label}"] for label in model.scales.labels)
    assert float(last["train/gradient_norm"]) > 0


@algorithms
def test_a_file_of_another_class_names_how_it_is_read(plain: Any, tmp_path: Path) -> None:
    for number, (other, ours) in enumerate(OURS.items()):
        file = str(tmp_path / f"model{number}")
        make(other).save(file)
        words = f"this file holds a plain {other.__name__}: use {ours.__name__}.from_{other.__name__.lower()}"
        with pytest.raises(ConfigError, match=words):
            OURS[plain].load(file, device="cpu")
        make(ours, scales="single").save(file)
        if other is plain:
            assert OURS[plain].load(file, device="cpu").scales.labels == ("0.990",)
            continue
        with pytest.raises(ConfigError, match=rf"this file holds a {ours.__name__}: use {ours.__name__}.load"):
            OURS[plain].load(file, device="cpu")


@algorithms
def test_a_plain_class_says_how_our_file_is_read(plain: Any, tmp_path: Path) -> None:
    make(OURS[plain]).save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"a plain .* (has none|does not): .* read by Delta.*\.load"):
        plain.load(tmp_path / "model", device="cpu")


@pytest.mark.slow
@arguments
def test_every_argument_may_be_replaced_when_a_ladder_is_loaded(plain: Any, name: str) -> None:
    def change(kind: Any, **more: Any) -> Any:
        env = continuous(plain, name)
        model = make(kind, env=env, policy="MlpPolicy").learn(32)
        return reloaded(model, env, **given(kind, plain, name), **more)

    kind = OURS[plain]
    try:
        change(plain)
    except (AssertionError, RuntimeError, ValueError) as error:
        with pytest.raises((type(error), CheckpointError)):
            change(kind)
        return
    if name == "gamma":
        with pytest.raises(ConfigError, match="gamma must be the largest discount"):
            change(kind)
    again = change(kind, **({"scales": [0.3, 0.6, 0.9]} if name == "gamma" else {}))
    wanted = make(kind, policy="MlpPolicy", env=again.env, scales=again.scales.gammas, **given(kind, plain, name))
    assert again.scales == wanted.scales
    if plain in (PPO, A2C):
        assert again.rollout_buffer.scales == wanted.scales
    before = {key: value.clone() for key, value in again.policy.state_dict().items()}
    after = again.learn(32, reset_num_timesteps=False).policy.state_dict()
    assert all(value.isfinite().all() for value in after.values())
    assert not all(th.equal(before[key], after[key]) for key in after)


UNIT = spaces.Box(-1, 1, (2,))


class Constant:
    """A policy whose critic says the same everywhere."""

    constant = 0.0

    def forward(self, obs: Any, deterministic: bool = False) -> Any:
        actions, values, log_prob = super().forward(obs, deterministic)
        return actions, th.full_like(values, self.constant), log_prob


@pytest.mark.parametrize(("lam", "gamma", "episodes"), [(0.95, 0.99, 3), (0.95, 1.0, 1), (1.0, 0.99, 1), (1.0, 1.0, 3)])
@on_policy
def test_advantages_and_returns_are_those_by_hand(plain: Any, lam: float, gamma: float, episodes: int) -> None:
    length = 16
    late = Scripted(UNIT, UNIT, lambda time, _: (np.zeros(2, np.float32), float(time == length), time == length))
    settings: dict[str, Any] = {"scales": [0.5, 0.9, gamma], "gamma": gamma, "gae_lambda": lam}
    model = make(OURS[plain], env=late, policy=Constant, **settings, n_steps=length * episodes)
    for constant in (0.0, 1.0):
        model.policy.constant = constant
        model.learn(length * episodes)
        buffer, value = model.rollout_buffer, 3 * constant
        remaining = np.arange(length, 0, -1)
        # Of γ V − V at every step but the last, which has 1 − V.
        decay = gamma * lam
        sums = remaining - 1 if decay == 1 else (1 - decay ** (remaining - 1)) / (1 - decay)
        advantages = (gamma * value - value) * sums + decay ** (remaining - 1) * (1 - value)
        # Training has flattened the arrays.
        found, returns = (np.ravel(array).reshape(episodes, length) for array in (buffer.advantages, buffer.returns))
        np.testing.assert_allclose(found, np.tile(advantages, (episodes, 1)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(returns, np.tile(advantages + value, (episodes, 1)), rtol=1e-4, atol=1e-5)
        summed = buffer.component_returns.sum(-1).reshape(episodes, length)
        np.testing.assert_allclose(summed, returns, rtol=1e-4, atol=1e-5)
        if lam == 1.0 and constant == 0.0:
            # Every prefix is the discounted sum of rewards of its discount.
            first = buffer.component_returns.reshape(episodes, length, 3).cumsum(-1)[:, 0]
            np.testing.assert_allclose(first[:, -1], gamma ** (length - 1), rtol=1e-4)


def statistics(model: Any) -> dict[str, th.Tensor]:
    return {name: value.clone() for name, value in model.policy.state_dict().items() if "running_mean" in name}


@algorithms
def test_playing_and_asking_leave_a_networks_statistics_alone(plain: Any) -> None:
    settings = {"features_extractor_class": Noisy, "net_arch": [8]}
    still = {"gradient_steps": 0} if plain in (DQN, SAC) else {}
    model = make(OURS[plain], policy_kwargs=settings, **still)
    before, observations = statistics(model), model.env.reset()
    action, components = model.predict(observations, deterministic=True)[0], model.predict_components(observations)
    model.policy.set_training_mode(True)
    np.testing.assert_array_equal(model.predict(observations, deterministic=True)[0], action)
    model.policy.set_training_mode(True)
    np.testing.assert_array_equal(model.predict_components(observations), components)
    if plain in (DQN, SAC):
        model.learn(STEPS)
    else:
        _, callback = model._setup_learn(64)
        for _ in range(2):
            model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    assert all(th.equal(before[name], value) for name, value in statistics(model).items())


@algorithms
def test_training_changes_a_networks_statistics_and_targets_get_them(plain: Any) -> None:
    still = {"tau": 0.0} if plain in (DQN, SAC) else {}
    more = {DQN: {"target_update_interval": 2}}.get(plain, {})
    model = make(OURS[plain], policy_kwargs={"features_extractor_class": Noisy, "net_arch": [8]}, **still, **more)
    before, weights = statistics(model), {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(STEPS)
    if plain is DQN:
        model._on_step()
    after = statistics(model)
    assert all(not th.equal(before[name], after[name]) for name in after)
    for name, value in after.items():
        twin = name.replace("q_net.", "q_net_target.").replace("critic.", "critic_target.")
        assert th.equal(value, after[twin])
    if plain in (DQN, SAC):
        kept = {name: value for name, value in model.policy.state_dict().items() if "_target." in name}
        assert all(th.equal(value, weights[name]) for name, value in kept.items() if name.endswith(("weight", "bias")))


@pytest.mark.parametrize("task", ["cartpole", "image"])
@off_policy
def test_targets_follow_the_critic_as_tau_says(plain: Any, task: str) -> None:
    small = {"features_extractor_kwargs": {"features_dim": 8}} if task == "image" else {}
    model = make(OURS[plain], task, learning_starts=1000, policy_kwargs=small).learn(STEPS)
    names = ("q_net", "q_net_target") if plain is DQN else ("critic", "critic_target")
    online, target = (getattr(model, name) for name in names)

    def parameters(network: Any) -> list[th.Tensor]:
        return [parameter.detach().clone() for parameter in network.parameters()]

    def alike(first: list[th.Tensor], second: list[th.Tensor]) -> bool:
        return all(map(th.equal, first, second))

    first = parameters(online)
    assert alike(first, parameters(target))
    model.tau, model.target_update_interval = 0.0, 1
    model.train(1, 8)
    assert alike(first, parameters(target)) and not alike(first, parameters(online))
    model.tau, model.lr_schedule = 0.25, lambda _: 0.0
    learned_, kept = parameters(online), parameters(target)
    model._on_step()
    model.train(1, 8)
    assert alike(learned_, parameters(online))
    for now, old, new in zip(parameters(target), kept, learned_, strict=True):
        th.testing.assert_close(now, 0.75 * old + 0.25 * new)


@algorithms
def test_the_same_seed_gives_the_same_training_and_the_same_play(plain: Any) -> None:
    first, second = (make(OURS[plain]).learn(STEPS) for _ in range(2))
    assert equal(first, second)
    found = []
    for model in (first, second):
        model.set_random_seed(4)
        env = environments(plain)
        observations = env.reset()
        for _ in range(5):
            observations, *_ = env.step(model.predict(observations)[0])
        found.append(observations)
    np.testing.assert_array_equal(*found)


@on_policy
def test_every_way_of_asking_for_values_agrees(plain: Any) -> None:
    model = make(OURS[plain], env=vectorised("pendulum"), policy="MlpPolicy").learn(32)
    observations = th.as_tensor(np.concatenate([model.env.reset() for _ in range(3)]))
    actions = th.as_tensor(np.stack([model.action_space.sample() for _ in observations]))
    with th.no_grad():
        components, log_prob, entropy = model.policy.evaluate_actions(observations, actions)
        values, distribution = model.policy.predict_values(observations), model.policy.get_distribution(observations)
    th.testing.assert_close(components.sum(-1, keepdim=True), values)
    th.testing.assert_close(log_prob, distribution.log_prob(actions))
    th.testing.assert_close(entropy, distribution.entropy())


@algorithms
def test_a_dictionary_of_one_vector_is_learned_from_like_the_vector(plain: Any) -> None:
    def trained(policy: str, wrap: Any) -> Any:
        parts = Anything(spaces.Dict({"vector": UNIT}), spaces.Discrete(3) if plain is DQN else UNIT)
        return make(OURS[plain], env=TimeLimit(wrap(parts), 10), policy=policy).learn(STEPS).policy.parameters()

    both = trained("MultiInputPolicy", lambda env: env), trained("MlpPolicy", FlattenObservation)
    assert all(map(th.equal, *both))


@pytest.mark.parametrize(
    ("plain", "answer"), [(PPO, False), (A2C, np.bool_(False)), (DQN, th.tensor(False)), (SAC, False)]
)
def test_a_callback_ends_training_at_once(plain: Any, answer: Any) -> None:
    seen: list[Any] = []
    learned(make(OURS[plain]), callback=lambda *found: seen.append(found) or answer)
    assert len(seen) == 1


@algorithms
def test_callbacks_within_callbacks_see_every_step(plain: Any, tmp_path: Path) -> None:
    model = make(OURS[plain])
    within = CheckpointCallback(save_freq=1, save_path=str(tmp_path), name_prefix="event")
    event, log = EveryNTimesteps(n_steps=16, callback=within), LogEveryNTimesteps(n_steps=16)
    several = CallbackList([event, log, StopTrainingOnMaxEpisodes(max_episodes=3)])
    model.learn(640, callback=several)
    assert model.env.observation_space.contains(several.locals["new_obs"][0])
    assert within.locals["new_obs"] is event.locals["new_obs"] is several.locals["new_obs"]
    assert event.num_timesteps == model.num_timesteps == 2 * 9 * 3, "three episodes of nine steps, in two environments"
    assert event.n_calls == model.num_timesteps // 2 and len(list(tmp_path.glob("event_*.zip"))) == 54 // 16
    seen: list[Any] = []
    model.learn(32, callback=lambda found, _: seen.append(found["self"]) is None)
    assert seen[0] is model


class Chained(BaseCallback):
    """Knows its evaluation."""

    def _on_step(self) -> bool:
        assert isinstance(self.parent, EvalCallback) and self.parent.best_mean_reward > -np.inf
        return True


@on_policy
def test_evaluation_has_the_statistics_of_training(plain: Any) -> None:
    train, held_out = (VecNormalize(vectorised("cartpole")) for _ in range(2))
    held_out.training, held_out.norm_reward = False, False
    chained = {"callback_on_new_best": CallbackList([Chained()]), "callback_after_eval": Chained()}
    evaluate = EvalCallback(held_out, eval_freq=8, n_eval_episodes=4, verbose=0, warn=False, **chained)
    make(OURS[plain], env=train).learn(32, callback=evaluate)
    assert evaluate.last_mean_reward == 9
    shown = train.unnormalize_obs(train.reset())
    evaluate._on_step()
    np.testing.assert_allclose(train.normalize_obs(shown), held_out.normalize_obs(shown))


@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")
@algorithms
def test_networks_are_saved_by_themselves(plain: Any, tmp_path: Path) -> None:
    model = learned(make(OURS[plain]))
    observations = model.env.reset()
    parts = {name: getattr(model, name) for name in ("policy", "q_net", "actor") if hasattr(model, name)}
    for name, part in parts.items():
        part.load_state_dict({key: th.rand_like(value) for key, value in part.state_dict().items()})
        wanted, _ = part.predict(observations, deterministic=True)
        part.save(tmp_path / name)
        again = type(part).load(tmp_path / name, device="cpu")
        assert all(th.equal(value, again.state_dict()[key]) for key, value in part.state_dict().items())
        np.testing.assert_array_equal(again.predict(observations, deterministic=True)[0], wanted)
    model.policy = th.compile(model.policy)
    model.save(tmp_path / "compiled")
    again = OURS[plain].load(tmp_path / "compiled", device="cpu")
    assert again.scales == model.scales
    assert len(again.predict_components(observations)) == 2


@algorithms
def test_one_observation_and_several_are_answered(plain: Any) -> None:
    model = make(OURS[plain])
    observations = model.env.reset()
    model.exploration_rate = 1.0
    for deterministic in (True, False):
        one, several = (model.predict(seen, deterministic=deterministic)[0] for seen in (observations[0], observations))
        assert isinstance(one, np.ndarray) and model.action_space.contains(one if one.shape else one.item())
        assert len(several) == 2
    if plain is not DQN:  # SB3's asks for the shape before
        with pytest.raises(ValueError, match="mixing Gym API"):
            model.predict((observations, {}))


@off_policy
def test_every_environment_gives_as_many_steps_as_there_are_updates(plain: Any) -> None:
    model = make(OURS[plain], learning_starts=0, train_freq=3, gradient_steps=-1).learn(3)
    assert model.logger.name_to_value["train/n_updates"] == 6


@pytest.mark.parametrize("task", [None, "image"])
@on_policy
def test_squashed_exploration_by_state_keeps_actions_in_their_range(plain: Any, task: str | None) -> None:
    policy = {"squash_output": True, "log_std_init": 1.0, "use_expln": True}
    env = steered(task or "pendulum")
    name = "CnnPolicy" if task else "MlpPolicy"
    model = learned(make(OURS[plain], env=env, policy=name, use_sde=True, policy_kwargs=policy))
    kept = model.rollout_buffer.actions
    assert (np.abs(kept) <= 1).all() and np.abs(kept).max() > 0.5, "as the policy gives them, before they are scaled"


@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer will be truncated")
@off_policy
def test_hindsight_goes_on_with_a_full_buffer_and_a_broken_episode(plain: Any) -> None:
    model = hindsight(partial(make, OURS[plain]), plain, buffer_size=40)
    learned(model)
    file = io.BytesIO()
    model.save_replay_buffer(file)
    file.seek(0)
    model.load_replay_buffer(file)
    learned(model)
    assert model.replay_buffer.full and model.policy.state_dict()
    assert all(value.isfinite().all() for value in model.policy.state_dict().values())


@pytest.mark.slow
def test_hindsight_with_a_ladder_solves_its_task_with_most_seeds() -> None:
    settings: dict[str, Any] = {
        **{"learning_rate": 1e-2, "train_freq": 1, "learning_starts": 20, "exploration_final_eps": 0.02},
        **{"target_update_interval": 50, "batch_size": 32, "stats_window_size": 30},
        **{"replay_buffer_kwargs": {"n_sampled_goal": 5}, "policy_kwargs": {"net_arch": [32]}},
    }
    # One seed says little. Without learning the rate is 0.1.
    models = (hindsight(partial(make, DeltaDQN, seed=seed, **settings), DQN, bits=5) for seed in range(3))
    rates = [np.mean(model.learn(700).ep_success_buffer) for model in models]
    assert np.median(rates) > 0.9, rates


class Bits(gym.Env[Any, Any]):
    """Pays 1 for repeating what is shown, 20 times."""

    def __init__(self, space: Any) -> None:
        self.observation_space = self.action_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.space = deepcopy(self.observation_space)
        self.space.seed(seed)
        self.left = 20
        return self.show(), {}

    def show(self) -> Any:
        self.shown = self.space.sample()
        return self.shown

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        near = np.abs(np.subtract(action, self.shown)).max() < 0.5
        self.left -= 1
        return self.show(), float(near), False, self.left == 0, {}


_SPACES = [spaces.Discrete(4), spaces.MultiDiscrete([4, 4]), spaces.MultiBinary(4), spaces.Box(-1, 1, (1,))]


@pytest.mark.slow
@pytest.mark.parametrize("space", _SPACES, ids=lambda space: type(space).__name__)
@algorithms
def test_ladders_learn_to_repeat_what_is_shown(plain: Any, space: Any) -> None:
    fits = isinstance(space, {DQN: spaces.Discrete, SAC: spaces.Box}.get(plain, spaces.Space))
    if not fits:
        with pytest.raises(AssertionError, match="only supports"):
            make(OURS[plain], env=Bits(space), policy="MlpPolicy")
        return
    replay = {"buffer_size": 5000, "batch_size": 64, "train_freq": 1, "gradient_steps": 2}
    settings: dict[Any, dict[str, Any]] = {
        PPO: {"n_steps": 64, "batch_size": 64, "n_epochs": 8},
        A2C: {"n_steps": 5, "normalize_advantage": True},
        DQN: {**replay, "exploration_final_eps": 0.01},
        SAC: {**replay, "learning_starts": 50},
    }
    steps = {PPO: 3072, A2C: 4800, DQN: 1600, SAC: 1200}[plain]
    env = make_vec_env(lambda: Bits(space), 8, seed=0)
    more = {"gamma": 0.4, "scales": [0.1, 0.4], "learning_rate": 5e-3, "policy_kwargs": {"net_arch": [32]}}
    model = make(OURS[plain], env=env, policy="MlpPolicy", **settings[plain], **more).learn(steps)
    mean, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=16, warn=False)
    assert mean > 12, "at random 5, 1, 1 and 9 or so"


@pytest.mark.slow
@pytest.mark.parametrize(("plain", "bootstraps"), [(A2C, True), (SAC, True), (SAC, False)])
def test_a_limit_of_time_is_no_end_of_the_value(plain: Any, bootstraps: bool) -> None:
    settings: dict[str, Any] = {"n_steps": 5, "policy_kwargs": {"net_arch": [32]}}
    if plain is SAC:  # A2C has no such setting
        settings = {
            **{"replay_buffer_kwargs": {"handle_timeout_termination": bootstraps}, "tau": 0.5, "learning_starts": 0},
            **{"train_freq": 1, "gradient_steps": 1, "batch_size": 64},
            "policy_kwargs": {"net_arch": [16], "n_critics": 1},
        }
    env = TimeLimit(Scripted(spaces.Discrete(4), UNIT, lambda time, _: (time % 4, 1.0, False)), 8)
    scales = [0.5, 0.9, 0.98]
    settings |= {"gamma": 0.98, "scales": scales, "learning_rate": 0.01, "seed": 1}
    model = make(OURS[plain], env=env, policy="MlpPolicy", **settings).learn(1500 if plain is A2C else 600)
    values = model.predict_components(np.array(0)).cumsum()
    near = np.abs(values - 1 / (1 - np.array(scales)))
    assert (near < [0.5, 1.5, 5]).all() if bootstraps else near[-1] > 5, values
