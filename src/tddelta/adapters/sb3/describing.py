"""What a run directory says of a training of SB3: environment, settings, scales, versions, machine."""

from itertools import count
from pathlib import Path
from typing import Any

from tddelta.adapters.sb3.model import DeltaModel
from tddelta.adapters.sb3.settings import settings_of
from tddelta.runs import FORMAT, run_path
from tddelta.runs.origin import origin
from tddelta.timescales import TimeScales

_LIBRARY = "stable-baselines3"

_PACKAGES = ("tddelta", _LIBRARY, "torch", "gymnasium", "numpy")


def described_model(model: Any, environment: str, agent: str, number: int) -> dict[str, Any]:
    """What `config.json` holds: equal for equal runs."""
    lam = getattr(model, "gae_lambda", None)
    scales = model.scales if isinstance(model, DeltaModel) else TimeScales.single(model.gamma, lam=lam)
    return {
        "format": FORMAT,
        "environment": environment,
        "environment_kwargs": {},
        "environment_parameters": {"n_envs": model.n_envs},
        "agent": {"name": agent, "library": _LIBRARY, "algorithm": type(model).__name__},
        "seed": number,
        "steps": model._total_timesteps,
        "settings": settings_of(model),
        "scales": scales.to_dict(),
    }


def free_number(out: Path, environment: str, agent: str) -> int:
    """The first number whose run directory does not exist."""
    return next(number for number in count() if not run_path(out, environment, agent, number).exists())


def described_origin(model: Any) -> dict[str, Any]:
    """What the start of `timing.jsonl` holds: command, versions, machine."""
    return origin((), _PACKAGES, f"PyTorch: {model.device}")
