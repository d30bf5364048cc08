"""CartPole with TorchRL's ClipPPOLoss and a critic of several time scales. Needs `pip install "tddelta[torchrl]"`.

Four lines differ from the same program with TorchRL's GAE: they are marked.

python examples/torchrl_cartpole.py --frames 30000
"""

import argparse

import torch
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

import tddelta as tdd
from tddelta.adapters.torchrl import DeltaGAE, loss_settings, predict_components

ENVIRONMENTS, PER_BATCH, EPOCHS, MINIBATCH = 4, 1_024, 6, 128


def cartpole() -> GymEnv:
    """One environment; `truncated` at its 500 steps is kept apart from `terminated`."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def main(frames: int, seed: int) -> None:
    """Train, and print the returns of episodes and what each time scale adds to the value."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    environment = TransformedEnv(SerialEnv(ENVIRONMENTS, cartpole), Compose(InitTracker(), RewardSum(), StepCounter()))
    environment.set_seed(seed)

    scales = tdd.TimeScales.halving(gamma=0.99, lam=0.95)  # in place of gamma and lmbda
    network = {"in_features": 4, "num_cells": [64, 64], "activation_class": torch.nn.Tanh}
    actor = ProbabilisticActor(
        TensorDictModule(MLP(out_features=2, **network), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(out_features=len(scales), **network), in_keys=["observation"])  # was 1
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.0, normalize_advantage=True, **loss_settings(scales))  # new
    loss.make_value_estimator(DeltaGAE, value_network=critic, scales=scales)  # was ValueEstimators.GAE
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)

    collector = Collector(
        environment, actor, frames_per_batch=PER_BATCH, total_frames=-(-frames // PER_BATCH) * PER_BATCH
    )
    for batch, data in enumerate(collector, start=1):
        for _ in range(EPOCHS):
            loss.value_estimator(data)  # anew with the critic of now, as in TorchRL's tutorial
            for rows in torch.randperm(data.numel()).split(MINIBATCH):
                found = loss(data.reshape(-1)[rows])
                optimizer.zero_grad()
                sum(value for name, value in found.items() if name.startswith("loss_")).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        critic_loss = loss(data)["loss_critic"].item()

        returns = data["next", "episode_reward"][data["next", "done"]].tolist()
        mean = f"{sum(returns) / len(returns):5.1f}" if returns else "    –"
        print(f"{batch * PER_BATCH:6d} frames: return {mean} of {len(returns):2d} episodes, critic {critic_loss:.1f}")
    collector.shutdown()

    for name, number in loss.value_estimator.component_metrics(data).items():  # for a logger
        if name.startswith("explained_variance"):
            print(f"{name}: {number:.2f}")
    parts = predict_components(critic, environment.reset())[0]
    for label, part in zip(scales.labels, parts, strict=True):
        print(f"W at γ = {label}: {part:6.2f}")
    print(f"V = ΣW: {parts.sum():.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=6_144, help="of all environments together; 20000 solve the task")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
