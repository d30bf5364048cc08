"""The longer tests after those of Stable-Baselines3, see `test_suite.py`.

Not collected by themselves, see `conftest.py`: `make sb3-suite` runs them.
"""

import inspect
import io
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import A2C, DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, FakeImageEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from torch import nn

from sb3_suite import (
    ARGUMENTS,
    OURS,
    STEPS,
    Noisy,
    algorithms,
    arguments,
    assert_same,
    continuous,
    environments,
    given,
    halfway,
    learned,
    make,
    named,
    off_policy,
    one_scale,
    reloaded,
    replaced,
)
from tddelta import CheckpointError, ConfigError
from tddelta.adapters.sb3 import DeltaDQN


@algorithms
def test_every_argument_has_another_value(plain: Any) -> None:
    fixed = {"self", "policy", "env", "device", "tensorboard_log", "_init_setup_model"}
    assert ARGUMENTS[plain].keys() == inspect.signature(plain.__init__).parameters.keys() - fixed


@arguments
def test_every_argument_of_the_constructor_does_what_it_does_in_sb3(plain: Any, name: str) -> None:
    def scenario(kind: Any) -> Any:
        env = continuous(plain, name)
        return learned(make(kind, env=env, policy="MlpPolicy", **one_scale(kind), **given(kind, plain, name)))

    assert_same(plain, scenario)


@arguments
def test_every_argument_may_be_replaced_when_a_model_is_loaded(plain: Any, name: str) -> None:
    assert_same(plain, replaced(plain, name))


@arguments
def test_every_attribute_may_be_set_by_a_callback(plain: Any, name: str) -> None:
    def scenario(kind: Any) -> Any:
        (value,) = [found for key, found in given(kind, plain, name).items() if key == name]
        model = make(kind, env=continuous(plain, name), policy="MlpPolicy", **one_scale(kind))
        return learned(model, callback=halfway(lambda callback: setattr(callback.model, name, value), 36))

    assert_same(plain, scenario)


POLICIES: dict[str, dict[str, Any]] = {
    "no layers": {"net_arch": []},
    "two layers": {"net_arch": [8, 4], "activation_fn": nn.ReLU},
    "optimiser": {"optimizer_class": th.optim.AdamW, "optimizer_kwargs": {"weight_decay": 0.1}},
    "noisy": {"features_extractor_class": Noisy, "net_arch": [8]},
}
_ACTOR_CRITIC = {
    "own layers": {"net_arch": {"vf": [16], "pi": [8, 4]}},
    "values only": {"net_arch": {"vf": [16]}},
    "plain start": {"ortho_init": False, "share_features_extractor": False},
    "steady": {"log_std_init": -2.0, "squash_output": False},
}
ONLY: dict[Any, dict[str, dict[str, Any]]] = {
    PPO: _ACTOR_CRITIC,
    A2C: _ACTOR_CRITIC,
    DQN: {},
    SAC: {
        "own layers": {"net_arch": {"qf": [8], "pi": [8, 4]}},
        "one critic": {"n_critics": 1},
        "three critics": {"n_critics": 3, "share_features_extractor": True},
        "steady": {"log_std_init": -2.0, "use_expln": True},
    },
}


@named({kind: POLICIES | several for kind, several in ONLY.items()})
def test_every_setting_of_the_policy_does_what_it_does_in_sb3(plain: Any, name: str) -> None:
    settings = (POLICIES | ONLY[plain])[name]

    def scenario(kind: Any) -> Any:
        model = learned(make(kind, policy_kwargs=settings, **one_scale(kind)))
        again = reloaded(model, environments(plain), policy_kwargs=settings)
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario)


@pytest.mark.parametrize("task", ["dictionary", "image"])
@algorithms
def test_dictionaries_and_images_are_learned_from_and_loaded_as_in_sb3(plain: Any, task: str) -> None:
    small = {"features_extractor_kwargs": {"cnn_output_dim" if task == "dictionary" else "features_dim": 8}}

    def scenario(kind: Any) -> Any:
        model = make(kind, task, policy_kwargs=small, gamma=0.9, **one_scale(kind)).learn(32)
        return reloaded(model, environments(plain, task), gamma=0.8).learn(16, reset_num_timesteps=False)

    assert_same(plain, scenario)


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


@pytest.mark.parametrize("strategy", ["final", "episode", "future"])
@pytest.mark.parametrize("image", [False, True], ids=["bits", "image"])
@off_policy
def test_hindsight_is_that_of_sb3_with_every_strategy(plain: Any, image: bool, strategy: str) -> None:
    small = {"net_arch": [8], "features_extractor_kwargs": {"cnn_output_dim": 8}}
    settings = {"replay_buffer_kwargs": {"n_sampled_goal": 2, "goal_selection_strategy": strategy}}

    def scenario(kind: Any) -> Any:
        model = hindsight(kind, image=image, policy_kwargs=small, **settings, **one_scale(kind)).learn(STEPS)
        file = io.BytesIO()
        model.save_replay_buffer(file)
        again = reloaded(model, model.get_env(), gamma=0.9)
        file.seek(0)
        again.load_replay_buffer(file, truncate_last_traj=False)
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario)


def hindsight(kind: Any, bits: int = 4, image: bool = False, **settings: Any) -> Any:
    def flipping() -> Any:
        return BitFlippingEnv(bits, continuous=issubclass(kind, SAC), image_obs_space=image)

    given = {"replay_buffer_class": HerReplayBuffer, "buffer_size": 2000, **settings}
    return make(kind, env=make_vec_env(flipping, 2, seed=0), policy="MultiInputPolicy", **given)


@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer will be truncated")
@off_policy
def test_hindsight_goes_on_with_a_full_buffer_and_a_broken_episode(plain: Any) -> None:
    model = hindsight(OURS[plain], buffer_size=40)
    learned(model)
    file = io.BytesIO()
    model.save_replay_buffer(file)
    file.seek(0)
    model.load_replay_buffer(file)
    learned(model)
    assert model.replay_buffer.full and model.policy.state_dict()
    assert all(value.isfinite().all() for value in model.policy.state_dict().values())


def test_hindsight_with_a_ladder_solves_its_task_with_most_seeds() -> None:
    settings: dict[str, Any] = {
        **{"bits": 10, "learning_rate": 2e-3, "train_freq": 1, "gradient_steps": 2, "learning_starts": 20},
        **{"exploration_final_eps": 0.02, "target_update_interval": 100, "batch_size": 32, "stats_window_size": 50},
        "replay_buffer_kwargs": {"n_sampled_goal": 5},
        "policy_kwargs": None,
        "buffer_size": 100_000,
    }
    # One seed says little: of SB3's own DQN about half of these fail.
    rates = [
        np.mean(hindsight(DeltaDQN, **{**settings, "seed": seed}).learn(1500).ep_success_buffer) for seed in range(8)
    ]
    assert np.median(rates) > 0.9, rates


class Bits(gym.Env[Any, Any]):
    """Pays 1 for repeating what is shown."""

    def __init__(self, space: Any, length: int = 100) -> None:
        self.observation_space = self.action_space = space
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.space = deepcopy(self.observation_space)
        self.space.seed(seed)
        self.left = self.length
        return self.show(), {}

    def show(self) -> Any:
        self.shown = self.space.sample()
        return self.shown

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        near = np.abs(np.subtract(action, self.shown)).max() < 0.5
        self.left -= 1
        return self.show(), float(near), False, self.left == 0, {}


_SPACES = [spaces.Discrete(4), spaces.MultiDiscrete([4, 4]), spaces.MultiBinary(4), spaces.Box(-1, 1, (1,))]


@pytest.mark.parametrize("space", _SPACES, ids=lambda space: type(space).__name__)
@algorithms
def test_ladders_learn_to_repeat_what_is_shown(plain: Any, space: Any) -> None:
    fits = isinstance(space, {DQN: spaces.Discrete, SAC: spaces.Box}.get(plain, spaces.Space))
    if not fits:
        with pytest.raises(AssertionError, match="only supports"):
            make(OURS[plain], env=Bits(space), policy="MlpPolicy")
        return
    settings: dict[Any, dict[str, Any]] = {
        PPO: {"n_steps": 256, "batch_size": 64, "n_epochs": 8},
        A2C: {"n_steps": 10},
        DQN: {"learning_starts": 0, "buffer_size": 5000, "batch_size": 32, "exploration_final_eps": 0.01},
        SAC: {"learning_starts": 50, "buffer_size": 5000, "batch_size": 64, "train_freq": 1, "gradient_steps": 1},
    }
    steps = {PPO: 4000, A2C: 6000, DQN: 3000, SAC: 800}[plain]
    model = make(
        OURS[plain],
        env=Bits(space),
        policy="MlpPolicy",
        policy_kwargs=None,
        gamma=0.4,
        scales=[0.1, 0.4],
        learning_rate=3e-3,
        **settings[plain],
    ).learn(steps)
    mean, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=5, warn=False)
    assert mean > 60, "at random 25, 6, 6 and 44 or so"


class Endless(gym.Env[Any, Any]):
    """Pays 1 at every step, for ever."""

    observation_space, action_space = spaces.Discrete(4), spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state = (self.state + 1) % 4
        return self.state, 1.0, False, False, {}


@pytest.mark.parametrize("bootstraps", [True, False])
@pytest.mark.parametrize("plain", [A2C, SAC], ids=lambda kind: kind.__name__)
def test_a_limit_of_time_is_no_end_of_the_value(plain: Any, bootstraps: bool) -> None:
    settings: dict[str, Any] = {"n_steps": 5, "policy_kwargs": {"net_arch": [32]}}
    if plain is SAC:
        settings = {
            **{"replay_buffer_kwargs": {"handle_timeout_termination": bootstraps}, "tau": 0.5, "learning_starts": 0},
            **{
                "train_freq": 1,
                "gradient_steps": 1,
                "batch_size": 256,
                "policy_kwargs": {"net_arch": [16], "n_critics": 1},
            },
        }
    elif not bootstraps:
        return  # there is no such setting
    env, scales = TimeLimit(Endless(), 8), [0.5, 0.9, 0.98]
    model = make(
        OURS[plain], env=env, policy="MlpPolicy", gamma=0.98, scales=scales, learning_rate=0.01, seed=1, **settings
    ).learn(1500 if plain is A2C else 600)
    values = model.predict_components(np.array(0)).cumsum()
    near = np.abs(values - 1 / (1 - np.array(scales)))
    assert (near < [0.5, 1.5, 5]).all() if bootstraps else near[-1] > 5, values


@pytest.mark.parametrize("task", ["dictionary", "cartpole"])
@algorithms
def test_environments_may_be_processes(plain: Any, task: str) -> None:
    def scenario(kind: Any) -> Any:
        env = environments(plain, task)
        makers = [partial(deepcopy, one) for one in env.unwrapped.envs]
        processes = SubprocVecEnv(makers)
        processes.seed(0)
        try:
            policy = "MultiInputPolicy" if task == "dictionary" else "MlpPolicy"
            return learned(make(kind, env=processes, policy=policy, **one_scale(kind)))
        finally:
            processes.close()

    assert_same(plain, scenario)


RUNS: dict[Any, dict[str, dict[str, Any]]] = {
    PPO: {"one step": {"n_steps": 1, "batch_size": 1, "normalize_advantage": False}, "short batch": {"batch_size": 31}},
    A2C: {},
    DQN: {"episodes": {"train_freq": (2, "episode"), "count": 1}, "one": {"count": 1}},
    SAC: {
        "episodes": {"train_freq": (1, "episode"), "count": 1},
        "fixed": {"ent_coef": 0.01},
        "learned": {"ent_coef": "auto_0.01", "action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.2))},
        "drifting": {"action_noise": OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.2))},
        "by state": {"use_sde": True, "sde_sample_freq": 2, "use_sde_at_warmup": True, "gradient_steps": -1},
    },
}


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size:UserWarning")
@named(RUNS)
def test_every_way_of_training_is_that_of_sb3(plain: Any, name: str) -> None:
    settings = dict(RUNS[plain][name])
    count = settings.pop("count", 2)
    assert_same(
        plain, lambda kind: learned(make(kind, env=environments(plain, count=count), **settings, **one_scale(kind)))
    )


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("first", [False, True], ids=["channels last", "channels first"])
@algorithms
def test_pictures_are_those_of_sb3_however_they_are_given(plain: Any, first: bool, normalised: bool) -> None:
    small = {"features_extractor_kwargs": {"features_dim": 8}, "normalize_images": not normalised}

    def scenario(kind: Any) -> Any:
        size: dict[str, Any] = {"screen_height": 36, "screen_width": 36, "n_channels": 1, "channel_first": first}
        shown = DummyVecEnv([lambda: FakeImageEnv(**size, discrete=plain is not SAC)])
        shown.seed(0)
        shown.action_space.seed(0)
        for one in shown.envs:
            one.observation_space.seed(0)
        env = VecNormalize(shown) if normalised and first else shown
        model = make(kind, env=env, policy="CnnPolicy", policy_kwargs=small, **one_scale(kind)).learn(32)
        again = reloaded(model, env, policy_kwargs=small)
        observations = env.reset()
        wanted, _ = model.predict(observations, deterministic=True)
        np.testing.assert_array_equal(again.predict(observations, deterministic=True)[0], wanted)
        return again

    assert_same(plain, scenario)
