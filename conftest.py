"""Options and hooks for the whole test run."""

import gc
import itertools
import sys
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest

# The RL Zoo asks for older versions of other packages than this project's: `make zoo`.
collect_ignore = ["tests/support"]
collect_ignore += [] if find_spec("rl_zoo3") else ["tests/adapters/sb3/test_zoo.py"]
# RLlib needs another Gymnasium: `make rllib`. Ray alone brings its modules, but not what they import, such as this.
collect_ignore += (
    [] if find_spec("tree") and find_spec("ray") else ["tests/adapters/rllib", "src/tddelta/adapters/rllib"]
)

# Adapters of libraries that are not installed cannot be imported, and so have no examples to run.
_ADAPTERS = {
    "rsl_rl": "src/tddelta/adapters/rsl_rl/*",
    "stable_baselines3": "src/tddelta/adapters/sb3/*",
    "torchrl": "src/tddelta/adapters/torchrl*",
}
collect_ignore_glob = [place for library, place in _ADAPTERS.items() if find_spec(library) is None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-unexpected-skips",
        action="store_true",
        help="a skipped test fails, unless it needs PyTorch or Chromium and they are not installed",
    )


@pytest.fixture(autouse=True)
def _warnings_of_ladders_come_again() -> None:
    # In a process the warning of a ladder comes once; every test is to see it.
    if "tddelta.deep.config" in sys.modules:
        sys.modules["tddelta.deep.config"]._made.cache_clear()


# pytest-xdist names a width to its workers; tables are as wide as their columns where there is no terminal.
@pytest.fixture(autouse=True)
def _no_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


_MAPPINGS, _TESTS = Path("/proc/self/maps"), itertools.count(1)


# JAX keeps what it compiled, and each program takes memory mappings, of which a process may have 65,530: one that runs
# a good part of the tests ends in a segmentation fault without this. (Counting is slow: not after every test.)
@pytest.fixture(autouse=True)
def _compiled_programs_are_given_back() -> Generator[None]:
    yield
    if "jax" not in sys.modules or next(_TESTS) % 10 or not _MAPPINGS.exists():
        return
    if _MAPPINGS.read_bytes().count(b"\n") > 30_000:
        if "tddelta.deep.training" in sys.modules:
            sys.modules["tddelta.deep.training"]._programs.clear()
        sys.modules["jax"].clear_caches()
        gc.collect()


def _refuse_skip(config: pytest.Config, report: Any) -> None:
    if not report.skipped or hasattr(report, "wasxfail") or not config.getoption("--no-unexpected-skips"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if "torch" in reason and find_spec("torch") is None:
        return
    if "Chromium" in reason and not any(map(which, ("chromium", "chromium-browser", "google-chrome"))):  # not Python's
        return
    report.outcome = "failed"
    report.longrepr = f"unexpected skip ({reason}): install what the test needs, or remove the skip"


# In the reports themselves, not in a summary: under pytest-xdist a worker does not send skipped modules on.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(collector.config, report)
    return report
