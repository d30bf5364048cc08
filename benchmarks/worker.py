"""The child process of a speed measurement: it compiles once, then trains for so many seconds whenever it is told to.

Only the standard library: the rivals' virtual environments import this file too.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """Settings that both sides of a comparison train with."""

    environment: str
    agent: str = "ppo"
    environments: int = 64
    rollout_length: int = 128
    epochs: int = 4
    minibatches: int = 8
    learning_rate: float = 1e-3
    max_gradient_norm: float = 0.5
    value_coefficient: float = 1.0
    activation: str = "relu"
    seed: int = 0

    @property
    def shared(self) -> dict[str, Any]:
        """Settings that tddelta calls by the same names, whatever the network."""
        apart = ("environment", "agent", "activation", "seed")
        return {name: value for name, value in vars(self).items() if name not in apart}


def serve(make: Callable[[Settings], tuple[Any, Any, int]], wait: Callable[[Any], Any] = lambda state: state) -> None:
    """Answer one line of JSON for each line on standard input.

    The first line holds the settings, every later one {"seconds": S}: train for at least S seconds and report the
    environment steps and the time that they took. Anything else in a line is passed on to the function that trains.

    Args:
        make: Takes the settings; returns a function state → state that trains one block, the first state, and the
            number of environment steps in a block.
        wait: Blocks until a state is computed.
    """
    begin = time.perf_counter()
    settings = Settings(**json.loads(sys.stdin.readline()))
    block, state, steps_per_block = make(settings)
    state = block(state)
    wait(state)
    say({"ready": True, "start_seconds": time.perf_counter() - begin})
    for line in sys.stdin:
        options = json.loads(line)
        seconds = options.pop("seconds")
        blocks, begin = 0, time.perf_counter()
        while True:
            state = block(state, **options)
            wait(state)
            blocks += 1
            taken = time.perf_counter() - begin
            if taken >= seconds:
                break
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        say({"steps": blocks * steps_per_block, "seconds": taken, "peak_memory_mib": memory})


def say(answer: dict[str, Any]) -> None:
    """Write one line for the parent."""
    print(json.dumps(answer), flush=True)
