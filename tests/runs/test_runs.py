"""Run directories: what is written comes back, what is damaged is named, nothing is overwritten or unpickled."""

import errno
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from inspect_data import game
from tddelta.deep.config import write_preset
from tddelta.errors import CheckpointError, CheckpointWarning, ConfigError, DataError, TDDeltaError
from tddelta.inspector import Recording
from tddelta.report import page
from tddelta.runs import (
    Run,
    RunWriter,
    append_evaluation,
    config_hash,
    files,
    find_runs,
    is_being_written,
    load_runs,
    read_parameters,
    readable_runs,
    run_path,
)
from tddelta.runs.recorder import realised_returns, summary
from tddelta.timescales import TimeScales

SCALES = TimeScales.from_gammas([0.68, 0.99], lam=0.95)


def config(environment="Catch-bsuite", agent="ppo-delta", seed=0, **settings):
    named = {"environment": environment, "environment_kwargs": {}, "environment_parameters": {}}
    named |= {"agent": {"name": agent, "heads": "deltas"}, "seed": seed, "steps": 100}
    return {"format": 3, **named, "settings": {"gamma": 0.99, **settings}, "scales": SCALES.to_dict()}


PROVENANCE = {"command": ["tddelta", "train"], "versions": {"tddelta": "0.1.0"}, "machine": {"cores": 2}}


def write(out, *, environment="Catch-bsuite", agent="ppo-delta", seed=0, label=None, state="finished", **settings):
    """Write a small run directory."""
    path = run_path(out, environment, label or agent, seed)
    with RunWriter(path, config(environment, agent, seed, **settings), PROVENANCE) as writer:
        first = {"update": 1, "steps": 50, "episodes": 0, "return_mean": float("nan"), "policy_loss": 0.5}
        second = {"update": 2, "steps": 100, "episodes": 2, "return_mean": 1.0 + seed, "policy_loss": np.float32(0.25)}
        writer.metrics([first, second])
        writer.episodes([60, 100], [0.0, 1.0 + seed], [60, 40])
        writer.status(state, steps=100, updates=2, episodes=2)
    return path


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "timing.jsonl"}


# ---------------------------------------------------------------- round trips


def test_what_is_written_comes_back(tmp_path):
    path = run_path(tmp_path, "Catch-bsuite", "ppo-delta", 3)
    with RunWriter(path, config(seed=3), PROVENANCE) as writer:
        assert Run(path).status["state"] == "running" and is_being_written(path)
        writer.metrics([{"update": 1, "steps": 50, "episodes": 1, "return_mean": None, "value_loss/gamma=0.680": 2.5}])
        writer.metrics([{"update": 2, "steps": 100, "episodes": 2, "return_mean": 1, "entropy": np.float64(0.5)}])
        writer.timing({"event": "block", "steps": 50, "seconds": 2.0, "steps_per_second": 25.0})
        writer.episodes(np.array([60, 100]), [1.0, 2.0], [60, 40])
        writer.evaluation({"mode": "greedy", "returns": np.array([1.0, 2.0]), "return_mean": 1.5})
        writer.arrays("rollout", observations=np.zeros((3, 10, 10, 4), bool), gammas=[0.68, 0.99])
        writer.arrays("critic", predicted=np.ones((5, 2), np.float32), realised=np.full((5, 2), np.nan, np.float32))
        writer.parameters({"actor/weight": np.eye(3, dtype=np.float32).T}, {"note": "Δ"})
        writer.status("finished", steps=100, updates=2, episodes=2)

    assert not is_being_written(path) and not is_being_written(tmp_path)
    (run,) = load_runs(tmp_path)
    assert (run.environment, run.agent, run.seed, run.scales) == ("Catch-bsuite", "ppo-delta", 3, SCALES)
    assert run.config == config(seed=3)
    assert run.status == {"state": "finished", "steps": 100, "updates": 2, "episodes": 2, "message": None}
    assert run.metrics["steps"].tolist() == [50, 100] and run.metrics["steps"].dtype == np.int64
    np.testing.assert_array_equal(run.metrics["return_mean"], [np.nan, 1.0])
    np.testing.assert_array_equal(run.metrics["value_loss/gamma=0.680"], [2.5, np.nan])
    np.testing.assert_array_equal(run.metrics["entropy"], [np.nan, 0.5])
    assert [row["event"] for row in run.timing] == ["start", "block"]
    assert run.timing[0]["command"] == ["tddelta", "train"] and run.timing[0]["time"]
    assert run.episodes["returns"].tolist() == [1.0, 2.0]
    assert run.evaluations == [{"mode": "greedy", "returns": [1.0, 2.0], "return_mean": 1.5}]
    assert run.rollout["observations"].shape == (3, 10, 10, 4)
    assert run.critic["predicted"].dtype == np.float32 and np.isnan(run.critic["realised"]).all()
    np.testing.assert_array_equal(read_parameters(run.path)["actor/weight"], np.eye(3))
    assert not list(run.path.glob(".*"))


def test_a_run_without_optional_files_has_none(tmp_path):
    with RunWriter(tmp_path / "seed-0", config(), PROVENANCE) as writer:
        writer.status("running", steps=5)
        writer.status("interrupted", message="stopped")
        with pytest.raises(ConfigError, match="state must be one of running, finished"):
            writer.status("done")
        with pytest.raises(ConfigError, match="name must be 'rollout' or 'critic'; got 'replay'"):
            writer.arrays("replay", a=[1])
    run = Run(tmp_path / "seed-0")
    assert run.status == {"state": "interrupted", "steps": 5, "updates": 0, "episodes": 0, "message": "stopped"}
    assert run.rollout is None and run.critic is None and run.evaluations == []
    assert {name: len(column) for name, column in run.metrics.items()} == {"update": 0, "steps": 0, "episodes": 0}
    assert all(len(run.episodes[name]) == 0 for name in ("steps", "returns", "lengths"))
    with pytest.raises(CheckpointError, match=r"parameters\.safetensors is missing"):
        read_parameters(run.path)
    with pytest.raises(ValueError, match="Out of range float"):
        RunWriter(tmp_path / "seed-1", config(gamma=float("nan")), PROVENANCE)


def test_equal_runs_have_equal_bytes(tmp_path):
    paths = [tmp_path / name / "seed-0" for name in "ab"]
    for path in paths:
        with RunWriter(path, config(), PROVENANCE) as writer:
            writer.metrics([{"update": 1, "steps": 1, "episodes": 0}])
            writer.episodes([1], [2.0], [1])
            writer.arrays("critic", predicted=np.arange(6.0).reshape(3, 2))
            writer.parameters({"b": np.ones(3), "a": np.zeros((2, 2), np.uint8)}, {str(k): str(k) for k in range(9)})
            writer.status("finished", steps=1)
    assert contents(paths[0]) == contents(paths[1])


def test_reading_needs_numpy_and_the_standard_library_only(tmp_path):
    write(tmp_path)
    program = (
        "import sys; from tddelta.runs import load_runs; runs = load_runs(sys.argv[1]); runs.episodes, runs[0].critic;"
        "runs.metrics('return_mean'); runs[0].scales;"
        "print(sorted({'jax', 'torch', 'scipy', 'matplotlib', 'safetensors', 'rich', 'tyro'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tables_are_tidy_and_in_order(tmp_path):
    for environment, agent, seed in [("b", "ppo", 1), ("a", "ppo+", 0), ("b", "ppo", 0), ("a", "ppo", 0)]:
        write(tmp_path, environment=environment, agent=agent, seed=seed)
    runs = load_runs(tmp_path)
    keys = [(run.environment, run.agent, run.seed) for run in runs]
    assert keys == [("a", "ppo", 0), ("a", "ppo+", 0), ("b", "ppo", 0), ("b", "ppo", 1)]
    episodes = runs.episodes
    assert {len(column) for column in episodes.values()} == {8}
    assert episodes["seed"].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert episodes["agent"].tolist()[:4] == ["ppo", "ppo", "ppo+", "ppo+"]
    losses = runs.metrics("policy_loss")
    assert list(losses) == ["environment", "agent", "seed", "update", "steps", "policy_loss"]
    assert losses["policy_loss"].tolist() == [0.5, 0.25] * 4
    assert runs.metrics("steps")["steps"].tolist() == [50, 100] * 4
    assert [run.seed for run in runs[2:]] == [0, 1]
    with pytest.raises(ConfigError, match=r"no run logged the metric 'return': choose from .*return_mean"):
        runs.metrics("return")

    # a metric that some runs lack has rows of the others only
    with (runs[0].path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 3, "steps": 150, "episodes": 2, "value_loss/gamma=0.680": 1.5}\n')
    table = load_runs(tmp_path).metrics("value_loss/gamma=0.680")
    assert table["agent"].tolist() == ["ppo"] * 3 and table["environment"].tolist() == ["a"] * 3
    np.testing.assert_array_equal(table["value_loss/gamma=0.680"], [np.nan, np.nan, 1.5])


# ---------------------------------------------------------------- names and finding


def test_paths_are_safe_and_labels_come_back(tmp_path):
    path = run_path(tmp_path, "gym:ALE/Pong-v5", "my.agents:fast", 2)
    assert path == tmp_path / "gym-ALE-Pong-v5" / "my.agents-fast" / "seed-2"
    write(tmp_path, environment="gym:ALE/Pong-v5", agent="my.agents:fast", seed=2)
    write(tmp_path, environment="gym:ALE/Pong-v5", agent="ppo+", label="ppo+-0123abcd", seed=2)
    assert [(run.environment, run.agent) for run in load_runs(tmp_path)] == [
        ("gym:ALE/Pong-v5", "my.agents:fast"),
        ("gym:ALE/Pong-v5", "ppo+-0123abcd"),
    ]


def test_find_runs_takes_a_run_a_folder_above_or_a_file_in_it(tmp_path):
    first, second = write(tmp_path / "out", seed=0), write(tmp_path / "out", seed=1)
    (first / "checkpoints").mkdir()
    (first / "checkpoints" / "last").touch()
    assert find_runs(tmp_path) == find_runs(tmp_path / "out") == find_runs(first.parent) == [first, second]
    for inside in (first, first / "metrics.jsonl", first / "checkpoints", first / "checkpoints" / "last"):
        assert find_runs(inside) == [first]
    assert find_runs(second, tmp_path, first) == [second, first]


def test_find_runs_leaves_out_what_is_no_run(tmp_path):
    path = write(tmp_path)
    aside = path.with_name("seed-0.unfinished-1")
    write(tmp_path, seed=1).rename(aside)
    for folder in (".hidden", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text('{"model": "of another tool"}')
    assert find_runs(tmp_path) == [path]
    assert find_runs(aside) == [aside]  # unless it is asked for
    with pytest.raises(CheckpointError, match=r"other.config\.json was not written by tddelta"):
        load_runs(tmp_path / "other")

    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no run at or below .*: name a folder that holds a config\.json"):
        find_runs(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"nowhere does not exist"):
        find_runs(tmp_path / "nowhere")
    for wrong in (None, 5, ["a"]):
        for read in (Run, load_runs, find_runs):
            with pytest.raises(ConfigError, match=r"a run is named by its path; got .*: pass the path of a run dir"):
                read(wrong)


def test_the_same_seed_twice_is_refused(tmp_path):
    for name in "ab":
        write(tmp_path / name)
    with pytest.raises(ConfigError, match="both Catch-bsuite, ppo-delta, seed 0, and would count as two seeds"):
        load_runs(tmp_path)


@pytest.mark.parametrize("content", [b'{"format": 1, "envi', b"\xff\x00\x9c", b"[]", b'{"format": 99}', b""])
def test_one_bad_config_spoils_no_other_run(tmp_path, content):
    good = write(tmp_path / "runs")
    bad = write(tmp_path / "runs" / "more")
    for folder in (bad, tmp_path / "runs"):  # also above the good one
        (folder / "config.json").write_bytes(content)
    runs = readable_runs(tmp_path / "runs")
    assert [run.path for run in runs] == [good]
    foreign = content.startswith(b'{"format": 99')
    assert sum("this run was left out" in sentence for sentence in runs.left_out) == (0 if foreign else 2)
    if not foreign:
        with pytest.warns(CheckpointWarning, match=r"config\.json is damaged"):
            load_runs(tmp_path / "runs")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_runs(bad)


@pytest.mark.parametrize("change", [{"agent": "ppo"}, {"seed": "0"}, {"settings": []}, {"scales": None}, {"agent": {}}])
def test_a_config_with_entries_of_another_kind_is_no_config(tmp_path, change):
    path = write(tmp_path)
    (path / "config.json").write_text(json.dumps(config() | change))
    with pytest.raises(CheckpointError, match=r"config\.json has entries of another kind"):
        Run(path)


# ---------------------------------------------------------------- safety


def test_an_existing_run_is_never_overwritten(tmp_path):
    before = contents(write(tmp_path))
    path = run_path(tmp_path, "Catch-bsuite", "ppo-delta", 0)
    said = "exists already, and a run is never overwritten: choose another folder with out=, or another seed"
    with pytest.raises(ConfigError, match=said):
        RunWriter(path, config(), PROVENANCE)
    assert contents(path) == before
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        RunWriter(tmp_path / "file" / "seed-0", config(), PROVENANCE)


def test_a_line_cut_short_by_a_crash_is_ignored_and_then_removed(tmp_path):
    path = write(tmp_path)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 3, "steps": 15')
    assert Run(path).metrics["steps"].tolist() == [50, 100]
    (path / "evaluations.jsonl").write_text('{"mode": "greedy"}\n{"mode": "samp')
    append_evaluation(path, {"mode": "sampled"})
    assert Run(path).evaluations == [{"mode": "greedy"}, {"mode": "sampled"}]
    (path / "evaluations.jsonl").write_text('{"mode": "samp')
    append_evaluation(path, {"mode": "sampled"})
    assert Run(path).evaluations == [{"mode": "sampled"}]


def test_damage_is_named(tmp_path):
    path = write(tmp_path)
    content = (path / "episodes.npz").read_bytes()
    for damaged in (b"", content[: len(content) // 2], content[:-30], content[:60] + b"\xff" * 40 + content[100:]):
        (path / "episodes.npz").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"episodes\.npz is no archive of plain arrays, or damaged"):
            _ = Run(path).episodes
    np.save(path / "array.npy", np.zeros(3))
    (path / "array.npy").rename(path / "critic.npz")
    with pytest.raises(CheckpointError, match=r"critic\.npz"):
        _ = Run(path).critic
    for text, message in [('{"update": 1}\n{"upd\n{"update": 3}\n', 2), ("3\n", "1, not a JSON object but a int")]:
        (path / "metrics.jsonl").write_text(text)
        with pytest.raises(CheckpointError, match=rf"metrics\.jsonl is damaged in line {message}"):
            _ = Run(path).metrics
    (path / "parameters.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match=r"parameters\.safetensors is not a safetensors file, or damaged"):
        read_parameters(path)
    (path / "status.json").unlink()
    with pytest.raises(CheckpointError, match=r"status\.json is missing"):
        _ = Run(path).status
    (path / "checkpoints").mkdir()
    assert Run(path).status["state"] == "interrupted"  # what is saved can go on
    configs = {"{": "not JSON", "[]": "not a JSON object but a list", '{"format": 1}': "lacks environment"}
    for text, message in configs.items():
        (path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=rf"config\.json.*{message}"):
            load_runs(path)


def test_a_flipped_bit_in_the_parameters_is_noticed(tmp_path):
    with RunWriter(tmp_path / "seed-0", config(), PROVENANCE) as writer:
        writer.parameters({"weight": np.arange(3, dtype=np.float32)}, {"note": "kept"})
    path = tmp_path / "seed-0" / "parameters.safetensors"
    whole = path.read_bytes()
    np.testing.assert_array_equal(read_parameters(path)["weight"], [0, 1, 2])
    for place in (len(whole) - 2, whole.index(b"kept")):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"parameters\.safetensors is damaged: its checksum"):
            read_parameters(path)
    # those of before have none
    save_file({"weight": np.arange(3, dtype=np.float32)}, path, {"format": "1"})
    np.testing.assert_array_equal(read_parameters(path)["weight"], [0, 1, 2])


def test_pickles_are_refused_and_never_run(tmp_path):
    path = write(tmp_path)
    canary = tmp_path / "canary"

    class Malicious:
        def __reduce__(self):
            return (Path.touch, (canary,))

    for name in ("episodes.npz", "rollout.npz", "critic.npz", "parameters.safetensors"):
        (path / name).write_bytes(pickle.dumps(Malicious()))
    for read in (lambda run: run.episodes, lambda run: run.rollout, lambda run: read_parameters(run.path)):
        with pytest.raises(CheckpointError):
            read(Run(path))
    np.savez(path / "critic.npz", predicted=np.array([Malicious()], object))
    with pytest.raises(CheckpointError, match=r"critic\.npz"):
        _ = Run(path).critic
    assert not canary.exists()
    with (
        RunWriter(tmp_path / "new", config(), PROVENANCE) as writer,
        pytest.raises(DataError, match=r"rollout\.npz: actions must be an array of numbers; got dtype object"),
    ):
        writer.arrays("rollout", actions=np.array([None]))


@pytest.mark.parametrize("versions", [{"tddelta": "9.1.0"}, {}])
def test_a_newer_format_says_which_version_is_needed(tmp_path, versions):
    path = tmp_path / "seed-0"
    needed = rf"install {'tddelta >= 9.1.0' if versions else 'a newer tddelta'}"
    with RunWriter(path, config() | {"format": 4}, {"versions": versions}) as writer:
        writer.parameters({}, {"format": "2"})
    with pytest.raises(CheckpointError, match=rf"config\.json has format 4, and .* up to 3: {needed}"):
        load_runs(path)
    with pytest.raises(CheckpointError, match=rf"parameters\.safetensors has format 2.*{needed}"):
        read_parameters(path)


def test_all_json_is_strict(tmp_path):
    def refuse(constant):
        raise AssertionError(constant)

    path = write(tmp_path)
    append_evaluation(path, {"return_mean": float("inf"), "returns": np.array([np.nan, 1.0])})
    for file in [*path.glob("*.json"), *path.glob("*.jsonl")]:
        lines = [file.read_text()] if file.suffix == ".json" else file.read_text().splitlines()
        for line in lines:
            json.loads(line, parse_constant=refuse)


def _half(file):
    file.write(b"half of it")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.replace(path, b"all"),
        lambda path: files.replace(path, _half, durable=False),
        lambda path: Recording.read(game(3)).save(path),
        lambda path: page._write(path, b"all"),
        lambda path: write_preset(path, "Catch", "ppo", {}),
    ],
)
def test_a_full_disk_leaves_no_temporary_file(write, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(TDDeltaError, match=r"written.*file.*No space left on device|file cannot be written \(No space"):
        write(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_no_text_survive_in_json(tmp_path):
    folder = tmp_path / "caf\udce9"  # a byte that is no UTF-8
    with RunWriter(folder / "seed-0", config(), {"command": ["tddelta", str(folder)]}) as writer:
        writer.status("finished", message=str(folder))
    run = Run(folder / "seed-0")
    assert run.status["message"] == run.timing[0]["command"][1] == str(folder)
    (run.path / "timing.jsonl").read_text(encoding="utf-8")


def test_a_name_that_the_system_cannot_write_is_a_sentence(monkeypatch):
    monkeypatch.setattr("os.fsencode", lambda name: str(name).encode("ascii"))
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "ascii")
    with pytest.raises(ConfigError, match=r"ppo-γ.seed-0 cannot be the name of a file here, where names are ascii"):
        run_path("o", "Catch", "ppo-γ", 0)


@pytest.mark.parametrize(
    ("former", "scales", "digest"),
    [
        ({}, None, "54e9df0c"),
        ({"horizons": [10.0, 100.0]}, [10.0, 100.0], "fd50e628"),
        ({"components": 3, "ladder_factor": 4.0}, {"ladder": "halving", "components": 3, "factor": 4.0}, "debbb7d6"),
        ({"horizons": [1.0]}, [0.0], "76aa5032"),
        ({"longest_horizon": 50.0}, {"ladder": "halving", "longest_horizon": 50.0}, "e0593575"),
    ],
)
def test_what_format_1_said_of_the_scales_is_read_and_keeps_its_name(tmp_path, former, scales, digest):
    names = ("horizons", "components", "shortest_horizon", "longest_horizon")
    settings = {"gamma": 0.9, **dict.fromkeys(names), "ladder_factor": 2.0, **former}
    with RunWriter(tmp_path / "r", config() | {"format": 1, "settings": settings}, PROVENANCE) as writer:
        writer.status("finished")
    run = Run(tmp_path / "r")
    assert run.config["settings"] == {"gamma": 0.9, "scales": scales} and run.config["format"] == 3
    assert config_hash(run.config) == digest == config_hash(run.config | {"seed": 5})


LAMBDA = "tddelta.targets:lambda_targets"
BOOTSTRAP, DIFFERENCE = (f"tddelta.deep.agents:{form}_targets" for form in ("bootstrap", "difference"))


@pytest.mark.parametrize(
    ("folder", "agent", "targets", "name", "label", "now"),
    [
        ("ppo-delta", {"rule": "capped"}, LAMBDA, "ppo-delta-bootstrap", "ppo-delta-bootstrap", BOOTSTRAP),
        ("ppo-delta-0123abcd", {"rule": "capped"}, LAMBDA, *["ppo-delta-bootstrap"] * 2, BOOTSTRAP),
        ("ppo-delta-matched", {"rule": "matched"}, LAMBDA, *["ppo-delta-matched"] * 2, BOOTSTRAP),
        ("ppo-delta-difference-0123abcd", {"rule": "constant"}, DIFFERENCE, *["ppo-delta"] * 2, LAMBDA),
        ("ppo", {"heads": "one", "rule": "capped"}, LAMBDA, "ppo", "ppo", LAMBDA),
    ],
)
def test_agents_had_other_names_before_format_3(tmp_path, folder, agent, targets, name, label, now):
    former, _, digits = folder.partition("-0123")
    agent = {"name": former, "heads": "ladder", "basis": "deltas", **agent, "targets": targets}
    path = tmp_path / folder / "seed-0"
    with RunWriter(path, config() | {"format": 2, "agent": agent}, PROVENANCE) as writer:
        writer.status("finished")
    run = Run(path)
    assert run.config["agent"] == agent | {"name": name, "targets": now}
    assert run.agent == label + ("-0123" + digits if digits else "")


# ---------------------------------------------------------------- scores and returns


def test_returns_end_with_their_episode_and_are_unknown_where_too_much_is_missing():
    flags = {"terminated": [False, True, False, False, False], "truncated": [False, False, False, True, False]}
    found = realised_returns([1, 2, 3, 4, 5], [0.0, 0.005, 0.5], **flags)
    np.testing.assert_allclose(found[:2], np.array([[1, 1.01, 2], [2, 2, 2]]))
    np.testing.assert_array_equal(found[2:, 0], [3, 4, 5])
    np.testing.assert_allclose(found[2:, 1], [3.02, 4, 5])
    assert np.isnan(found[2:, 2]).all()


def test_streams_do_not_mix():
    rewards, ends = np.arange(8.0).reshape(4, 2), np.array([[0, 1], [1, 0], [0, 0], [1, 1]], bool)
    both = realised_returns(rewards, [0.5, 0.9], terminated=ends, truncated=np.zeros_like(ends))
    assert both.shape == (4, 2, 2)
    for place in range(2):
        flags = {"terminated": ends[:, place], "truncated": np.zeros(4, bool)}
        alone = realised_returns(rewards[:, place], [0.5, 0.9], **flags)
        np.testing.assert_allclose(both[:, place], alone, rtol=1e-12)


def test_a_summary_of_one_or_no_episode_has_no_spread():
    one = summary(np.array([3.0]), np.array([7]), mode="greedy", seed=1, unfinished=0)
    assert (one["return_mean"], one["return_standard_deviation"], one["length_mean"]) == (3.0, None, 7.0)
    none = summary(np.zeros(0), np.zeros(0, int), mode="sampled", seed=1, unfinished=2)
    assert none["return_mean"] is None and none["unfinished"] == 2 and none["returns"] == []
