"""Checkpoints on disk: whole or passed over, never executed; one writer; sentences where nothing can be written."""

import errno
import json
import os
import pickle
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import told
from run_directories import CONFIG, arrays, begin, train
from tddelta.errors import CheckpointError, CheckpointWarning, ConfigError, DataError, StorageError
from tddelta.runs import Run, RunWriter, checkpoints, files, is_being_written, set_aside


def two(path):
    """Checkpoints 1 and 2 of a folder."""
    path.mkdir(exist_ok=True)
    for number in (1, 2):
        checkpoints.save(path, number, arrays(number), {"updates": number})
    return path / "checkpoints" / "0000000001", path / "checkpoints" / "0000000002"


# ---------------------------------------------------------------- saving and loading


def test_the_newest_comes_back_and_two_are_kept(tmp_path):
    assert checkpoints.latest(tmp_path) is None
    for number in (7, 30, 200):
        checkpoints.save(tmp_path, number, arrays(number), {"updates": number, "note": "é"})
    found = checkpoints.latest(tmp_path)
    assert found.path.name == "0000000200" and found.count("updates") == 200 and found.record["note"] == "é"
    for name, array in arrays(200).items():
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name].dtype == array.dtype
    older, newest = (tmp_path / "checkpoints" / number for number in ("0000000030", "0000000200"))
    held = {path / name: (path / name).read_bytes() for path in (older, newest)
            for name in ("checkpoint.json", "state.safetensors")}  # fmt: skip
    assert sorted((tmp_path / "checkpoints").rglob("*")) == sorted([older, newest, *held])
    checkpoints.save(tmp_path, 200, arrays(200), {"updates": 200, "note": "é"})  # equal states have equal bytes
    assert held == {path: path.read_bytes() for path in held}
    checkpoints.discard(tmp_path, newer_than=30)
    assert checkpoints.latest(tmp_path).count("updates") == 30
    checkpoints.discard(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match=r"checkpoint\.json must count steps; got None"):
        found.count("steps")
    with pytest.raises(DataError, match="a checkpoint holds numbers only; got object in 'a'"):
        checkpoints.save(tmp_path, 1, {"a": np.array([None])}, {})


@pytest.mark.parametrize("name", ["state.safetensors", "checkpoint.json"])
def test_every_damage_is_noticed_and_the_one_before_is_taken(name, tmp_path):
    # Field case B51.
    older, newest = two(tmp_path / "run")
    content = (newest / name).read_bytes()
    damages = [b"", content[: len(content) // 2], content[:-3], content + b" \n}", b"\0" * len(content)]
    for place in range(0, len(content), 13):
        damages.append(content[:place] + bytes([content[place] ^ 0x11]) + content[place + 1 :])
    for damaged in damages:
        (newest / name).write_bytes(damaged)
        with pytest.warns(CheckpointWarning, match=rf"0000000002.{name} .*; this checkpoint is passed over"):
            assert checkpoints.latest(tmp_path / "run").count("updates") == 1
    (newest / name).unlink()
    with pytest.warns(CheckpointWarning, match=f"{name} cannot be read .No such file"):
        assert checkpoints.latest(tmp_path / "run").count("updates") == 1
    (older / name).write_bytes(b"")
    with pytest.warns(CheckpointWarning) as warned:
        assert checkpoints.latest(tmp_path / "run") is None
    assert len(warned) == 2
    (newest / name).write_bytes(content)
    assert checkpoints.latest(tmp_path / "run").count("updates") == 2


def test_a_newer_format_says_which_version_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "FORMAT", 2)
    monkeypatch.setattr(checkpoints, "__version__", "9.1.0")
    two(tmp_path / "run")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"has format 2, and .* up to format 1: install tddelta >= 9\.1\.0"):
        checkpoints.latest(tmp_path / "run")


def test_what_would_be_executed_is_refused(tmp_path):
    # Field case B52. The checksums are right: whoever makes such a file can make those, too.
    canary = tmp_path / "canary"

    class Malicious:
        def __reduce__(self):
            return (Path.touch, (canary,))

    older, newest = two(tmp_path / "run")
    record = json.loads((newest / "checkpoint.json").read_text())
    archive = tmp_path / "archive.npz"
    np.savez(archive, table=np.array([Malicious()], object))
    for content in (pickle.dumps(Malicious()), archive.read_bytes(), b"\xff" * 4096):
        (newest / "state.safetensors").write_bytes(content)
        forged = record | {"bytes": len(content), "sha256": checkpoints.hashlib.sha256(content).hexdigest()}
        forged["checksum"] = checkpoints._checksum(forged)
        (newest / "checkpoint.json").write_text(json.dumps(forged))
        with pytest.warns(CheckpointWarning, match="holds no arrays in the form of safetensors"):
            assert checkpoints.latest(tmp_path / "run").path == older
    (newest / "checkpoint.json").write_bytes(pickle.dumps(Malicious()))
    with pytest.warns(CheckpointWarning, match=r"checkpoint\.json is damaged, not JSON"):
        assert checkpoints.latest(tmp_path / "run").path == older
    # The episodes of a run directory are an archive, too.
    begin(tmp_path / "seed-0", 2).close()
    np.savez(tmp_path / "seed-0" / "episodes.npz", steps=np.array([Malicious(), 1], object))
    with pytest.warns(CheckpointWarning, match=r"episodes\.npz is no archive of plain arrays"):
        RunWriter(tmp_path / "seed-0", CONFIG, {}, resume=True).close()
    assert not canary.exists()


# ---------------------------------------------------------------- run directories


def test_a_writer_goes_on_where_the_checkpoint_is(tmp_path):
    path = tmp_path / "seed-0"
    with begin(path, 3) as writer:
        saved = (path / "metrics.jsonl").read_bytes()
        train(writer, 3, 5)
        (path / "checkpoints" / "0000000005" / "state.safetensors").write_bytes(b"")
        (path / ".status.json.tmp").touch()
        writer.fault({"fault": "loss"})
    with pytest.warns(CheckpointWarning), RunWriter(path, CONFIG, {"command": ["again"]}, resume=True) as writer:
        assert writer.restored.count("updates") == 3 and (path / "metrics.jsonl").read_bytes() == saved
        assert writer.episodes_before["steps"].tolist() == [10, 20, 30]
        assert Run(path).episodes["steps"].tolist() == [10, 20, 30]
        status = {"state": "running", "steps": 30, "updates": 3, "episodes": 3, "message": None}
        assert Run(path).status == status
        # The damaged one is gone: it would count as the newest for ever.
        assert [found.name for found in (path / "checkpoints").iterdir()] == ["0000000003"]
        assert not (path / "fault.json").exists() and not list(path.glob(".*"))
        train(writer, 3, 4)
        writer.status("finished")
    assert not (path / "checkpoints").exists()
    assert [row["event"] for row in Run(path).timing] == ["start", "resume"]


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "timing.jsonl", ".status.json.tmp", "checkpoints", "tensorboard/events.out.tfevents.1.0"]
)
def test_a_strangers_links_lead_to_no_file_of_ones_own(name, tmp_path):
    path, mine = tmp_path / "seed-0", tmp_path / "mine"
    begin(path, 0).close()
    (mine / ".hidden").mkdir(parents=True)
    (mine / "file").write_text("precious")
    place = path / name
    if name == "checkpoints":
        place.rename(mine / "0000000009")
        (mine / "0000000009" / "0000000000").rename(mine / "0000000000")
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(mine if name == "checkpoints" else mine / "file")
    with pytest.raises(ConfigError, match=r"is a symbolic link, and going on would write to what it leads to"):
        RunWriter(path, CONFIG, {}, resume=True)
    assert (mine / "file").read_text() == "precious" and (mine / ".hidden").exists()


def test_rows_and_whole_files_are_not_written_through_a_link(tmp_path):
    with begin(tmp_path / "seed-0", 1) as writer:
        mine = tmp_path / "mine"
        mine.write_text("precious")
        for name in ("evaluations.jsonl", ".fault.json.tmp"):
            (writer.path / name).symlink_to(mine)
        for write in (lambda: writer.evaluation({"steps": 1}), lambda: writer.fault({})):
            with pytest.raises(StorageError, match="remove the symbolic link in its place"):
                write()
    assert mine.read_text() == "precious"


def test_an_evaluation_of_later_parameters_makes_no_checkpoint_useless(tmp_path):
    # `tddelta evaluate` of parameters from before a break, while the run has not come as far again.
    with begin(tmp_path / "seed-0", 1) as writer:
        writer.evaluation({"steps": 1000})
        train(writer, 1, 2)
    with RunWriter(tmp_path / "seed-0", CONFIG, {}, resume=True) as writer:
        assert writer.restored.count("updates") == 2


def test_a_checkpoint_without_its_rows_is_passed_over(tmp_path):
    def damaged(name, change):
        path = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        with begin(path, 1) as writer:
            writer.evaluation({"steps": 10})
            train(writer, 1, 3)
        content = (path / name).read_bytes()
        (path / name).write_bytes(change(content))
        with pytest.warns(CheckpointWarning, match=rf"{name} "):
            writer = RunWriter(path, CONFIG, {}, resume=True)
        writer.close()
        return 0 if writer.restored is None else writer.restored.count("updates")

    assert damaged("metrics.jsonl", lambda text: text[:-4]) == 1
    assert damaged("metrics.jsonl", lambda text: b"{}\n" + text) == 0
    assert damaged("evaluations.jsonl", lambda text: b"") == 1
    assert damaged("episodes.npz", lambda text: text[:-40]) == 0


def test_without_a_checkpoint_a_directory_makes_room(tmp_path):
    path = tmp_path / "seed-0"
    RunWriter(path, CONFIG, {}).close()
    for number in (1, 2):
        with RunWriter(path, CONFIG, {}, resume=True) as writer:
            assert writer.restored is None and writer.episodes_before is None
        assert (tmp_path / f"seed-0.unfinished-{number}" / "config.json").exists()
    assert set_aside(tmp_path / "nowhere") is None


def test_of_several_writers_at_once_all_but_one_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_PATIENCE", 0.05)
    path, refused = tmp_path / "seed-0", threading.Semaphore(0)
    begin(path, 2).close()

    def race(_):
        try:
            with RunWriter(path, CONFIG, {}, resume=True):
                return all(refused.acquire(timeout=60) for _ in range(3))
        except ConfigError as error:
            refused.release()
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(race, range(4)))
    outcomes.remove(True)
    assert outcomes == [f"{path} is being written by another process: wait for it, or {ADVICE}"] * 3


ADVICE = "choose another folder with out="
HOLDS = """
import sys
from run_directories import begin
writer = begin(sys.argv[1], 2)
print("go", flush=True)
sys.stdin.read()
"""


def start(program, path):
    return told.start("-c", program, path, stdin=subprocess.PIPE)


def test_a_lock_ends_with_its_process(tmp_path):
    path = tmp_path / "seed-0"
    with start(HOLDS, path) as process:
        assert process.stdout.readline() == "go\n" and is_being_written(path)
        with pytest.raises(ConfigError, match="is being written by another process"):
            RunWriter(path, CONFIG, {}, resume=True)
        process.kill()
    with RunWriter(path, CONFIG, {}, resume=True) as writer:
        assert writer.restored.count("updates") == 2


WRITES = """
import sys
from run_directories import CONFIG, train
from tddelta.runs import RunWriter
writer = RunWriter(sys.argv[1], CONFIG, {}, resume=True)
done = 0 if writer.restored is None else writer.restored.count("updates")
while True:
    print(done, flush=True)
    train(writer, done, done + 1)
    done += 1
"""


def test_kill_9_while_writing_loses_nothing(tmp_path):
    path, last = tmp_path / "seed-0", 0
    for updates in (2, 7, 4, 12):
        with start(WRITES, path) as process:
            done = [int(process.stdout.readline()) for _ in range(updates)]
            process.send_signal(signal.SIGKILL)
        assert done[0] == last
        last = checkpoints.latest(path).count("updates")  # a warning would be an error
        assert last >= done[-1]
    with RunWriter(path, CONFIG, {}, resume=True):
        run = Run(path)
        assert run.metrics["update"].tolist() == list(range(1, last + 1))
        assert run.episodes["steps"].tolist() == list(range(10, 10 * last + 1, 10))
    assert not list(tmp_path.glob("*unfinished*"))


# ---------------------------------------------------------------- what cannot be written


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, r"\(No space left on device\): free some space there, then go on"),
        (errno.EROFS, r"\(Read-only file system\): make its folder writable"),
        (errno.ESTALE, r"\(Stale file handle\): check that its folder still exists"),
    ],
)
@pytest.mark.parametrize("call", ["fsync", "mkdir", "rename"])
def test_a_failed_save_leaves_the_one_before(call, number, advice, tmp_path, monkeypatch):
    path = tmp_path / "seed-0"
    with begin(path, 2) as writer:

        def fail(*arguments, **options):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(StorageError, match=advice):
                writer.checkpoint(arrays(3), steps=20, updates=2, episodes=2)
        assert checkpoints.latest(path).count("updates") == 2
        assert not list((path / "checkpoints").glob(".*"))
        train(writer, 2, 3)
    assert checkpoints.latest(path).count("updates") == 3


def test_a_folder_that_vanishes_is_a_sentence(tmp_path):
    path = tmp_path / "seed-0"
    with begin(path, 1) as writer:
        path.rename(tmp_path / "gone")
        for write in (lambda: train(writer, 1, 2), lambda: writer.status("running"), lambda: writer.timing({})):
            with pytest.raises(StorageError, match=r"seed-0.* cannot be written \(No such file or directory\): check"):
                write()
    assert checkpoints.latest(tmp_path / "gone").count("updates") == 1


FULL = """
import resource, sys, tempfile
import numpy as np
from run_directories import CONFIG, arrays
from tddelta.errors import StorageError
from tddelta.runs import RunWriter
writer = RunWriter(sys.argv[1], CONFIG, {})
writer.checkpoint(arrays(0), steps=0, updates=0, episodes=0)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # as full as a disk can be made without a disk
try:
    writer.checkpoint({"a": np.zeros(10**6)}, steps=0, updates=0, episodes=0)
except StorageError as error:
    print(error)
"""


def test_a_disk_that_is_really_full(tmp_path):
    path = tmp_path / "seed-0"
    with start(FULL, path) as process:
        said = process.stdout.read()
    assert "checkpoints/0000000000 cannot be written (File too large): free some space there" in said
    np.testing.assert_array_equal(checkpoints.latest(path).arrays["key"], [1, 0])
