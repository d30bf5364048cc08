"""Tabular learning with breaks: the same bytes as without, after whichever seed the break is."""

import numpy as np
import pytest

from tddelta import CheckpointError, ConfigError, StorageError, TimeScales, lambda_targets
from tddelta.runs import checkpoints
from tddelta.tabular import FiniteMDP, control, evaluate, loops, sample

SCALES = TimeScales.from_horizons([2.0, 5.0], lam=0.8, n_step=4)
WALK = FiniteMDP.chain(4)
FEATURES = np.array([[1.0, 0.0], [1.0, 1.0], [0.5, 1.0], [0.0, 1.0], [0.0, 0.0]])[: WALK.states]


class StoppedError(Exception):
    pass


def learned(**options):
    options = {"step_sizes": [0.1, (0.05, 0.2)], "seeds": [3, 1, 7], "steps": 60, "threads": 1} | options
    result = evaluate(options.pop("mdp", WALK), SCALES, **options)
    arrays = (result.deltas, result.rms_error, result.abs_error, result.visits, result.weights)
    return [None if array is None else (array.shape, array.tobytes()) for array in arrays]


@pytest.fixture
def often(monkeypatch):
    """Options of a call that learns one seed at a time and saves after each."""
    monkeypatch.setattr(loops, "GROUP_SECONDS", 0.0)
    return {"checkpoint_every": 0.0}


@pytest.fixture
def breaking(monkeypatch):
    """A function that makes the save of a number raise `StoppedError` after it was made, or none."""
    save, number = checkpoints.save, [None, 0]

    def counted(*arguments):
        save(*arguments)
        number[1] += 1
        if number[1] == number[0]:
            raise StoppedError

    monkeypatch.setattr(checkpoints, "save", counted)

    def at(which):
        number[:] = [which, 0]

    return at


@pytest.mark.parametrize(
    "options",
    [
        {"method": "td0"},
        {"method": "traces", "record": "curve", "time_limit": 9},
        {"method": "true_online", "features": FEATURES, "record": (10, 60)},
        {"method": "lambda_return", "chunk": 13, "step_sizes": ["1/n", 0.1]},
        {"method": "lambda_difference", "mdp": FiniteMDP.ring(), "record": (5, 50)},
        {"method": "n_step", "record": "curve"},
        {"method": "n_step", "step_sizes": ["1/n"]},
        {"method": "phased", "steps": 5, "trajectories": 2},
        {"method": lambda_targets, "features": FEATURES},
    ],
    ids=lambda options: getattr(options["method"], "__name__", options["method"]),
)
def test_breaks_do_not_change_a_byte(options, tmp_path, often, breaking):
    whole, saved = learned(**options), {**options, **often, "checkpoint": tmp_path / "values"}
    for stop in (2, 1):  # after the second seed, then after the last
        breaking(stop)
        with pytest.raises(StoppedError):
            learned(**saved)
    # What has come to its end is there at once, without learning anything.
    breaking(1)
    assert learned(**saved) == whole


def test_a_trajectory_and_a_beginning_can_be_given(tmp_path, often, breaking):
    first = evaluate(WALK, SCALES, method="traces", step_sizes=["1/n"], seeds=3, steps=40)
    options = {"seeds": None, "steps": None, "method": "traces", "step_sizes": ["1/n"]}
    options |= {"trajectory": sample(WALK, 50, seeds=3, time_limit=7), "initial_deltas": first}
    breaking(2)
    with pytest.raises(StoppedError):
        learned(**options, **often, checkpoint=tmp_path)
    breaking(None)
    assert learned(**options, **often, checkpoint=tmp_path) == learned(**options)


def test_in_one_go_too_and_with_many_seeds(tmp_path):
    options = {"method": "traces", "seeds": 40, "threads": 2}
    assert learned(**options, checkpoint=tmp_path) == learned(**options)


def test_other_arguments_are_refused_and_named(tmp_path):
    learned(checkpoint=tmp_path)
    for options, message in [
        ({"steps": 70}, r"other arguments: steps 60 there and 70 now"),
        ({"seeds": [3, 1]}, r"seeds \[3, 1, 7\] there and \[3, 1\] now: pass the same, or another folder"),
        ({"step_sizes": [0.1]}, r"step_sizes \[.*\] there and"),
        ({"method": "td0"}, r'method "n_step" there and "td0" now'),
        ({"initial_deltas": np.ones((WALK.states, 2))}, "another initial_deltas"),
        ({"mdp": FiniteMDP(WALK.transition, 2.0, terminal=WALK.terminal)}, "another mdp"),
    ]:
        with pytest.raises(ConfigError, match=message):
            learned(checkpoint=tmp_path, **options)
    learned(checkpoint=tmp_path, threads=2)  # which does not matter


@pytest.mark.parametrize("name", ["weights", "errors", "visits"])
def test_a_checkpoint_that_lacks_arrays_is_refused(name, tmp_path, often, breaking):
    options = {"method": "traces", **often, "checkpoint": tmp_path}
    breaking(1)
    with pytest.raises(StoppedError):
        learned(**options)
    breaking(None)
    found = checkpoints.latest(tmp_path)
    own = ("format", "tddelta", "complete", "bytes", "sha256", "checksum")
    record = {key: value for key, value in found.record.items() if key not in own}
    for arrays, message in (
        ({key: array for key, array in found.arrays.items() if key != name}, rf"the array '{name}' is missing"),
        ({**found.arrays, name: np.zeros((2, 3, 4, 5, 6))}, "does not hold what its arguments need"),
    ):
        checkpoints.save(tmp_path, found.count("saves"), arrays, record)
        with pytest.raises(CheckpointError, match=message):
            learned(**options)


def test_what_another_version_learned_is_refused(tmp_path):
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(loops, "ALGORITHM", 1)
        learned(checkpoint=tmp_path)
    with pytest.raises(ConfigError, match="the checkpoint of another version of tddelta: pass another folder"):
        learned(checkpoint=tmp_path)


def test_the_folder_must_be_free_and_writable(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file cannot be written"):
        learned(checkpoint=tmp_path / "file")
    with (
        loops.lock_file(tmp_path / "lock", "leave it"),
        pytest.raises(ConfigError, match="is being written by another process: wait for it, or choose another folder"),
    ):
        learned(checkpoint=tmp_path)
    with pytest.raises(ConfigError, match="checkpoint_every must be a number of seconds >= 0; got -1"):
        learned(checkpoint=tmp_path, checkpoint_every=-1.0)


@pytest.mark.parametrize("options", [{"method": "sarsa"}, {"method": "n_step_sarsa", "time_limit": 9}])
def test_control_goes_on_from_seed_to_seed(options, tmp_path, breaking):
    def learned_to_act(**more):
        given = {"seeds": [4, 0, 9, 2], "steps": 80, "threads": 1, "step_size": "1/n"}
        result = control(WALK, SCALES, **given, **options, **more)
        returns = [array.tobytes() for array in (*result.episode_returns, *result.episode_lengths)]
        return result.deltas.tobytes(), result.policy.tobytes(), result.start_values.tobytes(), returns

    whole = learned_to_act()
    saved = {"checkpoint": tmp_path, "checkpoint_every": 0.0}
    for _ in range(2):
        breaking(1)
        with pytest.raises(StoppedError):
            learned_to_act(**saved)
    breaking(None)
    assert learned_to_act(**saved) == learned_to_act(**saved) == whole
    with pytest.raises(ConfigError, match=r"other arguments: epsilon \[0\.1, 0\.1\] there and \[0\.2, 0\.2\] now"):
        learned_to_act(**saved, epsilon=0.2)
