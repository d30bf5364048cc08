"""Times `lambda_targets` against copying the arrays that it must read and write."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from alternate import Comparison, arguments, report

import tddelta as tdd

T, B = 128, 1024
HORIZONS = tuple(2.0**z for z in range(1, 9))  # Z = 8


def rate_of(call: Callable[[], object]) -> Callable[[float], float]:
    """Calls per second of a function that returns when its work is done."""
    call()  # compiled, and its memory in place

    def rate(seconds: float) -> float:
        calls, begin = 0, time.perf_counter()
        while (taken := time.perf_counter() - begin) < seconds:
            call()
            calls += 1
        return calls / taken

    return rate


def main() -> None:
    """Measure and print."""
    plan, json_only, _ = arguments(main.__doc__ or "")
    scales = tdd.TimeScales.from_horizons(HORIZONS, lam=0.95)
    generator = np.random.default_rng(0)
    shape = (T, B, len(scales))
    deltas, next_deltas = (jnp.asarray(generator.normal(size=shape), jnp.float32) for _ in range(2))
    rewards = jnp.asarray(generator.normal(size=(T, B)), jnp.float32)
    terminated, truncated = (jnp.asarray(generator.random((T, B)) < 0.01) for _ in range(2))

    comparisons = []
    for form in ("bootstrap", "difference"):
        compiled = jax.jit(
            lambda *a, form=form: tdd.lambda_targets(
                a[0], a[1], a[2], terminated=a[3], truncated=a[4], scales=scales, form=form
            )
        )
        arrays = (rewards, deltas, next_deltas, terminated, truncated)
        result = compiled(*arrays).block_until_ready()

        def targets(compiled=compiled, arrays=arrays) -> None:
            compiled(*arrays).block_until_ready()

        def copies(result=result) -> None:
            jax.block_until_ready([jnp.array(array, copy=True) for array in (deltas, next_deltas, result)])

        comparison = Comparison(f"lambda_targets, {form} form", "lambda_targets", "three copies", 1 / 3, "calls/s")
        comparisons.append(comparison.measure(rate_of(targets), rate_of(copies), plan))
    report(f"Targets on {T} x {B} x {len(scales)} float32", comparisons, plan, json_only=json_only)


if __name__ == "__main__":
    main()
