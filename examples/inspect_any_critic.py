"""Any critic in the inspector: a table of a random walk here, whatever you have in your code. NumPy alone.

python examples/inspect_any_critic.py
"""

import numpy as np

import tddelta as tdd


def main() -> None:
    """Walk, note what the critic believes, write the page, ask between the scales."""
    scales = tdd.TimeScales.halving(gamma=0.99)
    walk = tdd.tabular.FiniteMDP.chain(19, forward=0.6)  # a reward of 1 behind the last state
    critic = walk.exact_deltas(scales.gammas)  # W, a row per state: yours comes from a network

    rng = np.random.default_rng(0)
    states, rewards, pictures = [9], [], []
    while 0 <= states[-1] < 19:
        picture = np.zeros((3, 19), np.uint8)
        picture[1, states[-1]] = 255
        pictures.append(picture)
        states.append(states[-1] + (1 if rng.random() < 0.6 else -1))
        rewards.append(float(states[-1] == 19))

    recording = {
        "deltas": critic[states[:-1]],  # (T, Z)
        "gammas": np.array(scales.gammas),  # (Z,)
        "rewards": np.array(rewards),  # (T,)
        "terminated": np.arange(len(rewards)) == len(rewards) - 1,
        "truncated": np.zeros(len(rewards), bool),
        "frames": np.stack(pictures),  # (T, H, W) or (T, H, W, 3); optional
        "name": np.array("exact values"),
    }
    print(f"{len(rewards)} steps: {tdd.inspect(recording, 'walk.html')}")

    middle = critic[9]
    print(f"V over 20 steps, which was not trained: {tdd.value_at(middle, scales, gamma=0.95):.3f}")
    print(f"V under 1/(1 + 0.01 t): {tdd.hyperbolic(middle, scales, k=0.01):.3f}")
    print(f"worth 0.005 per step up to a horizon of {tdd.stopping_horizon(middle, scales, cost=0.005):.0f} steps")


if __name__ == "__main__":
    main()
