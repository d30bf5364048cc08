"""What holds of adapters where their library is missing, and of the scales that they take."""

import subprocess
import sys

import pytest

from tddelta import ConfigError, TimeScales
from tddelta.adapters.ladders import resolve


@pytest.mark.parametrize(
    ("adapter", "missing"),
    [
        ("sb3", "stable_baselines3"),
        ("sb3", "torch"),
        ("torchrl", "torchrl"),
        ("torchrl", "torch"),
    ],
)
def test_without_the_library_the_error_names_the_install_command(adapter: str, missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import tddelta, tddelta.adapters, tddelta.adapters.ladders, tddelta.runs\n"
        f"try:\n    import tddelta.adapters.{adapter}\n"
        "except ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "MissingExtra" in done.stdout and f'pip install "tddelta[{adapter}]"' in done.stdout


def test_scales_without_decays_get_those_of_lambda_and_others_keep_theirs() -> None:
    bare, own = TimeScales((0.5, 0.9)), TimeScales((0.5, 0.9), (0.1, 0.2))
    assert resolve(bare, gamma=0.9, lam=0.5).trace_decays == (0.45, 0.45)
    assert resolve(bare, gamma=0.9, lam=None) is bare
    assert resolve(own, gamma=0.9, lam=0.5) is own
    assert resolve(own.to_dict(), gamma=0.9, lam=0.5) == own
    assert resolve({"ladder": "single", "lam": 0.3}, gamma=0.9, lam=0.5) == TimeScales.single(0.9, lam=0.3)


def test_a_dictionary_with_unknown_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="no other keys"):
        resolve({"gammas": [0.9], "gama": 1}, gamma=0.9, lam=None)
