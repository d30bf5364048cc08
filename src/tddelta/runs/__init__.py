"""The run directory: what one training run leaves behind, and all that experiments and reports share.

```
OUT/ENV/AGENT/seed-N/
  config.json             what was run; equal bytes for equal runs
  status.json             running, finished, interrupted or failed, and how far it came
  checkpoints/            what an unfinished run goes on from; a finished one has none
  fault.json              numbers of the update that made a run fail
  metrics.jsonl           one line per update
  timing.jsonl            wall-clock times, versions, machine and command; nothing else in the folder holds any
  episodes.npz            steps, returns and lengths of the training episodes
  evaluations.jsonl       one line per evaluation, if there was any; `"starts": "no-ops"` are hold-out episodes
  reward_density.json     rewards per 100 steps, where they were counted
  rollout.npz             one recorded episode of the final policy
  critic.npz              predicted values and realised discounted returns of held-out states
  parameters.safetensors  network parameters and normalisers
  inspect.html, .npz      what `tddelta inspect` wrote, if it was called; no part of the record
  tensorboard/, wandb/    what trackers keep, if the run has any; no part of the record
```

Reading needs NumPy and the standard library only, and nothing here is ever unpickled.
A whole file is written under a temporary name and renamed, so it is there completely or not at all;
a `.jsonl` file is appended to, and a last line that a crash cut short is ignored. A run that goes on from a checkpoint
cuts every file back to it first.
"""

from tddelta.runs.checkpoints import CHECKPOINT_SECONDS, Checkpoint
from tddelta.runs.files import CONFIG_FORMAT, FORMAT, Arrays, is_being_written, read_parameters, set_aside
from tddelta.runs.reader import Run, Runs, config_hash, find_runs, load_runs, one_run, readable_runs, run_path
from tddelta.runs.recorder import RunWriter, append_evaluation, write_reward_density
from tddelta.runs.trackers import TRACKERS, Logged, Track, Tracker, TrackerFactory, check_trackers

__all__ = [
    "CHECKPOINT_SECONDS",
    "CONFIG_FORMAT",
    "FORMAT",
    "TRACKERS",
    "Arrays",
    "Checkpoint",
    "Logged",
    "Run",
    "RunWriter",
    "Runs",
    "Track",
    "Tracker",
    "TrackerFactory",
    "append_evaluation",
    "check_trackers",
    "config_hash",
    "find_runs",
    "is_being_written",
    "load_runs",
    "one_run",
    "read_parameters",
    "readable_runs",
    "run_path",
    "set_aside",
    "write_reward_density",
]
