"""DeltaPPO in rsl_rl's runner: against rsl_rl's PPO, against slow loops, and its settings."""

import copy
import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rsl_rl", reason="needs rsl-rl-lib and torch")

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.runners import OnPolicyRunner
from rsl_rl.storage import RolloutStorage

import targets_literal
import tddelta.adapters.rsl_rl as adapter
from rsl_rl_environments import Hopper, Pole, Robots, config
from targets_literal import Problem
from tddelta import CheckpointError, ConfigError, DataError, ShapeError, TimeScales
from tddelta.adapters.rsl_rl import DeltaPPO, ppo

SCALES = TimeScales(gammas=(0.5, 0.9, 0.98), trace_decays=(0.5, 0.7, 0.9))
ALGORITHM = {"gamma": 0.98, "scales": SCALES}


def make(kind: Any = DeltaPPO, env: Robots | None = None, *, log: Any = None, **settings: Any) -> Any:
    """A runner whose networks and actions follow one seed."""
    torch.manual_seed(0)
    given = ALGORITHM if kind is not PPO else {}
    return OnPolicyRunner(env or Pole(16, 9), config(kind, **{**given, **settings}), log_dir=log)


def parameters(alg: Any) -> list[torch.Tensor]:
    return [one for network in (alg._raw_actor, alg._raw_critic) for one in network.state_dict().values()]


def changed(settings: dict[str, Any], kind: Any, **more: Any) -> Any:
    """A runner after 5 updates, with its networks changed in the configuration."""
    torch.manual_seed(0)
    networks = {name: settings[name] for name in ("recurrent", "normalised") if name in settings}
    given = config(kind, **networks, **{**settings.get("algorithm", {}), **more})
    runner = OnPolicyRunner(Pole(16, 9, hands_out=settings.get("hands_out")), given)
    runner.learn(5, init_at_random_ep_len=True)
    return runner


def rollout(runner: Any) -> dict[str, Any]:
    """One rollout and its returns by the runner's own calls, and what the environment answered."""
    env, alg, seen = runner.env, runner.alg, []
    obs = env.get_observations()
    torch.manual_seed(1)
    with torch.inference_mode():
        for _ in range(runner.cfg["num_steps_per_env"]):
            obs, rewards, dones, extras = env.step(alg.act(obs))
            seen.append((rewards.clone(), dones.clone(), extras["time_outs"].clone()))
            alg.process_env_step(obs, rewards, dones, extras)
        alg.compute_returns(obs)
    names = ("rewards", "dones", "time_outs")
    return {name: torch.stack(rows).numpy() for name, rows in zip(names, zip(*seen, strict=True), strict=True)}


EQUAL: list[dict[str, Any]] = [
    {},
    {"recurrent": "gru"},
    {"recurrent": "lstm", "normalised": True},
    {"normalised": True, "algorithm": {"normalize_advantage_per_mini_batch": True, "schedule": "fixed"}},
    {"algorithm": {"use_clipped_value_loss": False, "gamma": 0.97, "lam": 0.9, "value_loss_coef": 0.5}},
    {"hands_out": "final_obs", "algorithm": {"use_mixed_precision": True}},
]


@pytest.mark.parametrize("settings", EQUAL, ids=str)
def test_with_one_scale_parameters_are_those_of_ppo_to_the_last_bit(settings: dict[str, Any]) -> None:
    plain, ours = changed(settings, PPO), changed(settings, DeltaPPO, scales="single", time_outs="fold")
    theirs = parameters(plain.alg)
    torch.testing.assert_close(parameters(ours.alg), theirs, rtol=0, atol=0)
    assert ours.alg.learning_rate == plain.alg.learning_rate
    assert not torch.equal(theirs[0], parameters(make(PPO).alg)[0])  # it has learned


@pytest.mark.parametrize("recurrent", ["", "gru"])
def test_with_one_scale_our_own_returns_are_those_of_ppo_but_for_rounding(recurrent: str) -> None:
    plain, ours = changed({"recurrent": recurrent}, PPO), changed({"recurrent": recurrent}, DeltaPPO, scales="single")
    torch.testing.assert_close(parameters(ours.alg), parameters(plain.alg), rtol=0, atol=1e-6)


def slow_returns(alg: Any, seen: dict[str, Any], finals: np.ndarray, last: np.ndarray, form: str) -> Any:
    """λ-returns of components (T, N, Z) and advantages of V (T, N), step by step from their definitions."""
    deltas, cut = alg.storage.values.double().numpy(), seen["dones"] & seen["time_outs"]
    following = np.where(cut[..., None], finals, [*deltas[1:], last])
    steps = seen["rewards"].astype(float), deltas, following, seen["dones"] & ~cut, cut
    problem = Problem(SCALES.gammas, SCALES.trace_decays, (1, 1, 1), *steps)
    return targets_literal.lambda_targets(problem, form), targets_literal.advantages(problem, alg.gamma * alg.lam)


@pytest.mark.parametrize("form", ["difference", "bootstrap"])
@pytest.mark.parametrize("recurrent", ["", "lstm"])
@pytest.mark.parametrize(
    ("hands_out", "normalised"), [(None, False), ("final_obs", False), ("final_observation", True)]
)
def test_returns_of_components_are_those_of_a_slow_loop(
    form: Any, recurrent: str, hands_out: str | None, normalised: bool
) -> None:
    env = Hopper(12, 7, hands_out=hands_out)
    settings: dict[str, Any] = {"recurrent": recurrent, "normalised": normalised, "form": form}
    runner = make(env=env, normalize_advantage_per_mini_batch=True, **settings)
    if normalised:
        runner.learn(1)  # from here on mean and deviation are those of the observations
        assert runner.alg.critic.obs_normalizer.count == 16 * 12
    with torch.inference_mode():
        env.state[:3, 0] = 0.45  # these fall at once
        env.episode_length_buf[4:9] = torch.arange(5)
    alg, finals = runner.alg, []
    before, critic = alg.process_env_step, copy.deepcopy(alg.critic)  # which goes along, with a memory of its own

    def watched(obs: Any, rewards: Any, dones: Any, extras: Any) -> None:
        values = critic(alg.transition.observations)
        # Where nothing is handed out the value before the step stands in, as in rsl_rl.
        finals.append(values if hands_out is None else copy.deepcopy(critic)(extras[hands_out]))
        critic.reset(dones)
        before(obs, rewards, dones, extras)

    alg.process_env_step = watched
    seen = rollout(runner)
    assert (seen["dones"] & seen["time_outs"]).sum() > 5 and (seen["dones"] & ~seen["time_outs"]).sum() > 1
    assert seen["dones"][-1].sum() < 12
    np.testing.assert_array_equal(alg.storage.rewards[..., 0].numpy(), seen["rewards"])
    with torch.inference_mode():
        last = critic(env.get_observations()).double().numpy()
    targets, advantage = slow_returns(alg, seen, torch.stack(finals).double().numpy(), last, form)
    np.testing.assert_allclose(alg.storage.returns.numpy(), targets, rtol=0, atol=1e-5)
    np.testing.assert_allclose(alg.storage.advantages[..., 0].numpy(), advantage, rtol=0, atol=1e-5)


@pytest.mark.parametrize("recurrent", ["", "lstm"])
def test_final_observations_in_a_plain_dict_count_as_those_in_a_tensordict(recurrent: str) -> None:
    """Isaac Lab's environments hand out a dict, in which a group may be one again."""
    found = []
    for plain in (False, True):
        runner = make(env=Pole(8, 7, hands_out="final_obs"), recurrent=recurrent)
        step = runner.env.step

        def answer(actions: Any, step: Any = step) -> Any:
            obs, rewards, dones, extras = step(actions)
            more = {"camera": {"left": torch.zeros(8, 4, 4), "right": torch.zeros(8, 4, 4)}}
            return obs, rewards, dones, {**extras, "final_obs": {**extras["final_obs"].to_dict(), **more}}

        if plain:
            runner.env.step = answer
        assert rollout(runner)["time_outs"].sum() == 16
        found.append(runner.alg.storage.returns)
    assert torch.equal(*found)


@pytest.mark.parametrize("recurrent", ["", "lstm"])
def test_returns_in_torch_as_on_a_gpu_are_those_in_numpy(recurrent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for kinds in (("cpu",), ()):
        monkeypatch.setattr(ppo, "_IN_NUMPY", kinds)
        runner = make(env=Pole(12, 7, hands_out="final_obs"), recurrent=recurrent)
        runner.learn(2)  # also what is learned from them
        rollout(runner)
        found.append([runner.alg.storage.returns, runner.alg.storage.advantages, *parameters(runner.alg)])
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


def test_advantages_are_standardised_as_in_rsl_rl_unless_by_minibatch() -> None:
    raw, alike = (make(normalize_advantage_per_mini_batch=flag) for flag in (True, False))
    for runner in (raw, alike):
        rollout(runner)
    found = raw.alg.storage.advantages
    torch.testing.assert_close(alike.alg.storage.advantages, (found - found.mean()) / (found.std() + 1e-8))


def test_the_name_in_the_configuration_resolves_and_the_critic_gets_its_outputs() -> None:
    given = config(gamma=0.99)
    kept = copy.deepcopy(given)
    runner = OnPolicyRunner(Pole(4), given)
    assert type(runner.alg) is DeltaPPO and runner.alg.scales == TimeScales.halving(0.99, lam=0.95)
    assert runner.alg.critic(runner.env.get_observations()).shape == (4, 6)
    assert given["algorithm"] == kept["algorithm"] and given["critic"] == kept["critic"]
    runner = OnPolicyRunner(Pole(4), config(scales=[10, 100], gamma=0.99))
    assert runner.alg.critic.mlp[-1].out_features == 2 and runner.alg.storage.values.shape == (16, 4, 2)


def test_groups_that_rsl_rl_resolves_reach_the_runner() -> None:
    given = config()
    del given["obs_groups"]["critic"]
    with pytest.warns(UserWarning, match="obs_groups"):
        runner = OnPolicyRunner(Pole(4), given)
    assert runner.cfg["obs_groups"] == {"actor": ["policy"], "critic": ["critic"]}


def learned(**settings: Any) -> tuple[Any, list[torch.Tensor], dict[str, float], list[torch.Tensor]]:
    """A step of SGD over one minibatch: the runner, the critic's parameters before, the numbers, the gradients."""
    once = {"num_learning_epochs": 1, "num_mini_batches": 1, "optimizer": "sgd", "schedule": "fixed"}
    runner = make(max_grad_norm=1e9, learning_rate=0.25, **once, **settings)
    rollout(runner)
    alg = runner.alg
    if settings.get("value_clip"):
        alg.storage.values += torch.tensor([0.0, 0.3, -0.6])  # as if the critic had learned meanwhile
    before = [one.detach().clone() for one in alg.critic.parameters()]
    numbers = alg.update()
    moved = [(old - new.detach()) / 0.25 for old, new in zip(before, alg.critic.parameters(), strict=True)]
    return runner, before, numbers, moved


def replayed(critic: Any, store: Any) -> torch.Tensor:
    """Values of a rollout (T, N, Z) that begins with an empty memory, step by step and with gradients."""
    critic.reset()
    rows = []
    for observations, dones in zip(store.observations, store.dones, strict=True):
        rows.append(critic(observations))
        if critic.is_recurrent:  # rsl_rl empties memories in place, through which no gradient goes
            critic.reset(hidden_state=tuple(one * (dones == 0) for one in critic.get_hidden_state()))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("recurrent", "coefficient", "clip", "mixed"),
    [
        *(("", coefficient, clip, False) for coefficient in (1.0, 0.5) for clip in (None, 0.3)),
        *(("lstm", 0.5, clip, False) for clip in (None, 0.3)),
        ("", 0.5, 0.3, True),
    ],
)
def test_the_value_loss_is_the_sum_over_components_each_clipped_by_its_own_range(
    recurrent: str, coefficient: float, clip: float | None, mixed: bool
) -> None:
    settings: dict[str, Any] = {"recurrent": recurrent, "value_loss_coef": coefficient, "value_clip": clip}
    runner, before, numbers, moved = learned(**settings, use_mixed_precision=mixed)
    alg, store = runner.alg, runner.alg.storage
    assert store.dones[:-1].any()
    critic = copy.deepcopy(alg.critic)
    for one, old in zip(critic.parameters(), before, strict=True):
        one.data.copy_(old)
    values, targets = replayed(critic, store).flatten(0, 1), store.returns.flatten(0, 1)
    losses = errors = (values - targets).square()
    if clip is not None:
        old, ranges = store.values.flatten(0, 1), [clip * float(np.std(column)) for column in targets.numpy().T]
        parts = [old[:, z] + (values - old)[:, z].clamp(-ranges[z], ranges[z]) for z in range(3)]
        losses = torch.maximum(errors, (torch.stack(parts, 1) - targets).square())
        assert not torch.equal(losses, errors)
    sum(losses[:, z].mean() for z in range(3)).mul(coefficient).backward()
    # The networks of mixed precision have 8 bits, 0.4 %; losses are those of full precision.
    near: dict[str, Any] = {"rtol": 0.05, "atol": 0.02} if mixed else {"rtol": 1e-3, "atol": 1e-5}
    torch.testing.assert_close(moved, [one.grad for one in critic.parameters()], **near)
    rel = 0.02 if mixed else 1e-5
    assert numbers["value"] == pytest.approx(losses.sum(1).mean().item(), rel=rel)
    for z, label in enumerate(SCALES.labels):
        assert numbers[f"value_loss/gamma={label}"] == pytest.approx(errors[:, z].mean().item(), rel=rel)
        spread = store.returns[..., z].numpy()
        fit = 1 - np.var(spread - store.values[..., z].numpy()) / np.var(spread)
        assert numbers[f"explained_variance/gamma={label}"] == pytest.approx(fit, abs=1e-4)
        assert numbers[f"value_mean/gamma={label}"] == pytest.approx(float(store.values[..., z].mean()), abs=1e-5)


def test_several_scales_leave_the_one_range_of_rsl_rl_out_and_one_scale_keeps_it() -> None:
    for scales, alike in ((SCALES, True), ("single", False)):
        clipped, free = (make(scales=scales, use_clipped_value_loss=flag, clip_param=1e-6) for flag in (True, False))
        for runner in (clipped, free):
            torch.manual_seed(1)
            runner.learn(2)
        assert all(map(torch.equal, parameters(clipped.alg), parameters(free.alg))) == alike
        assert clipped.alg.use_clipped_value_loss and clipped.alg.value_loss_coef == 1.0  # as they were


RND = {"weight": 50.0, "predictor_hidden_dims": [8], "target_hidden_dims": [8], "num_outputs": 4}


@pytest.mark.filterwarnings("ignore:The observation configuration dictionary 'obs_groups'")
def test_an_intrinsic_reward_is_a_reward_like_any() -> None:
    runner = make(rnd_cfg=RND, env=Hopper(8, 50))
    found: list[torch.Tensor] = []
    ask = runner.alg.rnd.get_intrinsic_reward
    runner.alg.rnd.get_intrinsic_reward = lambda obs: found.append(ask(obs)) or found[-1]
    seen = rollout(runner)
    intrinsic = torch.stack(found).numpy()
    assert intrinsic.min() > 0
    np.testing.assert_allclose(runner.alg.storage.rewards[..., 0].numpy(), seen["rewards"] + intrinsic, rtol=1e-6)
    seen["rewards"] = seen["rewards"] + intrinsic
    last = runner.alg.predict_components(runner.env.get_observations()).double().numpy()
    finals = runner.alg.storage.values.double().numpy()
    targets, _ = slow_returns(runner.alg, seen, finals, last, "difference")
    np.testing.assert_allclose(runner.alg.storage.returns.numpy(), targets, rtol=0, atol=1e-4)
    assert runner.alg.update()["rnd"] > 0


def twice(env: Any, obs: Any, actions: Any) -> tuple[Any, Any]:
    """Every sample two times: a symmetry that changes nothing."""
    return (None if one is None else torch.cat([one, one]) for one in (obs, actions))  # type: ignore[return-value]


def test_a_symmetry_that_changes_nothing_changes_nothing() -> None:
    symmetry, numbers = {"data_augmentation_func": twice, "use_data_augmentation": True}, []
    plain, mirrored = (make(value_clip=0.5, schedule="fixed", **more) for more in ({}, {"symmetry_cfg": symmetry}))
    for runner in (plain, mirrored):
        rollout(runner)
        numbers.append(runner.alg.update())
    assert numbers[1].pop("symmetry") == 0
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-3, abs=1e-5)
    torch.testing.assert_close(parameters(plain.alg), parameters(mirrored.alg), rtol=0, atol=1e-5)


@pytest.mark.parametrize("recurrent", ["", "gru", "lstm"])
def test_components_are_predicted_without_touching_the_memory(recurrent: str) -> None:
    runner = make(recurrent=recurrent)
    rollout(runner)
    alg, obs = runner.alg, runner.env.get_observations()
    first = alg.predict_components(obs)
    assert first.shape == (16, 3) and not first.requires_grad
    assert torch.equal(alg.predict_components(obs), first)


def test_the_critic_may_share_nothing_with_the_runner() -> None:
    env = Pole(6, 9)
    obs, runner = env.get_observations(), make(env=env)

    def own(scales: Any) -> DeltaPPO:
        store = RolloutStorage("rl", 6, 16, obs, [1])
        return DeltaPPO(runner.alg.actor, runner.alg.critic, store, gamma=0.98, scales=scales)

    assert own(SCALES).act(obs).shape == (6, 1)
    for scales in ("single", [0.5, 0.98]):
        with pytest.raises(ConfigError, match=r"one output for each of the \d scales.*got values of shape \(6, 3\)"):
            own(scales).act(obs)


def test_a_ladder_follows_discount_and_decay() -> None:
    alg = make(gamma=0.99, scales={"ladder": "halving", "components": 3}).alg
    alg.gamma, alg.lam = 0.98, 0.9
    assert alg.scales == TimeScales.halving(0.98, lam=0.9, components=3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scales": 3}, "scales must name time scales; got 3"),
        ({"scales": [0.5, 0.9]}, "gamma must be the largest discount"),
        ({"scales": None, "gamma": 1.0}, "pass scales='halving longest_horizon=1000'"),
        ({"form": "other"}, "form must be 'bootstrap' or 'difference'; got 'other'"),
        ({"time_outs": "ignore"}, "time_outs must be 'bootstrap' or 'fold'; got 'ignore'"),
        ({"time_outs": "fold"}, r"right for one discount; got 3 scales: leave it out, or pass scales='single'"),
        ({"value_clip": 0}, "value_clip must be a finite number above 0, or None; got 0"),
        ({"value_clip": "x"}, "value_clip must be a finite number above 0, or None; got 'x'"),
        ({"value_clip": float("inf")}, "value_clip must be a finite number above 0, or None; got inf"),
        ({"value_clip": True}, "value_clip must be a finite number above 0, or None; got True"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**settings)


def test_configurations_of_older_versions_are_refused_by_name() -> None:
    old = config()
    old["policy"] = {"class_name": "ActorCritic"}
    del old["actor"], old["critic"]
    with pytest.raises(ConfigError, match="got none of actor, critic: 'policy' is how rsl_rl before version 4"):
        OnPolicyRunner(Pole(4), old)
    short = config()
    del short["obs_groups"]
    with pytest.raises(ConfigError, match="got none of obs_groups among seed, num_steps_per_env"):
        OnPolicyRunner(Pole(4), short)


def test_answers_of_the_environment_that_do_not_fit_are_refused() -> None:
    runner = make(env=Pole(5, 2, hands_out="final_obs"))
    alg, env = runner.alg, runner.env
    unnamed = {"_env_ids": torch.arange(5), "obs": env.get_observations()}
    for name, answer, kind, words in (
        ("time_outs", torch.zeros(5, 1), ShapeError, r"time_outs'\] must be a tensor of shape \(5,\).*got \(5, 1\)"),
        ("time_outs", [False] * 5, ShapeError, "one flag per environment; got list"),
        ("final_obs", torch.zeros(5, 4), DataError, "TensorDict or dict.*got Tensor"),
        ("final_obs", {"critic": torch.zeros(2, 4)}, DataError, r"batch size \(5,\); got \(2,\)"),
        ("final_obs", env.get_observations()[:2], DataError, r"batch size \(5,\); got \(2,\)"),
        ("final_obs", {"critic": torch.zeros(5, 3)}, DataError, r"must be torch.float32 of shape \(5, 4\).*\(5, 3\)"),
        ("final_obs", {"critic": torch.zeros(5, 4).double()}, DataError, r"'critic'\] must be .*got torch.float64 of"),
        ("final_obs", unnamed, DataError, r"the groups of the critic, critic; got _env_ids, obs: .* drop the key"),
    ):
        extras = {"time_outs": torch.ones(5), name: answer}
        alg.act(env.get_observations())
        with pytest.raises(kind, match=words):
            alg.process_env_step(env.get_observations(), torch.zeros(5), torch.ones(5), extras)


def test_without_time_outs_every_end_is_a_termination_and_a_flag_without_an_end_cuts_nothing() -> None:
    runner = make(env=Pole(5, 3))
    alg, env = runner.alg, runner.env
    flags = itertools.cycle([{}, {"time_outs": torch.ones(5)}])
    obs, dones = env.get_observations(), torch.tensor([1, 0, 0, 1, 0])
    with torch.inference_mode():
        for _ in range(16):
            alg.act(obs)
            alg.process_env_step(obs, torch.ones(5), dones, next(flags))
        alg.compute_returns(obs)
    assert not alg._truncated[::2].any() and torch.equal(alg._truncated[1::2], (dones == 1).expand(8, 5))
    np.testing.assert_allclose(alg.storage.returns[0, 0].sum(), 1.0, rtol=1e-6)


def test_another_version_gets_a_warning_that_says_so() -> None:
    adapter._check_version("5.5.9")
    with pytest.warns(UserWarning, match=r"was tried with rsl-rl-lib 5\.5\.1; got 6\.0\.0"):
        adapter._check_version("6.0.0")


def test_files_hold_the_scales_and_load_into_the_same_ones(tmp_path: Any) -> None:
    runner, other, file = make(), make(), str(tmp_path / "model.pt")
    runner.learn(2)
    runner.save(file)
    other.load(file)
    assert all(map(torch.equal, parameters(runner.alg), parameters(other.alg)))
    assert other.current_learning_iteration == runner.current_learning_iteration == 1
    wrong = make(scales=[0.5, 0.8, 0.98])
    with pytest.raises(
        CheckpointError, match=r"discounts \(0\.5, 0\.8, 0\.98\); got \(0\.5, 0\.9, 0\.98\): pass scales="
    ):
        wrong.load(file)
    wrong.load(file, load_cfg={"actor": True})
    assert torch.equal(parameters(wrong.alg)[0], parameters(runner.alg)[0])


def test_files_of_a_plain_ppo_load_into_one_scale_and_the_policy_into_several(tmp_path: Any) -> None:
    plain, single, several, file = make(PPO), make(scales="single"), make(), str(tmp_path / "model.pt")
    plain.learn(1)
    plain.save(file)
    single.load(file)
    assert all(map(torch.equal, parameters(plain.alg), parameters(single.alg)))
    with pytest.raises(CheckpointError, match=r"one of a PPO without components: pass load_cfg=\{'actor': True\}"):
        several.load(file)
    several.load(file, load_cfg={"actor": True})
