"""Progress of a study: read from the files of its runs, drawn on a terminal."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from studies import STUDY, end, look, run_of, states, write
from tddelta.cli import main
from tddelta.errors import CheckpointError
from tddelta.experiments import Outcome, sweeping
from tddelta.experiments.display import Board, Display, Entry, RunState, describe, summary, sweep_table, table
from tddelta.runs import RunWriter
from told import on_a_terminal

pytestmark = pytest.mark.usefixtures("elsewhere")


# ---------------------------------------------------------------- looking at it


class TestStatus:
    def test_a_run_has_the_return_that_its_training_told(self):
        planned = write()
        for plan, state in zip(planned.plans, ("finished", "running"), strict=True):
            with RunWriter(plan.path, plan.content, {}) as writer:
                writer.metrics([{"update": 1, "steps": 1000, "return_mean": -0.625}])
                writer.timing({"event": "block", "steps": 1000, "steps_per_second": 1.0, "return_mean": -0.75})
                writer.episodes([500, 1000], [-1.0, -0.5], [500, 500])
                writer.status(state, steps=1000, updates=1, episodes=2)
        found = Board(planned.plans, locks=False).look()
        assert [state.return_mean for state in found] == [-0.75, -0.75]
        assert describe(Outcome(planned.plans[0], "finished")).endswith("return -0.75")

    def test_every_state_is_told_from_the_files(self, capsys):
        planned = write(STUDY.replace("seeds = 2", "seeds = 6"))
        sweeping.remember(planned)
        counts = {"steps": 500, "updates": 1, "episodes": 3}
        for seed, state in ((1, "interrupted"), (2, "failed"), (3, "finished"), (4, "running")):
            with RunWriter(run_of(seed), planned.plans[seed].content, {}) as writer:
                writer.timing({"event": "block", "steps": 500, "steps_per_second": 100.0, "return_mean": 1.5})
                writer.timing({"event": "block", "steps": 500, "steps_per_second": 100.0, "return_mean": None})
                writer.status(state, message="not a number" if state == "failed" else None, **counts)
        with RunWriter(run_of(5), planned.plans[5].content, {}) as alive:
            alive.timing({"event": "block", "steps": 500, "steps_per_second": 100.0})
            alive.status("running", **counts)
            found = look()
            assert main(["sweep", "study.toml", "--status", "--json"]) == 0
            rows = list(map(json.loads, capsys.readouterr().out.splitlines()))
            assert main(["sweep", "study.toml", "--status"]) == 0
        assert [state.state for state in found] == [
            *("waiting", "interrupted", "failed", "finished", "cut off", "running")
        ]
        assert found[1].return_mean == 1.5 and found[1].steps_per_second == 100.0
        assert found[5].seconds_left == (found[5].entry.steps - 500) / 100
        assert rows[5] == found[5].to_dict() and rows[2]["message"] == "not a number"
        text = capsys.readouterr().out
        assert "1 of 6 runs finished, 1 running, 1 failed, 1 cut off, 1 interrupted, 1 waiting; 2,500 of" in text
        assert "ppo, seed 4: its process ended without a word" in text and "seed 2: not a number" in text

    def test_it_needs_no_training_library_once_the_study_is_remembered(self):
        sweeping.remember(write())
        program = (
            "import sys; from tddelta.cli import main; main(['sweep', 'study.toml', '--status']);"
            "print(sorted({'jax', 'gymnax'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]" and "0 of 2 runs finished, 2 waiting" in done.stdout

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"steps": "many"}, "status.json: steps must be a whole number >= 0; got 'many'"),
            ({"steps": [1]}, "steps must be a whole number >= 0; got [1]"),
            ({"steps": -1}, "steps must be a whole number >= 0; got -1"),
            ({"steps": float("nan")}, "steps must be a whole number >= 0; got nan"),
            ({"state": {}}, "state must be one of running, finished, interrupted, failed; got {}"),
            ({"message": 3}, "message must be a text or null; got 3"),
            ({"message": "\x1b[2J\x9b2J\a\x7fgone"}, "seed 0: [2J2Jgone"),
        ],
    )
    def test_a_strangers_status_is_a_sentence(self, changes, sentence, capsys):
        path = write().plans[0].path
        path.mkdir(parents=True)
        status = {"state": "failed", "steps": 5, "updates": 1, "episodes": 0, "message": None, **changes}
        (path / "status.json").write_text(json.dumps(status))
        (path / "timing.jsonl").write_text('{"steps_per_second": "fast"}\n{"steps_per_second": NaN}\n')
        (path / "metrics.jsonl").write_text('{"return_mean": 2.5}\n{"return_mean": [1]}\n3\n')
        assert main(["sweep", "study.toml", "--status"]) == 0
        text = capsys.readouterr().out
        assert sentence in text and not any(sign in text for sign in "\x1b\x9b\a\x7f")
        assert main(["sweep", "study.toml", "--status", "--json"]) == 0
        row = json.loads(capsys.readouterr().out.splitlines()[0])
        assert row["state"] == "failed" and row["steps_per_second"] is None

    def test_a_finished_run_whose_settings_are_damaged_is_to_be_trained_again(self, capsys):
        for plan in write().plans:
            end(plan, steps=1000, updates=1, episodes=2)
        (run_of(1) / "config.json").write_text("{")
        assert main(["sweep", "study.toml", "--status"]) == 0
        text = capsys.readouterr().out
        assert "1 of 2 runs finished, 1 failed;" in text
        assert "ppo, seed 1: study/Catch-bsuite/ppo/seed-1/config.json is damaged, not JSON" in text.replace("\n", "")

    @pytest.mark.parametrize("speed", [1e-320, 0, True, 10**400])
    def test_a_speed_that_is_none_leaves_no_time(self, speed):
        planned = write().plans[0]
        with RunWriter(planned.path, planned.content, {}) as writer:
            writer.timing({"steps_per_second": speed})
            assert look()[0].seconds_left is None

    def test_a_study_that_was_changed_is_planned_again(self):
        write()
        sweeping.remember(sweeping.plan(Path("study.toml"), add_seeds=1))
        write(STUDY.replace("seeds = 2", "seeds = 4"))
        assert len(states()) == 5

    @pytest.mark.parametrize("row", [{"path": "../../x/y"}, {"path": "/a/b/c"}, {"path": "a/b"}, {}, 3])
    def test_a_strangers_memory_cannot_lead_elsewhere(self, row):
        sweeping.remember(write())
        memory = json.loads(Path("study/study.json").read_text())
        memory["runs"][1] = {**memory["runs"][1], **row} if isinstance(row, dict) and row else row
        Path("study/study.json").write_text(json.dumps(memory))
        with pytest.raises(CheckpointError, match="which is no run of a study"):
            look()

    def test_memory_of_a_newer_version_or_another_program(self):
        write()
        Path("study").mkdir()
        for text, message in (
            ('{"format": 9, "added_seeds": 0, "runs": []}', "has format 9"),
            ('{"format": 1, "added_seeds": -2, "runs": []}', "is no memory"),
            ("{}", "is no memory"),
        ):
            Path("study/study.json").write_text(text)
            with pytest.raises(CheckpointError, match=message):
                look()

    def test_looking_again_at_many_runs_reads_none_that_did_not_change(self, monkeypatch):
        planned = write(STUDY.replace("seeds = 2", "seeds = 50"))
        for one in planned.plans[:30]:
            end(one)
        board = Board(planned.plans)
        assert summary(board.look()).startswith("30 of 50 runs finished, 20 waiting")
        monkeypatch.delattr("tddelta.experiments.display._read")
        assert summary(board.look()).startswith("30 of 50 runs finished, 20 waiting")


# ---------------------------------------------------------------- on a terminal


def board_of(count, state="waiting"):
    found = [Entry("Breakout-MinAtar", "ppo-delta", seed, Path("o", str(seed)), 1000) for seed in range(count)]
    return [RunState(entry, state, steps=500, steps_per_second=1234.5, return_mean=0.5) for entry in found]


def drawn(what, width=120):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(what)
    return console.file.getvalue().splitlines()


def test_a_name_is_no_markup():
    (state,) = board_of(1)
    named = replace(state, entry=replace(state.entry, environment="Maze[/x]", agent="own[bold]"))
    assert drawn(table([named], width=120))[1].split()[:2] == ["Maze[/x]", "own[bold]"]


def test_the_table_shows_what_matters_first_and_as_much_as_there_is_room_for():
    runs = [*board_of(40, "finished"), *board_of(3), *board_of(2, "failed"), *board_of(1, "running")]
    lines = drawn(sweep_table(runs, width=120, height=10))
    assert len(lines) == 9 and lines[0].split() == [
        *("environment", "agent", "seed", "state", "steps", "steps/s", "return", "left")
    ]
    shown = [
        next(state for state in ("running", "failed", "waiting", "finished") if state in row) for row in lines[1:7]
    ]
    assert shown == ["running", "failed", "failed", "waiting", "waiting", "waiting"]
    assert lines[7].startswith("… and 40 more") and lines[8].startswith("40 of 46 runs finished, 1 running, 2 failed")
    assert "500 of 1,000" in lines[1] and "1,234" in lines[1]
    assert all(len(line) <= 60 for line in drawn(table(runs, width=60), 60))
    assert len(drawn(table(runs, width=60), 60)) == 1 + len(runs)


def test_a_live_table_makes_way_for_the_lines_of_runs_that_end(capsys):
    planned = write()
    board = Board(planned.plans)
    display = Display(planned.plans, board=board, live=True, say=lambda outcome: f"over: {outcome.plan.seed}")
    display._console = Console(file=io.StringIO(), force_terminal=True, width=100, height=20)
    with display:
        display.retry(Outcome(planned.plans[0], "failed", OSError("full")))
        display.end(Outcome(planned.plans[0], "failed", OSError("full")))
        display.end(Outcome(planned.plans[1], "interrupted"))  # called off before it began: nothing to say
        display.stopping()
    out, err = capsys.readouterr()
    assert out == "over: 0\n" and err == f"{planned.plans[0].name}: tried again later: OSError: full\n"
    text = display._console.file.getvalue()
    assert "0 of 2 runs finished, 2 waiting" in text and "Ctrl-C again stops at once" in text


def test_watching_ends_when_all_runs_are_over():
    planned = write()
    sweeping.remember(planned)
    for one, state in zip(planned.plans, ("finished", "failed"), strict=True):
        end(one, state)
    shown = on_a_terminal("-m", "tddelta", "sweep", "study.toml", "--status", "--watch")
    assert "1 of 2 runs finished, 1 failed" in shown
