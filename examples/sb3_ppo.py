"""DeltaPPO in place of Stable-Baselines3's PPO: the import is the only change. Needs `pip install "tddelta[sb3]"`.

python examples/sb3_ppo.py
tddelta report runs/sb3
"""

from tempfile import TemporaryDirectory

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from tddelta.adapters.sb3 import DeltaPPO, RunDirectory


def main(steps: int = 4_096) -> None:
    """Train, look inside, and save a plain controller. 100,000 steps solve the task."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:  # yours is "runs/sb3"
        model = DeltaPPO("MlpPolicy", "CartPole-v1", gamma=0.99, n_steps=512, seed=0, device="cpu")
        model.learn(steps, callback=RunDirectory(folder, eval_env="CartPole-v1"))

        environment = model.get_env()
        assert environment is not None
        parts = model.predict_components(environment.reset())[0]
        for label, part in zip(model.scales.labels, parts, strict=True):
            print(f"W at γ = {label}: {part:6.2f}")
        print(f"V = ΣW: {parts.sum():.2f}")

        model.to_ppo().save(f"{folder}/controller.zip")
        controller = PPO.load(f"{folder}/controller.zip", device="cpu")  # needs no tddelta
        mean, deviation = evaluate_policy(controller, environment, n_eval_episodes=5)
        print(f"return of the plain controller: {mean:.0f} ± {deviation:.0f}")


if __name__ == "__main__":
    main()
