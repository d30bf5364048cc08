"""TD(Δ) in a PyTorch loop: what changes in a critic update, and nothing else.

The critic gets one output per scale, the targets come from one call, the loss is a sum over scales.

    python examples/targets_pytorch.py
"""

import torch

import tddelta as tdd

T, B, FEATURES = 64, 8, 4


def main() -> None:
    """Fit a critic on one made-up rollout after another."""
    torch.manual_seed(0)
    scales = tdd.TimeScales.halving(gamma=0.99, lam=0.95)
    critic = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.Tanh(), torch.nn.Linear(64, len(scales)))
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)

    losses = []
    for _ in range(50):
        # A rollout: where your environment and policy stand.
        observations = torch.randn(T + 1, B, FEATURES)
        rewards = observations[:-1, :, 0]
        terminated = torch.rand(T, B) < 0.02
        truncated = torch.zeros(T, B, dtype=torch.bool)

        with torch.no_grad():  # targets are constants
            every = critic(observations)
            deltas, last_deltas = every[:-1], every[-1]
            ends = {"terminated": terminated, "truncated": truncated}
            next_deltas = tdd.successors(deltas, last_deltas, **ends)
            targets = tdd.lambda_targets(rewards, deltas, next_deltas, **ends, scales=scales)
            advantages = tdd.advantages(rewards, deltas, next_deltas, **ends, scales=scales)

        loss = 0.5 * ((critic(observations[:-1]) - targets) ** 2).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    print(f"critic loss: first {losses[0]:.3f}, last {losses[-1]:.3f}")
    print(f"targets {tuple(targets.shape)}, advantages {tuple(advantages.shape)}, both {targets.dtype}")


if __name__ == "__main__":
    main()
