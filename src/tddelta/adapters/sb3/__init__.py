"""Stable-Baselines3 with TD(Δ) critics: change the import, keep the rest.

Needs the extra `sb3`. See the page "Stable-Baselines3" of the documentation.
"""

from tddelta.errors import MissingExtra

try:
    import stable_baselines3 as _stable_baselines3  # noqa: F401  (only to say how to install it)
except ImportError as error:
    raise MissingExtra(
        'tddelta.adapters.sb3 needs stable-baselines3 and PyTorch: pip install "tddelta[sb3]"'
    ) from error

from tddelta.adapters.sb3.buffers import DeltaDictRolloutBuffer, DeltaRolloutBuffer
from tddelta.adapters.sb3.off_policy import DeltaDQN, DeltaSAC
from tddelta.adapters.sb3.on_policy import DeltaA2C, DeltaPPO
from tddelta.adapters.sb3.policies import (
    DeltaActorCriticCnnPolicy,
    DeltaActorCriticPolicy,
    DeltaMultiInputActorCriticPolicy,
)
from tddelta.adapters.sb3.q_policies import (
    DeltaContinuousCritic,
    DeltaDQNCnnPolicy,
    DeltaDQNMultiInputPolicy,
    DeltaDQNPolicy,
    DeltaQNetwork,
    DeltaSACCnnPolicy,
    DeltaSACMultiInputPolicy,
    DeltaSACPolicy,
)
from tddelta.adapters.sb3.run_directory import RunDirectory

__all__ = [
    "DeltaA2C",
    "DeltaActorCriticCnnPolicy",
    "DeltaActorCriticPolicy",
    "DeltaContinuousCritic",
    "DeltaDQN",
    "DeltaDQNCnnPolicy",
    "DeltaDQNMultiInputPolicy",
    "DeltaDQNPolicy",
    "DeltaDictRolloutBuffer",
    "DeltaMultiInputActorCriticPolicy",
    "DeltaPPO",
    "DeltaQNetwork",
    "DeltaRolloutBuffer",
    "DeltaSAC",
    "DeltaSACCnnPolicy",
    "DeltaSACMultiInputPolicy",
    "DeltaSACPolicy",
    "RunDirectory",
]
