"""Programs that users copy: the examples, and the Python of README and docs, each in a process of its own."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TRAINS = re.compile(
    r"\btdd\.(train|compare|critics)\(|\bppo\.train\b|\boptax\b|\blearn\(|\bCollector\(|\btrain\(tyro|\.build_algo\("
)


def run(arguments: list[str], folder: Path) -> str:
    """Standard output of a Python program that runs in a folder; warnings of our own package are errors."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def skip_without_its_library(source: str) -> None:
    for library in ("torch", "stable_baselines3", "torchrl", "rsl_rl"):
        if re.search(rf"^(import|from) {library}\b", source, re.MULTILINE):
            pytest.importorskip(library, reason=f"needs {library}, and with it torch")


def can_run(source: str) -> bool:
    """False for a program of RLlib where that is missing: `make rllib` runs it."""
    return find_spec("tree") is not None or "adapters.rllib" not in source


SHORT = ("cleanrl_style", "cleanrl_style_before", "rlax_style", "rlax_style_before")
"""Programs that test_recipes.py trains for longer."""

STEPS = ("sb3_inspect", "sb3_ppo")
"""Programs whose `main` takes the number of steps."""


def slow_if_it_trains(name: str, source: str) -> object:
    return pytest.param(name, source, id=name, marks=[pytest.mark.slow] if TRAINS.search(source) else [])


@pytest.mark.parametrize(
    ("name", "source"),
    [slow_if_it_trains(file.stem, text) for file in EXAMPLES if can_run(text := file.read_text(encoding="utf-8"))],
)
def test_example_runs(name: str, source: str, tmp_path: Path) -> None:
    skip_without_its_library(source)
    arguments = [str(ROOT / "examples" / f"{name}.py"), *(["--steps", "4096"] if name in SHORT else [])]
    printed = run(["-c", f"from examples.{name} import main; main(1_024)"] if name in STEPS else arguments, tmp_path)
    assert printed.strip(), "an example prints what it found"
    if name == "torchrl_cartpole":  # no other test trains by it
        returns = [float(number) for number in re.findall(r"return +([\d.]+) of", printed)]
        assert len(returns) >= 5 and returns[-1] > 2 * returns[0], "it learns"


def programs(page: str) -> str:
    """The Python blocks of a page, in order, as one program: later blocks go on where earlier ones stopped."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(
    ("page", "program"),
    [slow_if_it_trains(page, programs(page)) for page in PAGES if can_run(programs(page)) and programs(page)],
)
def test_programs_in_documents_run(page: str, program: str, tmp_path: Path) -> None:
    skip_without_its_library(program)
    run(["-c", program], tmp_path)
