"""An agent of your own: another target function in an agent that exists, checked and then trained beside it.

python examples/own_agent.py
tddelta compare CartPole-v1 --agents ppo-delta examples.own_agent:one_step --seeds 3 --steps 100_000
"""

import tddelta as tdd


def one_step_targets(rewards, deltas, next_deltas, *, terminated, truncated, scales):
    """TD(0): the critic learns from one step at a time; the actor keeps its own advantages."""
    # A truncated step bootstraps like any other, so the flag is not needed.
    return deltas + tdd.td_errors(rewards, deltas, next_deltas, terminated=terminated, scales=scales)


one_step = tdd.AGENTS["ppo-delta"].replace(name="one-step", targets=one_step_targets)


def main() -> None:
    """Check the target function, then train the new agent and the old one."""
    tdd.testing.check_targets(one_step_targets)  # raises and names the identity if one does not hold
    runs = tdd.compare(["CartPole-v1"], ["ppo-delta", one_step], seeds=1, steps=20_000)
    for run in runs:
        print(f"{run.agent}: return of the last update {run.metrics['return_mean'][-1]:.1f}, in {run.path}")


if __name__ == "__main__":
    main()
