"""Several machines on one folder: here several executors, with the locks of real run directories."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tddelta.deep.config import Config
from tddelta.errors import ConfigError
from tddelta.experiments.plan import RunPlan
from tddelta.experiments.running import Outcome, Shared, work_through
from tddelta.runs import RunWriter, load_runs

CONTENT = {
    "format": 1, "environment": "E", "agent": {"name": "a"}, "seed": 0, "settings": {}, "scales": {},
}  # fmt: skip


def plan(out: Path, seed: int) -> RunPlan:
    return RunPlan("E", "a", seed, out / "E" / "a" / f"seed-{seed}", Config(), CONTENT)


class Watcher:
    def __init__(self) -> None:
        self.ended: list[tuple[int, str, bool]] = []

    def begin(self, plan: Any) -> None: ...

    def progress(self, plan: Any, progress: Any) -> None: ...

    def end(self, outcome: Outcome) -> None:
        self.ended.append((outcome.plan.seed, outcome.state, outcome.skipped))

    def stopping(self) -> None: ...

    def tick(self) -> None: ...


class OneAtATime:
    """Finishes a run as soon as it is asked for news; `before` is called just before it opens one."""

    def __init__(self, before: Any = None) -> None:
        self.waiting: list[Any] = []
        self.trained: list[int] = []
        self.before = before or (lambda plan: None)

    def __enter__(self) -> "OneAtATime":
        return self

    def __exit__(self, *_: object) -> None: ...

    def take(self, waiting: Any) -> list[Any]:
        taken = [] if self.waiting else [waiting[0]]
        self.waiting += taken
        return taken

    def news(self, seconds: float | None) -> list[Outcome]:
        if not self.waiting:
            return []
        run = self.waiting.pop()
        self.before(run)
        try:
            with RunWriter(run.path, CONTENT, {}, resume=True) as writer:
                writer.status("finished")
        except ConfigError as error:
            return [Outcome(run, "failed", error)]
        self.trained.append(run.seed)
        return [Outcome(run, "finished")]

    def wake(self) -> None: ...

    def stop(self) -> None: ...


def work(plans: list[Any], inner: OneAtATime, **options: Any) -> Watcher:
    watcher = Watcher()
    work_through(plans, Shared(inner, seconds=0.0), watcher, every=0.001, **options)
    return watcher


def test_what_another_machine_has_finished_is_told_and_not_trained(tmp_path: Path) -> None:
    plans = [plan(tmp_path, seed) for seed in range(3)]
    with RunWriter(plans[1].path, CONTENT, {}) as writer:
        writer.status("finished")
    inner = OneAtATime()
    watcher = work(plans, inner)
    assert inner.trained == [0, 2]
    assert sorted(watcher.ended) == [(0, "finished", False), (1, "finished", True), (2, "finished", False)]


def test_what_another_machine_has_begun_comes_last_and_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = [plan(tmp_path, seed) for seed in range(3)]
    other = RunWriter(plans[0].path, CONTENT, {})
    looks = []

    def finish_elsewhere(seconds: float | None) -> list[Outcome]:
        looks.append(seconds)
        if len(inner.trained) == 2 and len(looks) > 6:
            other.status("finished")
            other.close()
        return plain(seconds)

    inner = OneAtATime()
    plain, inner.news = inner.news, finish_elsewhere  # type: ignore[method-assign]
    watcher = work(plans, inner)
    assert inner.trained == [1, 2]
    assert watcher.ended[-1] == (0, "finished", True)
    assert "1 runs are in progress elsewhere: waiting for them" in capsys.readouterr().err


def test_a_run_whose_machine_was_lost_is_taken_over(tmp_path: Path) -> None:
    plans = [plan(tmp_path, 0)]
    RunWriter(plans[0].path, CONTENT, {}).close()  # its lock went with its process
    inner = OneAtATime()
    assert work(plans, inner).ended == [(0, "finished", False)]


def test_a_run_that_another_machine_took_a_moment_before_is_no_failure(tmp_path: Path) -> None:
    plans = [plan(tmp_path, seed) for seed in range(2)]
    other: list[RunWriter] = []

    def snatch(run: Any) -> None:
        if run.seed == 0 and not other:
            other.append(RunWriter(run.path, CONTENT, {}))
        elif run.seed == 1:
            other[0].status("finished")
            other[0].close()

    inner = OneAtATime(snatch)
    watcher = work(plans, inner)
    assert inner.trained == [1]
    assert sorted(watcher.ended) == [(0, "finished", True), (1, "finished", False)]


def test_a_failure_of_ones_own_stays_one(tmp_path: Path) -> None:
    (tmp_path / "E").mkdir()
    (tmp_path / "E" / "a").write_text("in the way")
    watcher = work([plan(tmp_path, 0)], OneAtATime())
    assert watcher.ended == [(0, "failed", False)]


PROGRAM = """
import sys
import pretend
pretend.install()
from tddelta.experiments.display import Display
from tddelta.experiments.running import execute
from tddelta.experiments.plan import divide, plan_runs

plans = plan_runs("CartPole-v1", "ppo", seeds=8, steps=20_000, out=sys.argv[1])
todo, finished = divide(plans, resume=True, shared=True)
print("ready", flush=True)
sys.stdin.readline()
with Display(todo, finished, live=False) as display:
    outcomes, _ = execute(todo, display, shared=True, workers=1)
print(sum(not outcome.skipped for outcome in outcomes), [outcome.state for outcome in outcomes].count("finished"))
"""


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_divide_the_runs_of_a_folder_between_them(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    with ExitStack() as stack:
        both = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, str(tmp_path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            for _ in range(2)
        ]
        for one in both:
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
        for one in both:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        answers = [one.communicate()[0].split() for one in both]
    assert [one.returncode for one in both] == [0, 0]
    trained = [int(answer[0]) for answer in answers]
    assert sum(trained) == 8 and min(trained) > 0
    assert [answer[1] for answer in answers] == ["8", "8"]
    runs = load_runs(tmp_path)
    assert {run.seed: run.status["state"] for run in runs} == dict.fromkeys(range(8), "finished")
    for run in runs:
        assert [row["event"] for row in run.timing if row["event"] in ("start", "resume")] == ["start"]
    assert sorted(path.name for path in runs[0].path.parent.iterdir()) == [f"seed-{seed}" for seed in range(8)]
