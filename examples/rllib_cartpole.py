"""CartPole with RLlib's PPO and a critic of several time scales. Needs `pip install "tddelta[rllib]"`.

Two things differ from the same program with RLlib's PPO: the class of the config, and `scales`.

python examples/rllib_cartpole.py --steps 100000 --env-runners 2 --learners 2 --out runs
"""

import argparse
from functools import partial

import ray

from tddelta.adapters.rllib import DeltaPPOConfig, RunDirectory


def main(steps: int, env_runners: int, learners: int, out: str | None) -> None:
    """Train, and print returns of episodes and how well the critic knows each time scale."""
    config = (
        DeltaPPOConfig()
        .scales("halving")
        .environment("CartPole-v1")
        .env_runners(num_env_runners=env_runners, num_envs_per_env_runner=8)
        .learners(num_learners=learners)
        .training(lr=3e-4, train_batch_size_per_learner=2_000 // max(1, learners), num_epochs=6, vf_loss_coeff=0.01)
        .rl_module(model_config={"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True})
        .fault_tolerance(restart_failed_env_runners=True)
        .debugging(seed=0, log_level="ERROR")
    )
    if out is not None:
        config.callbacks(partial(RunDirectory, out))
    algorithm = config.build_algo()
    done = 0
    while done < steps:
        result = algorithm.train()
        done = int(result["num_env_steps_sampled_lifetime"])
        explained = result["learners"]["default_policy"]["explained_variance"]
        shown = "  ".join(f"{label} {float(explained[label]):5.2f}" for label in sorted(explained))
        print(
            f"{done:7} steps: return {result['env_runners']['episode_return_mean']:5.1f}; explained: {shown}",
            flush=True,
        )
    algorithm.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--env-runners", type=int, default=0)
    parser.add_argument("--learners", type=int, default=0)
    parser.add_argument("--out", help="folder for a run directory; none is written without")
    options = parser.parse_args()
    ray.init(include_dashboard=False, log_to_driver=False)
    main(options.steps, options.env_runners, options.learners, options.out)
