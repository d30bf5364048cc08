"""Writes run directories as training would, with made-up but plausible contents."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tddelta.timescales import TimeScales

AGENTS = {
    "ppo": {"heads": "one", "basis": "values", "rule": "capped"},
    "ppo+": {"heads": "ladder", "basis": "sum", "rule": "capped"},
    "ppo-multi": {"heads": "ladder", "basis": "values", "rule": "constant"},
    "ppo-delta": {"heads": "ladder", "basis": "deltas", "rule": "capped"},
}


def agent_data(name: str) -> dict[str, Any]:
    made = {"targets": "tddelta.targets:lambda_targets", "advantages": "tddelta.targets:advantages"}
    return {"name": name, **AGENTS.get(name, AGENTS["ppo-delta"]), **made}


def scales_of(name: str) -> TimeScales:
    if name in ("ppo", "ppo+"):
        return TimeScales.single(0.99, lam=0.95)
    return TimeScales.halving(gamma=0.99, lam=0.95, rule=agent_data(name)["rule"])


def write_run(
    out: Path,
    environment: str = "Breakout-MinAtar",
    agent: str = "ppo",
    seed: int = 0,
    *,
    label: str | None = None,
    returns: Any = None,
    end_steps: Any = None,
    steps: int = 300_000,
    state: str = "finished",
    message: str | None = None,
    settings: dict[str, Any] | None = None,
    parameters: dict[str, Any] | None = None,
    rollout: bool = True,
    critic: bool = True,
    quality: float = 0.7,
    vectorized: bool = False,
    command: tuple[str, ...] = ("tddelta", "compare", "Breakout-MinAtar", "--agents", "ppo", "ppo-delta"),
) -> Path:
    """Writes one run; `returns` and `end_steps` are those of its training episodes."""
    folder = (label or agent).replace("/", "-").replace("<", "-")
    path = out / environment.replace("/", "-") / folder / f"seed-{seed}"
    path.mkdir(parents=True)
    scales = scales_of(agent)
    rng = np.random.default_rng([seed, len(environment), len(agent)])
    config = {
        "format": 3,
        "environment": environment,
        "environment_kwargs": {},
        "environment_parameters": parameters or {"max_steps_in_episode": 1000},
        "agent": agent_data(agent),
        "seed": seed,
        "steps": steps,
        "settings": {
            "environment": environment,
            "agent": agent,
            "steps": steps,
            "environments": 64,
            "rollout_length": 128,
            "gamma": 0.99,
            "lam": 0.95,
            "scales": None,
            "learning_rate": 0.001,
            "hidden_sizes": [64, 64],
            **(settings or {}),
        },
        "scales": scales.to_dict(),
    }
    returns = np.linspace(0, 10, 200) if returns is None else np.asarray(returns, np.float64)
    if end_steps is None:
        end_steps = np.linspace(steps / max(len(returns), 1), steps, len(returns)).astype(np.int64)
    done = int(end_steps[-1]) if len(end_steps) else 0
    status = {"state": state, "steps": done if state != "finished" else steps, "updates": 0, "episodes": len(returns)}
    timing: list[dict[str, Any]] = [
        {
            "event": "start",
            "time": "2026-01-01T00:00:00+00:00",
            "command": list(command),
            "versions": {"python": "3.11.9", "tddelta": "0.1.0", "numpy": "2.4.6", "jax": "0.10.2"},
            "machine": {"processor": "x86_64", "cores": 2, "device": "cpu", "system": "Linux"},
        },
        {"event": "compile", "seconds": 4.2},
        {"event": "block", "steps": 65536, "seconds": 0.8, "steps_per_second": 81920.0},
        {"event": "end", "seconds": 5.0, "steps_per_second": 80000.0 + 100 * seed, "state": state},
    ]
    if vectorized:
        timing.insert(2, {"event": "vectorized", "seeds": [seed, seed + 1]})
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "status.json").write_text(json.dumps({**status, "message": message}), encoding="utf-8")
    (path / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in timing), encoding="utf-8")
    (path / "metrics.jsonl").write_text("", encoding="utf-8")
    lengths = np.full(len(returns), 100)
    np.savez(path / "episodes.npz", steps=np.asarray(end_steps, np.int64), returns=returns, lengths=lengths)
    gammas = np.array(scales.gammas)
    if rollout and state == "finished":
        deltas, rewards = episode(rng, scales)
        flags = np.zeros(len(rewards), bool)
        np.savez(
            path / "rollout.npz",
            observations=np.zeros((len(rewards), 4)),
            actions=np.zeros(len(rewards), np.int64),
            rewards=rewards,
            deltas=deltas,
            last_deltas=np.zeros(len(gammas)),
            terminated=flags,
            truncated=flags,
            gammas=gammas,
        )
    if critic and state == "finished":
        realised = rng.gamma(4.0, scales.horizons, size=(300, len(gammas))) / 20
        noise = rng.normal(size=realised.shape) * realised.std(axis=0)
        predicted = realised * quality + realised.mean(axis=0) * (1 - quality) + noise * 0.35
        realised[:3, -1] = np.nan
        np.savez(
            path / "critic.npz",
            predicted=predicted.astype(np.float32),
            realised=realised.astype(np.float32),
            gammas=gammas.astype(np.float32),
        )
    return path


def episode(rng: np.random.Generator, scales: TimeScales, length: int = 900) -> tuple[np.ndarray, np.ndarray]:
    """One episode: sparse rewards, and the exact W_z of them with some noise."""
    rewards = (rng.random(length) < 0.05).astype(np.float64)
    values = np.zeros((length + 1, len(scales)))
    for t in reversed(range(length)):
        values[t] = rewards[t] + np.array(scales.gammas) * values[t + 1]
    deltas = np.diff(values[:-1], axis=1, prepend=0)
    return deltas + rng.normal(size=deltas.shape) * 0.05 * deltas.std(axis=0), rewards


def learning(rng: np.random.Generator, final: float, steps: int, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends and returns of the episodes of a run that learns towards `final`."""
    ends = np.sort(rng.integers(1, steps + 1, episodes))
    progress = 1 / (1 + np.exp(-8 * (ends / steps - 0.45)))
    returns = rng.poisson(np.maximum(final * progress + 0.4, 0)).astype(np.float64)
    return ends, returns
