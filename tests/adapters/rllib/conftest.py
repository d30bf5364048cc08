"""Common parts of RLlib's tests. `make rllib` runs them in an environment of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


# RLlib registers the environments of each algorithm under one name.
def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-.*-agent-env"))


@pytest.fixture(scope="session", autouse=True)
def _ray() -> Iterator[None]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    # For processes of Ray, which load the environments of the tests by name.
    support = str(Path(__file__).parents[2] / "support")
    os.environ["PYTHONPATH"] = os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])
    import ray

    ray.init(num_cpus=8, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()
