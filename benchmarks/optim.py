"""What an update of a torch-form optimizer costs against optax's nearest: ratios, in one run.

    python benchmarks/optim.py [--millions 25] [--rounds 15] [--only adam] [--json]

One compiled program takes gradients, state and parameters and gives new state and parameters, the old
ones donated. The parameters are those of a ResNet-50, 161 leaves, cut down to the number asked for.
Both sides are timed alternately and the ratio is that of the medians of the rounds. `flops` and
`bytes` are the compiled programs' own numbers, which do not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import optax

from jaxpar import optim

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--millions", type=float, default=25.5, help="of parameters")
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--only", default="", help="rows whose name contains this")
parser.add_argument("--json", action="store_true")


def rprop_in_time(lr: float) -> optax.GradientTransformation:
    """optax 0.2.8's Rprop returns the update of the step before; this is what it should return."""
    inner = optax.scale_by_rprop(lr)

    def update(grads, state, params=None):
        _, state = inner.update(grads, state, params)
        return jax.tree.map(jnp.negative, state.prev_updates), state

    return optax.GradientTransformation(inner.init, update)


PAIRS = {
    "sgd": (lambda: optim.sgd(), lambda: optax.sgd(1e-3)),
    "sgd, momentum": (lambda: optim.sgd(momentum=0.9), lambda: optax.sgd(1e-3, 0.9)),
    "sgd, momentum, dampening": (
        lambda: optim.sgd(momentum=0.9, dampening=0.5),
        lambda: optax.sgd(1e-3, 0.9),
    ),
    "adam": (lambda: optim.adam(), lambda: optax.adam(1e-3)),
    "adam, amsgrad": (lambda: optim.adam(amsgrad=True), lambda: optax.amsgrad(1e-3)),
    "adamw": (lambda: optim.adamw(), lambda: optax.adamw(1e-3, weight_decay=1e-2)),
    "rmsprop": (lambda: optim.rmsprop(), lambda: optax.rmsprop(1e-2, 0.99)),
    "rmsprop, centered, momentum": (
        lambda: optim.rmsprop(centered=True, momentum=0.9),
        lambda: optax.rmsprop(1e-2, 0.99, centered=True, momentum=0.9),
    ),
    "adagrad": (lambda: optim.adagrad(), lambda: optax.adagrad(1e-2)),
    "adadelta": (lambda: optim.adadelta(), lambda: optax.adadelta(1.0)),
    "adamax": (lambda: optim.adamax(), lambda: optax.adamax(2e-3)),
    "nadam": (lambda: optim.nadam(), lambda: optax.nadam(2e-3)),
    "radam": (lambda: optim.radam(), lambda: optax.radam(1e-3)),
    "rprop": (lambda: optim.rprop(), lambda: rprop_in_time(1e-2)),
    "adafactor": (lambda: optim.adafactor(), lambda: optax.adafactor(1e-2)),
    "clip_grad_norm, sgd": (
        lambda: optax.chain(optim.clip_grad_norm(1.0), optim.sgd()),
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-3)),
    ),
    # optax has no averaged SGD: a moving average of the updates is the nearest with as much state.
    "asgd": (lambda: optim.asgd(), lambda: optax.chain(optax.ema(0.9, debias=False), optax.sgd(1e-2))),
}
BAR = 1.05


def resnet50() -> list[tuple[int, ...]]:
    """The shapes of its parameters, kernels in Flax's layout."""
    shapes: list[tuple[int, ...]] = [(7, 7, 3, 64), (64,), (64,)]
    inside = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            out = 4 * width
            kernels = [(1, 1, inside, width), (3, 3, width, width), (1, 1, width, out)]
            kernels += [(1, 1, inside, out)] if block == 0 else []
            for kernel in kernels:
                shapes += [kernel, kernel[-1:], kernel[-1:]]
            inside = out
    return [*shapes, (2048, 1000), (1000,)]


def tree(millions: float) -> dict[str, jax.Array]:
    """A ResNet-50 whose channels are scaled so that it has about that many parameters."""
    scale = (millions / 25.557) ** 0.5
    keys = iter(jax.random.split(jax.random.key(0), 200))

    def scaled(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(max(1, round(n * scale)) if n > 7 else n for n in shape)

    return {
        f"{i:03}": 0.1 * jax.random.normal(next(keys), scaled(shape)) for i, shape in enumerate(resnet50())
    }


def program(tx: optax.GradientTransformation, params):
    def step(grads, state, params):
        updates, state = tx.update(grads, state, params)
        return state, optax.apply_updates(params, updates)

    state = tx.init(params)
    return jax.jit(step, donate_argnums=(1, 2)).lower(params, state, params).compile(), state


def loop(compiled, state, params, grads):
    kept = [state, jax.tree.map(jnp.copy, params)]

    def run() -> float:
        start = time.perf_counter()
        kept[:] = compiled(grads, *kept)
        jax.block_until_ready(kept)
        return time.perf_counter() - start

    return run


def measure(pair, params, grads, rounds):
    compiled, loops = [], []
    for make in pair:
        executable, state = program(make(), params)
        compiled.append(executable)
        loops.append(loop(executable, state, params, grads))
    for run in loops:
        run(), run()
    times = [(loops[0](), loops[1]()) for _ in range(rounds)]
    ours, theirs = (statistics.median(side) for side in zip(*times, strict=True))
    cost = [executable.cost_analysis() for executable in compiled]
    return {
        "ours_ms": 1e3 * ours,
        "optax_ms": 1e3 * theirs,
        "ratio": ours / theirs,
        "bytes_ratio": cost[0]["bytes accessed"] / cost[1]["bytes accessed"],
        "flops_ratio": cost[0]["flops"] / cost[1]["flops"],
        "bar": BAR,
    }


def main() -> None:
    options = parser.parse_args()
    params = tree(options.millions)
    grads = jax.tree.map(lambda p: 0.01 * p + 1e-3, params)
    rows = {
        name: measure(pair, params, grads, options.rounds)
        for name, pair in PAIRS.items()
        if options.only in name
    }
    count = sum(p.size for p in params.values())
    if options.json:
        print(json.dumps({"parameters": count, "platform": jax.default_backend(), "rows": rows}, indent=1))
        return
    print(f"{count:,} parameters in {len(params)} leaves, {jax.default_backend()}, jax {jax.__version__}")
    for name, row in rows.items():
        print(
            f"{name:28} {row['ours_ms']:8.1f} ms  optax {row['optax_ms']:8.1f} ms  ratio {row['ratio']:.3f}  "
            f"bytes {row['bytes_ratio']:.3f}  flops {row['flops_ratio']:.3f}"
        )


main()
