"""What a training step of a port takes, beside that of the same model written in Flax by hand.

    python benchmarks/ports/step.py [--rounds 15] [--rows 8] [--pixels 64] [--depths 3 4 6 3] [--width 64]

The port is that of our ResNet-50, as `run.py` has written it (and is asked to, if it has not), with torch's
axes; by hand it has Flax's. Same sizes, float32, SGD. Both are compiled once and timed in turn; the ratio is
that of the medians. The exit status is 1 if it is above the bar of 1.05.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.parity.architectures import resnet
from benchmarks.ports import run
from jaxpar.parity._port.proof import imported

NAME, RATE, BAR = "ours/ResNet-50", 1e-3, 1.05


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 4, 6, 3])
    parser.add_argument("--width", type=int, default=64)
    return parser.parse_args()


def main() -> int:
    chosen = options()
    sizes = chosen.depths, chosen.width, 1000
    images = np.random.RandomState(0).randn(chosen.rows, 3, chosen.pixels, chosen.pixels).astype(np.float32)
    port = ported()
    steps = {
        "by hand": step(
            resnet.FlaxResNet(resnet.FlaxBottleneck, *sizes, nnx.Rngs(0)), images.transpose(0, 2, 3, 1)
        ),
        "ported": step(port.ResNet(port.Bottleneck, *sizes, rngs=nnx.Rngs(0)), images),
    }
    taken = timed(steps, chosen.rounds)
    for name, seconds in taken.items():
        print(f"{name:8} {1e3 * statistics.median(seconds):9.2f} ms")
    ratio = statistics.median(taken["ported"]) / statistics.median(taken["by hand"])
    print(f"ratio    {ratio:9.3f}  (bar {BAR})")
    return int(ratio > BAR)


def ported() -> Any:
    """The written file."""
    path = run.kept(NAME).with_suffix(".py")
    if not path.exists():
        print(f"{NAME}: {run.asked(NAME, run.LIMIT)}", file=sys.stderr)
    return imported(path)


def step(net: nnx.Module, images: np.ndarray) -> Callable[[], None]:
    """One step of training, compiled; each goes on from the last."""
    definition, parameters, rest = nnx.split(net, nnx.Param, ...)
    x = jnp.asarray(images)

    @jax.jit
    def compiled(parameters: Any, rest: Any, x: jax.Array) -> Any:
        def loss(parameters: Any) -> Any:
            net = nnx.merge(definition, parameters, rest, copy=True)
            return (net(x) ** 2).mean(), nnx.state(net, nnx.Not(nnx.Param))

        (_, after), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        return jax.tree.map(lambda p, g: p - RATE * g, parameters, gradients), after

    state = [compiled(parameters, rest, x)]

    def once() -> None:
        state[0] = jax.block_until_ready(compiled(*state[0], x))

    return once


def timed(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds, by turns, with the order turned around each time."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name in list(steps)[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            steps[name]()
            if number:  # the first round warms up
                taken[name].append(time.perf_counter() - started)
    return taken


if __name__ == "__main__":
    sys.exit(main())
