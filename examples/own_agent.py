"""An agent of your own: another target function in an agent that exists, checked and then trained beside it.

python examples/own_agent.py
tddelta compare CartPole-v1 --agents ppo-delta examples.own_agent:shorter --seeds 3 --steps 100_000
"""

import tddelta as tdd


def shorter_traces(rewards, deltas, next_deltas, *, terminated, truncated, scales, durations=None):
    """λ targets whose traces decay twice as fast as the ladder says."""
    decays = tuple(decay / 2 for decay in scales.trace_decays)
    scales = tdd.TimeScales(gammas=scales.gammas, trace_decays=decays)
    return tdd.lambda_targets(
        rewards,
        deltas,
        next_deltas,
        terminated=terminated,
        truncated=truncated,
        scales=scales,
        durations=durations,
    )


shorter = tdd.AGENTS["ppo-delta"].replace(name="shorter-traces", targets=shorter_traces)


def main() -> None:
    """Check the target function, then train the new agent and the old one."""
    tdd.testing.check_targets(shorter_traces)  # raises and names the identity if one does not hold
    runs = tdd.compare(["CartPole-v1"], ["ppo-delta", shorter], seeds=1, steps=20_000)
    for run in runs:
        print(f"{run.agent}: return of the last update {run.metrics['return_mean'][-1]:.1f}, in {run.path}")


if __name__ == "__main__":
    main()
