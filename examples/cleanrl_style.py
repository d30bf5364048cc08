"""PPO on CartPole in one file of PyTorch, in the style of CleanRL.

`cleanrl_style_before.py` is plain PPO, `cleanrl_style.py` the same with TD(Δ): a mark ends each line that differs, and
docs/recipes.md says what it does.

    python examples/cleanrl_style.py --steps 50000
"""

from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
import tyro
from torch.distributions import Categorical

import tddelta as tdd  # tddelta


@dataclass
class Args:
    """Settings, each of them an option on the command line."""

    environment: str = "CartPole-v1"
    steps: int = 50_000  # of all environments together
    seed: int = 0
    environments: int = 8
    rollout_length: int = 128
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 1e-3
    gamma: float = 0.99
    lam: float = 0.95
    components: int | None = None  # 1 is plain PPO  # tddelta
    clip: float = 0.2
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_gradient_norm: float = 0.5


def network(inputs: int, outputs: int, gain: float) -> torch.nn.Sequential:
    """Two hidden layers, orthogonal weights."""
    layers = [torch.nn.Linear(m, n) for m, n in ((inputs, 64), (64, 64), (64, outputs))]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        torch.nn.init.orthogonal_(layer.weight, scale)
        torch.nn.init.zeros_(layer.bias)
    return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])


def train(args: Args) -> tuple[torch.nn.ModuleDict, list[float]]:
    """The trained networks, and the return of every episode on the way."""
    torch.manual_seed(args.seed)
    shape = (args.rollout_length, args.environments)
    environments = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(args.environment)] * args.environments)
    scales = tdd.TimeScales.halving(args.gamma, lam=args.lam, components=args.components)  # tddelta
    size = environments.single_observation_space.shape[0]

    agent = torch.nn.ModuleDict()
    agent["actor"] = network(size, int(environments.single_action_space.n), gain=0.01)
    agent["critic"] = network(size, len(scales), gain=1.0)  # tddelta
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    observations, next_observations = torch.zeros(*shape, size), torch.zeros(*shape, size)
    actions, log_probabilities, rewards = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    terminated, truncated, real = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    observation = torch.as_tensor(environments.reset(seed=args.seed)[0])
    over, running, episodes = np.zeros(args.environments, bool), np.zeros(args.environments), []

    for update in range(1, args.steps // real.numel() + 1):
        for t in range(args.rollout_length):
            with torch.no_grad():
                policy = Categorical(logits=agent["actor"](observation))
            action = policy.sample()
            observations[t], actions[t], log_probabilities[t] = observation, action, policy.log_prob(action)

            # Gymnasium's NEXT_STEP: the step after an episode's end (`over`) only resets the environment, and is
            # nothing to learn from; each other step gives the observation that it led to, at the end as well.
            real[t] = torch.as_tensor(~over)
            array, reward, *ends, _ = environments.step(action.numpy())
            observation = next_observations[t] = torch.as_tensor(array)
            rewards[t], terminated[t], truncated[t] = map(torch.as_tensor, (reward, *ends))
            over, running = np.logical_or(*ends), running + reward
            episodes += running[over].tolist()
            running[over] = 0

        with torch.no_grad():
            deltas, next_deltas = agent["critic"](observations), agent["critic"](next_observations)  # tddelta
            flags = {"terminated": terminated, "truncated": truncated, "scales": scales}  # tddelta
            advantages = tdd.advantages(rewards, deltas, next_deltas, **flags)  # tddelta
            targets = tdd.lambda_targets(rewards, deltas, next_deltas, **flags, form="difference")  # tddelta

        rows = [x[real] for x in (observations, actions, log_probabilities, advantages, targets)]
        for _ in range(args.epochs):
            for chosen in torch.randperm(len(rows[0])).chunk(args.minibatches):
                seen, taken, before, advantage, target = (x[chosen] for x in rows)
                policy = Categorical(logits=agent["actor"](seen))
                ratio = (policy.log_prob(taken) - before).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
                policy_loss = -torch.min(advantage * ratio, advantage * clipped).mean()
                value_loss = 0.5 * (agent["critic"](seen) - target).square().sum(-1).mean()  # tddelta
                entropy = policy.entropy().mean()
                loss = policy_loss + args.value_coefficient * value_loss - args.entropy_coefficient * entropy
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(agent.parameters(), args.max_gradient_norm)
                optimizer.step()

        if update % 8 == 0:
            error = (targets - deltas)[real].square().mean(0).sqrt()  # tddelta
            shown = np.array2string(error.numpy(), precision=2)
            print(f"{update * real.numel():7d} steps, return {np.mean(episodes[-20:]):5.1f}, critic's error {shown}")
    environments.close()
    return agent, episodes


if __name__ == "__main__":
    _, episodes = train(tyro.cli(Args))
    print(f"mean return: first 20 episodes {np.mean(episodes[:20]):.0f}, last 20 {np.mean(episodes[-20:]):.0f}")
