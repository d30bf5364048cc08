"""Cost of spreading seeds, environments or components over devices, on processor cores that pose as devices.

Devices that share two cores cannot be faster than one: the numbers are overheads, and a ratio near 1 means that nothing
is lost. On a machine with several GPUs the same script measures gains: `--devices 1 2 4 --real`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

from alternate import machine

KINDS = ("seeds", "environments", "components")
SEEDS, SHARDS = 8, 8


def measure(kind: str, count: int, seconds: float) -> dict[str, Any]:
    """In a process with so many devices: steps per second of the programs that write run directories."""
    import jax
    import jax.numpy as jnp

    from tddelta.deep import ppo, training

    assert jax.local_device_count() >= count
    changed = {"environments": {"shards": SHARDS if count else 1}, "components": {"component_trunks": bool(count)}}
    config = ppo.preset("Breakout-MinAtar", "ppo-delta", steps=10**9, **changed.get(kind, {}))
    several = SEEDS if kind == "seeds" else None
    keys = jax.random.key(0) if several is None else jax.random.split(jax.random.key(0), several)
    began = time.perf_counter()
    compiled = training.programs(config, several)
    state = compiled.init(config, keys)
    state, *_ = jax.block_until_ready(compiled.block(config, state, jnp.int32(1)))
    ready = time.perf_counter() - began
    updates, began, busy = 0, time.perf_counter(), time.process_time()
    while (taken := time.perf_counter() - began) < seconds or not updates:
        state, *_ = jax.block_until_ready(compiled.block(config, state, jnp.int32(2)))
        updates += 2
    steps, busy = updates * config.batch * (several or 1), time.process_time() - busy
    text = compiled.block.as_text()
    weights = sum(leaf.size for leaf in jax.tree.leaves(state.learned.parameters)) // (several or 1)
    return {
        "kind": kind,
        "devices": count,
        "steps_per_second": steps / taken,
        "processor_seconds_per_million_steps": busy * 1e6 / steps,
        "start_seconds": ready,
        "exchanges_in_program": {
            name: len(re.findall(rf" {name}(?:-start)?\(", text))
            for name in ("all-reduce", "all-gather", "collective-permute")
        },
        "parameters": weights,
        "gradient_steps_per_update": config.epochs * config.minibatches,
    }


def in_a_process(kind: str, count: int, seconds: float, *, real: bool) -> dict[str, Any]:
    """`measure` with so many devices and no others; 0 is one device and the ordinary program."""
    environment = dict(os.environ)
    if real:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(max(count, 1))))
    else:
        environment |= {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={max(count, 1)}",
        }
    command = [sys.executable, __file__, "--one", kind, str(count), "--seconds", str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; default: all")
    parser.add_argument("--seconds", type=float, default=10.0, help="shortest time of one measurement")
    parser.add_argument("--quick", action="store_true", help="a smoke test: half a second, one and two devices")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of devices")
    parser.add_argument("--real", action="store_true", help="GPUs instead of processor cores that pose as devices")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "DEVICES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    seconds = 0.5 if given.quick else given.seconds
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]), seconds)))
        return
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(KINDS)}")
    results = []
    for kind in given.kinds or KINDS:
        plain = [] if kind == "seeds" else [0]  # without shards, and with one trunk for all components
        counts = [1, 2] if given.quick else given.devices
        if kind == "components":  # of six
            counts = [count for count in (1, 2, 3, 6) if count <= max(counts)]
        for count in plain + counts:
            results.append(in_a_process(kind, count, seconds, real=given.real))
            if not given.json:
                one = results[-1]
                exchanges = ", ".join(
                    f"{number} {name}" for name, number in one["exchanges_in_program"].items() if number
                )
                print(
                    f"  {kind:<13} {count or 'plain':>5} devices {one['steps_per_second']:>10,.0f} steps/s, "
                    f"{one['processor_seconds_per_million_steps']:6.1f} processor s per million, "
                    f"ready after {one['start_seconds']:4.1f} s; {exchanges or 'no exchange'}",
                    file=sys.stderr,
                )
    print(json.dumps({"title": "Scaling", "machine": machine(), "seeds": SEEDS, "shards": SHARDS, "results": results}))


if __name__ == "__main__":
    main()
