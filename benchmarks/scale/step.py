"""What one training step costs the host: counts, bytes and seconds of a net with so many parameters."""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from typing import Any

WARM = 10
HELD = "host memory held by jaxpar's lines"
SECONDS = ("trace", "lower", "XLA compiles")


def measured(leaves: int, devices: int, what: str) -> dict[str, float]:
    """Train a DistributedDataParallel of `leaves` small parameters on virtual devices, in this process.

    `what` is `run`, `memory`, or `lower`, for which nothing is compiled.
    """
    import jaxpar

    jaxpar.virtual_devices(devices)
    import jax
    import numpy as np

    from jaxpar._tools.startup.clock import Clock
    from jaxpar._tools.startup.watching import StartupWatch

    net, optimizer, loss_fn = training(leaves)
    x = np.ones((2 * devices, 3), np.float32)
    shapes = jax.ShapeDtypeStruct(x.shape, x.dtype)
    if what == "lower":
        step = jaxpar.train_step(net, optimizer(net), loss_fn)
        start = time.perf_counter()
        text = step.lower(shapes).as_text()
        return {"trace and lower": time.perf_counter() - start} | of_program(text)
    if what == "memory":
        tracemalloc.start()
        # Parameters are JAX's memory, so this is tables, names and programs' records.
        step = jaxpar.train_step(net, optimizer(net), loss_fn)
        for _ in range(3):
            step(x)
        lines = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/jaxpar/*")])
        return {HELD: sum(line.size for line in lines.statistics("filename"))}
    clock = Clock()
    with StartupWatch(clock, 1 << 30).active():
        step = jaxpar.train_step(net, optimizer(net), loss_fn)
        step(x)
    functions = clock.functions.values()
    result = {phase: clock.seconds["step 1", phase] for phase in SECONDS}
    result["functions traced"] = sum(row.traced for row in functions)
    result["programs compiled"] = sum(row.compiled for row in functions)
    step(x)
    result["Python calls of a warm step"] = calls_of(lambda: step(x))
    seconds = (seconds_of(lambda: jax.block_until_ready(step(x))) for _ in range(WARM))
    result["warm step"] = statistics.median(seconds)
    return result | of_program(step.lower(shapes).as_text())


def training(leaves: int) -> tuple[Any, Any, Any]:
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx

    import jaxpar

    class Net(nnx.Module):
        def __init__(self) -> None:
            self.scales = nnx.List([nnx.Param(np.full(3, 0.1, np.float32)) for _ in range(leaves)])

        def __call__(self, x: Any) -> Any:
            return sum(jnp.tanh(x * scale) for scale in self.scales)

    net = jaxpar.DistributedDataParallel(Net())
    return (
        net,
        lambda net: nnx.Optimizer(net, optax.sgd(0.01, momentum=0.9), wrt=nnx.Param),
        lambda net, x: (net(x) ** 2).mean(),
    )


def of_program(text: str) -> dict[str, float]:
    return {
        "characters of the lowered program": len(text),
        "collectives of the lowered program": text.count("stablehlo.all_reduce"),
    }


def calls_of(function: Any) -> int:
    """Return how many functions a call runs, Python's and C's."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def seconds_of(function: Any) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
