"""Adapters of libraries that are not installed cannot be imported, and so have no examples to run."""

from importlib.util import find_spec

_ADAPTERS = {"stable_baselines3": "tddelta/adapters/sb3/*", "torchrl": "tddelta/adapters/torchrl*"}

collect_ignore_glob = [place for library, place in _ADAPTERS.items() if find_spec(library) is None]
