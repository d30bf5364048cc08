"""Fixtures of more than one folder of tests."""

import sys

import pytest


# Sums of several threads differ in the last bits.
@pytest.fixture(autouse=True)
def _one_thread():
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in a new folder, and forget afterwards what was added to the places of modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def pretended(monkeypatch):
    """Replace training by one that takes no time."""
    deep = pytest.importorskip("tddelta.deep")
    import pretend

    monkeypatch.setitem(sys.modules, "tddelta.deep.training", pretend)
    monkeypatch.setattr(deep, "training", pretend, raising=False)
