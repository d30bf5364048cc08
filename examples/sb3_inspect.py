"""A game of a Stable-Baselines3 agent in the inspector. Needs `pip install "tddelta[sb3]"`.

python examples/sb3_inspect.py
"""

from typing import Any

import gymnasium
import numpy as np
import torch

import tddelta as tdd
from tddelta.adapters.sb3 import DeltaPPO


def game(model: Any, environment: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Play one episode and keep what the inspector needs: a few arrays, one row per step."""
    rows: dict[str, list[Any]] = {"deltas": [], "rewards": [], "terminated": [], "truncated": []}
    observation, _ = environment.reset(seed=seed)
    ended = False
    while not ended:
        rows["deltas"].append(model.predict_components(observation))
        # rows["frames"].append(environment.render()), with render_mode="rgb_array", shows the screen too
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = environment.step(action)
        rows["rewards"].append(reward)
        rows["terminated"].append(terminated)
        rows["truncated"].append(truncated)
        ended = terminated or truncated
    arrays = {name: np.asarray(row) for name, row in rows.items()}
    return arrays | {"gammas": np.asarray(model.scales.gammas), "name": np.array("DeltaPPO")}


def main(steps: int = 4_096) -> None:
    """Train for a moment, play, and write the page."""
    torch.set_num_threads(1)
    model = DeltaPPO("MlpPolicy", "CartPole-v1", gamma=0.99, n_steps=512, seed=0, device="cpu")
    model.learn(steps)
    recording = game(model, gymnasium.make("CartPole-v1"))
    np.savez("cartpole.npz", **recording)  # tddelta inspect cartpole.npz makes the same page
    print(f"{len(recording['rewards'])} steps: {tdd.inspect(recording, 'cartpole.html')}")


if __name__ == "__main__":
    main()
