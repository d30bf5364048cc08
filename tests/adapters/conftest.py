"""Settings of all tests of adapters."""

import sys

import pytest


# Sums of several threads differ in the last bits.
@pytest.fixture(autouse=True)
def _one_thread() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
