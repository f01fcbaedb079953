"""What DataParallel costs: ratios against the same step written by hand, in one run.

    python benchmarks/data_parallel.py [--devices 4] [--json]

Each pair is timed alternately, many short rounds of both, and the ratio is that of the medians of
the rounds, so that a busy machine slows both sides alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jaxpar

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument(
    "--devices", type=int, default=4, help="virtual CPU devices, where there is no accelerator"
)
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
jaxpar.virtual_devices(options.devices)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

N = options.devices
PLACEMENT = jaxpar.Placement(tuple(jaxpar.devices()[:N]), 0, jaxpar.devices()[0])


class CNN(nnx.Module):
    def __init__(self, rngs):
        self.c1, self.b1 = nnx.Conv(3, 32, (3, 3), rngs=rngs), jaxpar.nn.BatchNorm(32)
        self.c2, self.b2 = nnx.Conv(32, 64, (3, 3), strides=2, rngs=rngs), jaxpar.nn.BatchNorm(64)
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.b1(self.c1(x)))
        x = nnx.relu(self.b2(self.c2(x)))
        return self.head(x.mean((1, 2)))


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(64, 64, rngs=rngs) for _ in range(3)])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class Deep(nnx.Module):
    """300 variables in 100 small layers, so that looking after them is what costs."""

    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(100)])
        self.norms = nnx.List([nnx.RMSNorm(8, rngs=rngs) for _ in range(100)])

    def __call__(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x))
        return x


def squared(y, t):
    return ((y - t) ** 2).mean()


def wrapped_step(model, tx, backend="shard_map"):
    """The step a user writes: split once, jax.jit, DataParallel inside."""
    net = jaxpar.DataParallel(model, backend=backend)
    graphdef, params, rest = nnx.split(net, nnx.Param, ...)

    @jax.jit
    def loss_of(params, rest, x, t):
        net = nnx.merge(graphdef, params, rest, copy=True)
        y = net(x)
        return squared(y, t), nnx.state(net, nnx.Not(nnx.Param))

    def step(params, rest, opt, x, t):
        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, rest, x, t)
        updates, opt = tx.update(gradients, opt)
        return optax.apply_updates(params, updates), rest, opt, loss

    return jax.jit(step, donate_argnums=(0, 1, 2)), params, rest


def hand_step(model, tx):
    """The same by hand: shard_map over the loss, gradients summed, replica 0's statistics."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def per_device(params, rest, opt, x, t):
        def loss_of(params):
            net = nnx.merge(graphdef, params, rest, copy=True)
            return squared(net(x), t) / N, nnx.state(net, nnx.Not(nnx.Param))

        (loss, new), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        first = jax.lax.axis_index("d") == 0
        new = jax.tree.map(lambda a: jnp.where(first, a, jnp.zeros_like(a)), new)
        loss, gradients, new = jax.lax.psum((loss, gradients, new), "d")
        updates, opt = tx.update(gradients, opt)
        return optax.apply_updates(params, updates), new, opt, loss

    mesh = jax.make_mesh((N,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(
        per_device, mesh=mesh, in_specs=(P(), P(), P(), P("d"), P("d")), out_specs=P(), check_vma=False
    )
    return jax.jit(mapped, donate_argnums=(0, 1, 2)), params, rest


def loop(step, params, rest, tx, x, t):
    """A function that runs n steps, waits, and returns seconds for each."""
    place = lambda tree: jax.device_put(jax.tree.map(jnp.copy, tree), PLACEMENT.replicated)  # noqa: E731
    state = [place(params), place(rest), place(tx.init(params))]

    def run(n):
        start = time.perf_counter()
        for _ in range(n):
            *state[:], loss = step(*state, x, t)
        jax.block_until_ready(loss)
        return (time.perf_counter() - start) / n

    return run


def calls(f):
    def run(n):
        start = time.perf_counter()
        for _ in range(n):
            y = f()
        jax.block_until_ready(y)
        return (time.perf_counter() - start) / n

    return run


def compare(first, second, n):
    """Medians of alternating rounds."""
    first(3), second(3)
    pairs = [(first(n), second(n)) for _ in range(options.rounds)]
    return tuple(statistics.median(side) for side in zip(*pairs, strict=True))


def batches(shape, out, B):
    random = np.random.RandomState(0)
    return random.randn(B, *shape).astype(np.float32), random.randn(B, out).astype(np.float32)


def on_devices(*arrays):
    even = jax.sharding.NamedSharding(PLACEMENT.mesh, P("replica"))
    return [jax.device_put(a, even if len(a) % N == 0 else PLACEMENT.replicated) for a in arrays]


def training(model, shape, out, B, n):
    tx = optax.sgd(0.01, momentum=0.9)
    x, t = on_devices(*batches(shape, out, B))
    mine = loop(*wrapped_step(model(nnx.Rngs(0)), tx), tx, x, t)
    hand = loop(*hand_step(model(nnx.Rngs(0)), tx), tx, x, t)
    return compare(mine, hand, n)


def uneven(n, B=128):
    """B - 1 rows against B rows: the same padded size."""
    tx = optax.sgd(0.01, momentum=0.9)
    loops = [
        loop(*wrapped_step(CNN(nnx.Rngs(0)), tx), tx, *on_devices(*batches((16, 16, 3), 10, b)))
        for b in (B - 1, B)
    ]
    return compare(*loops, n)


def eager(n):
    net = jaxpar.DataParallel(Deep(nnx.Rngs(0)))
    (x,) = on_devices(np.ones((16, 8), np.float32))
    graphdef, state = nnx.split(net.module)
    pure = jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))
    whole = nnx.jit(lambda net, x: net(x))
    host = np.ones((16, 8), np.float32)
    mine, plain = compare(calls(lambda: net(host)), calls(lambda: pure(state, x)), n)
    flax, _ = compare(calls(lambda: whole(net.module, x)), calls(lambda: pure(state, x)), 3)
    return mine, plain, flax


def main():
    rows = {
        "CNN training step": (*training(CNN, (16, 16, 3), 10, 128, 4), 1.05),
        "MLP 3 x 64 training step": (*training(MLP, (64,), 64, 128, 100), 1.25),
        "uneven batch (127 against 128 rows)": (*uneven(4), 1.15),
    }
    mine, plain, flax = eager(10)
    rows["eager call, 300 variables, against jax.jit"] = (mine, plain, 2.0)
    report = {
        name: {"jaxpar_ms": a * 1e3, "by_hand_ms": b * 1e3, "ratio": a / b, "bar": bar}
        for name, (a, b, bar) in rows.items()
    }
    report["eager call, 300 variables, against jax.jit"]["nnx_jit_ms"] = flax * 1e3
    if options.json:
        print(
            json.dumps(
                {"devices": N, "platform": jax.default_backend(), "jax": jax.__version__, "rows": report},
                indent=1,
            )
        )
        return
    print(f"{N} x {jaxpar.devices()[0].device_kind}, jax {jax.__version__}")
    for name, row in report.items():
        print(
            f"{name:46} {row['jaxpar_ms']:9.3f} ms {row['by_hand_ms']:9.3f} ms   "
            f"ratio {row['ratio']:.3f}  (bar {row['bar']})"
        )
    print(f"nnx.jit of the same module, for comparison: {flax * 1e3:.3f} ms, ratio {flax / plain:.2f}")


main()
