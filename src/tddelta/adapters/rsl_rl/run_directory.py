"""Run directories of trainings by rsl_rl's runner, for our PPO and for rsl_rl's own."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tddelta._plain import whole
from tddelta.adapters import lent
from tddelta.adapters.rsl_rl.ppo import truncated
from tddelta.decomposition import explained_variance
from tddelta.errors import TDDeltaError
from tddelta.runs import Arrays, RunWriter, run_path
from tddelta.runs.files import name_of, origin, plain
from tddelta.runs.recorder import RECORDED, STREAM_LENGTH, Recorder, critic_check, library_config
from tddelta.timescales import TimeScales

_PACKAGES = ("tddelta", "rsl-rl-lib", "torch", "tensordict", "numpy")

# rsl_rl's names where `metrics.jsonl` has others, with a factor: rsl_rl squares errors without a half.
_NAMES = {"value": ("value_loss", 0.5), "surrogate": ("policy_loss", 1.0)}


def learn(
    runner: Any,
    iterations: int,
    *,
    out: str | os.PathLike[str],
    environment: str,
    agent: str | None = None,
    seed: int | None = None,
    streams: int = 16,
    init_at_random_ep_len: bool = False,
) -> Path:
    """Train by `runner.learn`, and write `OUT/ENVIRONMENT/AGENT/seed-N/` for `tddelta report` and `tddelta inspect`.

    After training the agent plays on in the runner's environments, 2,048 steps, by its policy: one recorded episode in
    `rollout.npz` with W of every step, and the critic against the rewards that came in `critic.npz`. Random numbers
    of the training are not touched. Of several processes the first one writes.

    Args:
        runner: rsl_rl's `OnPolicyRunner`, with `DeltaPPO` or with `PPO`.
        iterations: Updates, as of `runner.learn`.
        out: The folder above.
        environment: Name of the environment.
        agent: Name of the agent; None is the name of the algorithm's class.
        seed: N; None is the "seed" of the runner's configuration, or 0.
        streams: Environments whose play goes into `critic.npz`, at most all.
        init_at_random_ep_len: As of `runner.learn`.

    Returns:
        The run directory.

    Raises:
        ConfigError: A setting is out of range, or the run directory exists.
        StorageError: A file cannot be written.
    """
    alg = runner.alg
    number = whole("seed", runner.cfg.get("seed", 0) if seed is None else seed, 0, advice="number the run")
    streams = min(whole("streams", streams, 1, advice="or leave it out"), runner.env.num_envs)
    name = type(alg).__name__ if agent is None else agent
    path = run_path(out, environment, name, number)
    config = _config(runner, iterations, (environment, name, number))
    writer = _begin(runner, path, config)
    if writer is None:
        runner.learn(iterations, init_at_random_ep_len)
        return path
    record = _Record(runner, writer)
    try:
        with lent(runner.logger, log=record.log, process_env_step=record.step):
            runner.learn(iterations, init_at_random_ep_len)
        record.end()
        nets = {"actor": alg._raw_actor, "critic": alg._raw_critic}
        tensors = {f"{part}.{name}": one for part, net in nets.items() for name, one in net.state_dict().items()}
        record.save_parameters({name: one.cpu().numpy() for name, one in tensors.items()}, environment)
        record.held_out(*_held_out(runner, streams))
        record.close("finished")
    except BaseException as error:
        record.broke_off(error)
        raise
    return path


def scales_of(alg: Any) -> TimeScales:
    """The discounts that a critic has values for: those of a `DeltaPPO`, or the one of a `PPO`."""
    ours: TimeScales | None = getattr(alg, "scales", None)
    return TimeScales.single(alg.gamma, lam=alg.lam) if ours is None else ours


def _begin(runner: Any, path: Path, config: dict[str, Any]) -> RunWriter | None:
    """Begin the run directory in the first process; where it is refused all raise, for the others would wait for it."""
    writer, refused = None, list[TDDeltaError | None]([None])
    if runner.gpu_global_rank == 0:
        try:
            writer = RunWriter(path, config, origin((), _PACKAGES, f"PyTorch: {runner.alg.device}"))
        except TDDeltaError as error:
            refused = [error]
    if runner.is_distributed:
        torch.distributed.broadcast_object_list(refused, src=0)  # as rsl_rl sends its parameters
    if refused[0] is not None:
        raise refused[0]
    return writer


def _config(runner: Any, iterations: int, named: tuple[str, str, int]) -> dict[str, Any]:
    settings = {key: value for key, value in runner.cfg.items() if key not in ("seed", "multi_gpu", "run_name")}
    per_update = runner.cfg["num_steps_per_env"] * runner.env.num_envs * runner.gpu_world_size
    steps = whole("iterations", iterations, 1, advice="pass a number of updates") * per_update
    more: dict[str, Any] = {"steps": steps, "settings": plain(settings, name_of)}
    more["environment_parameters"] = {"n_envs": runner.env.num_envs, "processes": runner.gpu_world_size}
    return library_config("rsl-rl-lib", runner.alg, named, scales_of(runner.alg), **more)


class _Record(Recorder):
    """Record of one training: stands before the runner's logger, which hears of every step and update."""

    def __init__(self, runner: Any, writer: RunWriter) -> None:
        super().__init__(writer)
        self._runner, self._log, self._step = runner, runner.logger.log, runner.logger.process_env_step
        self._sums = torch.zeros(2, runner.env.num_envs, device=runner.device)  # returns and lengths so far

    def step(self, rewards: torch.Tensor, dones: torch.Tensor, *given: Any) -> None:
        """Take a step of all environments."""
        self._step(rewards, dones, *given)
        self.steps += len(rewards) * self._runner.gpu_world_size
        self._sums += torch.stack([rewards, torch.ones_like(rewards)])
        ended = dones > 0
        returns, lengths = self._sums[:, ended].cpu().numpy()
        if len(returns):
            self.add_episodes(np.full(len(returns), self.steps), returns, lengths)
            self._sums[:, ended] = 0

    def log(self, **given: Any) -> None:
        """Take the numbers of an update, of which `loss_dict` and `learning_rate` are read."""
        self._log(**given)
        self.updates += 1
        store, numbers = self._runner.alg.storage, {"learning_rate": float(given["learning_rate"])}
        for key, value in given["loss_dict"].items():
            name, factor = _NAMES.get(key, (key, 0.5 if key.startswith("value_loss/") else 1.0))
            numbers[name] = factor * float(value)
        values, targets = (array.sum(-1).flatten() for array in (store.values, store.returns))
        numbers["explained_variance"] = float(explained_variance(values, targets))
        numbers["value_mean"] = float(values.mean())
        self.block(numbers)
        self.save_episodes()


def _held_out(runner: Any, streams: int) -> tuple[Arrays, Arrays]:
    """Arrays of `critic.npz` and `rollout.npz`: the agent plays on, and its memory goes on with it."""
    alg, env = runner.alg, runner.env
    groups = alg._raw_critic.obs_groups
    rows: list[dict[str, np.ndarray]] = []
    observations = env.get_observations().to(alg.device)
    devices = [alg.device] if torch.device(alg.device).type == "cuda" else []
    alg.eval_mode()
    with torch.inference_mode(), torch.random.fork_rng(devices):
        for _ in range(STREAM_LENGTH):
            actions, deltas = alg.actor(observations, stochastic_output=True), alg.critic(observations)
            # Copied, since an environment may write into its tensors again.
            row = {"actions": actions, "deltas": deltas}
            if groups:  # a critic that sees pictures alone has none
                row["observations"] = torch.cat([observations[group] for group in groups], -1)
            row = {name: one[:streams].float().cpu().clone() for name, one in row.items()}
            observations, rewards, dones, extras = env.step(actions.to(env.device))
            observations, rewards, dones = (one.to(alg.device) for one in (observations, rewards, dones))
            cut = truncated(dones, extras)
            row |= {"rewards": rewards, "terminated": (dones != 0) & ~cut, "truncated": cut}
            if getattr(alg, "rnd", None):
                row["learner_rewards"] = rewards + _intrinsic(alg.rnd, observations)
            rows.append({name: one[:streams].cpu().numpy().copy() for name, one in row.items()})
            for network in (alg.actor, alg.critic):
                network.reset(dones)
    alg.train_mode()
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    gammas, flags = np.asarray(scales_of(alg).gammas), {name: arrays[name] for name in ("terminated", "truncated")}
    learned = arrays.get("learner_rewards", arrays["rewards"])
    begin, end = _episode(flags["terminated"][:, 0] | flags["truncated"][:, 0])
    episode = {name: array[begin:end, 0] for name, array in arrays.items()}
    return critic_check(learned, arrays["deltas"], gammas, **flags), {**episode, "gammas": gammas}


def _intrinsic(rnd: Any, observations: Any) -> torch.Tensor:
    """The intrinsic reward at observations; its schedule does not go on."""
    with lent(rnd, update_counter=rnd.update_counter):
        found: torch.Tensor = rnd.get_intrinsic_reward(observations)
    return found


def _episode(ended: np.ndarray) -> tuple[int, int]:
    """First and last step but one of the first whole episode after `ended` (T,), else of the longest part of one."""
    spans = list(pairwise([0, *(np.flatnonzero(ended) + 1), len(ended)]))
    begin, end = spans[1] if len(spans) > 2 else max(spans, key=lambda span: span[1] - span[0])
    return int(begin), int(min(end, begin + RECORDED))
