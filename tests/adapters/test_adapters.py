"""Adapters where their library is missing."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("adapter", "missing"),
    [
        ("sb3", "stable_baselines3"),
        ("sb3", "torch"),
        ("torchrl", "torchrl"),
        ("torchrl", "torch"),
        ("rsl_rl", "rsl_rl"),
        ("rsl_rl", "torch"),
        ("rllib", "ray"),
        ("rllib", "torch"),
    ],
)
def test_without_the_library_the_error_names_the_install_command(adapter: str, missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import tddelta, tddelta.adapters, tddelta.runs\n"
        f"try:\n    import tddelta.adapters.{adapter}\n"
        "except ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "MissingExtra" in done.stdout and f'pip install "tddelta[{adapter.replace("_", "-")}]"' in done.stdout
