"""Fixtures of the tests of the deep learner."""

import jax
import pytest

from deep_environments import QUICKLY


@pytest.fixture
def compiled_quickly(monkeypatch):
    """Compile the programs of runs without optimisation: that is most of what these tests do, and they are small."""
    compiled = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda lowered: compiled(lowered, QUICKLY))
