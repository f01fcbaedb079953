"""How far are jaxpar.estimate's numbers from what happens on virtual CPU devices?

    python benchmarks/estimate.py [--devices 1 2 4] [--rounds 15] [--json]

Bytes: the estimate beside `memory_analysis` of a compiled jaxpar.DataParallel step on 8 devices.
All-reduces: count and bytes beside those of the same program. Seconds: the rates are measured in turn
with the steps (a matrix product, an array negated in place, an all-reduce of 16 MiB and one of 4
bytes), and each step is predicted from them. Virtual devices share the cores, so n of them have 1/n
of the rates.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jaxpar

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4])
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
jaxpar.virtual_devices(8)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402
from jaxpar._tools.estimate.count import all_reduces  # noqa: E402

from jaxpar._tools.estimate.program import Program  # noqa: E402

TX = optax.adam(1e-3)
BUFFERS = nnx.Not(nnx.Param)


class MLP(nnx.Module):
    """Products decide."""

    def __init__(self, width=768):
        self.layers = nnx.List([nnx.Linear(width, width, rngs=nnx.Rngs(i)) for i in range(4)])

    def __call__(self, x):
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return x


class Wide(nnx.Module):
    """Memory decides: many weights, few rows."""

    def __init__(self):
        self.layer = nnx.Linear(2048, 2048, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.layer(x)


class CNN(nnx.Module):
    def __init__(self):
        self.a = nnx.Conv(3, 32, (3, 3), rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(32, rngs=nnx.Rngs(1))
        self.b = nnx.Conv(32, 32, (3, 3), rngs=nnx.Rngs(2))

    def __call__(self, x):
        return self.b(nnx.relu(self.norm(self.a(x)))).mean((1, 2))


CASES = {
    "MLP 4 x 768": (MLP, (256, 768)),
    "Wide 2048 x 2048, 2 rows": (Wide, (2, 2048)),
    "CNN 32 x 32, BatchNorm": (CNN, (32, 32, 32, 3)),
}


def loss_fn(net, x):
    return (net(x) ** 2).mean()


def step_of(make: type, shape: tuple[int, ...], n: int):
    """A training step as a user writes it, its state, its batch, and the same as shapes."""
    placement = jaxpar.Placement(tuple(jaxpar.devices()[:n]))
    graphdef, params, buffers = nnx.split(make(), nnx.Param, ...)

    def train(params, state, buffers, x):
        def loss_of(params):
            net = jaxpar.DataParallel(nnx.merge(graphdef, params, buffers, copy=True), placement)
            return loss_fn(net, x), nnx.state(net.module, BUFFERS)

        (loss, buffers), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, state = TX.update(gradients, state, params)
        return loss, optax.apply_updates(params, updates), state, buffers

    cut = NamedSharding(placement.mesh, PartitionSpec("replica"))
    state = (params, TX.init(params), buffers)
    return train, jax.device_put(state, placement.replicated), jnp.ones((n * shape[0], *shape[1:])), cut


def as_shapes(tree, sharding):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def counted(name: str) -> dict:
    """Bytes and all-reduces on 8 devices, estimated and compiled."""
    make, shape = CASES[name]
    told = jaxpar.estimate(make, TX, loss_fn, jax.ShapeDtypeStruct(shape, jnp.float32))
    train, state, x, cut = step_of(make, shape, 8)
    replicated = jaxpar.Placement(tuple(jaxpar.devices())).replicated
    arguments = (*as_shapes(state, replicated), as_shapes(x, cut))
    program = Program(jax.jit(train, donate_argnums=(0, 1, 2)).trace(*arguments), "benchmark")
    m = told.memory
    return {
        "arguments": (m.parameters + m.optimizer + m.buffers + m.batch, program.arguments),
        "whole step": (m.compiled_step, program.everything),
        "sum of purposes": (m.total, program.everything),
        "all-reduces": (told.traffic.count, len(all_reduces(program.text))),
        "all-reduced bytes": (told.traffic.bytes, sum(all_reduces(program.text))),
    }


def reduction(n: int, size: int) -> Callable[[], object]:
    placement = jaxpar.Placement(tuple(jaxpar.devices()[:n]))
    spec = PartitionSpec("replica")
    mean = jax.shard_map(
        lambda x: jax.lax.psum(x, "replica") / n,
        mesh=placement.mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    return again(mean, jax.device_put(jnp.ones((n, size)), NamedSharding(placement.mesh, spec)))


def again(f: Callable, x) -> Callable[[], object]:
    """f in place, of its own result, as a training step: fresh memory would cost more than f."""
    compiled, held = jax.jit(f, donate_argnums=0), [x]

    def call():
        held[0] = compiled(held[0])
        return held[0]

    return call


def timed(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, all of them once in every round."""
    for call in calls.values():
        jax.block_until_ready(call())
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


def measured(n: int) -> dict:
    """Rates of this machine with n devices, and every step predicted from them and timed."""
    side, million = 1024, 2**22
    a, b = jnp.ones((side, side)), jnp.ones(4 * million)
    calls = {"product": again(lambda x: a @ x / side, jnp.eye(side)), "negate": again(lambda b: -b, b)}
    if n > 1:
        calls |= {"large": reduction(n, million), "small": reduction(n, 1)}
    for name, (make, shape) in CASES.items():
        train, state, x, cut = step_of(make, shape, n)
        calls[name] = stepping(jax.jit(train, donate_argnums=(0, 1, 2)), state, jax.device_put(x, cut))
    seconds = timed(calls, options.rounds)
    hardware = jaxpar.Hardware(
        name=f"{n} virtual devices",
        flops=dict.fromkeys(["float32"], 2 * side**3 / seconds["product"] / n),
        bandwidth=2 * 4 * 4 * million / seconds["negate"] / n,
        memory=1e12,
        link=1e12,
        network=1e12,
        latency=0.0,
    )
    if n > 1:
        exchanged = 2 * (n - 1) / n * 4 * million
        large = max(seconds["large"] - seconds["small"], 1e-9)
        latency = seconds["small"] / (2 * (n - 1))
        hardware = dataclasses.replace(hardware, link=exchanged / large, latency=latency)
    steps = {}
    for name, (make, shape) in CASES.items():
        batch = jax.ShapeDtypeStruct(shape, jnp.float32)
        (point,) = jaxpar.estimate(make, TX, loss_fn, batch, device=hardware, devices=[n]).points
        steps[name] = (point.step, seconds[name])
    return {"rates": dataclasses.asdict(hardware), "steps": steps}


def stepping(step, state, x) -> Callable[[], object]:
    held = [state]

    def call():
        loss, *state = step(*held[0], x)
        held[0] = tuple(state)
        return loss

    return call


found = {
    "counted": {name: counted(name) for name in CASES},
    "timed": {n: measured(n) for n in options.devices},
}
if options.json:
    print(json.dumps(found, indent=1))
else:
    print(f"{'':26}{'':20}{'estimated':>14}{'compiled':>14}{'ratio':>8}")
    for name, row in found["counted"].items():
        for what, (told, real) in row.items():
            print(f"{name:26}{what:20}{told:14,}{real:14,}{told / real:8.3f}")
    print(f"\n{'':26}{'devices':>8}{'predicted':>14}{'measured':>14}{'ratio':>8}")
    for n, result in found["timed"].items():
        for name, (told, real) in result["steps"].items():
            print(f"{name:26}{n:8}{told * 1e3:11.2f} ms{real * 1e3:11.2f} ms{told / real:8.2f}")
    print()
    for n, result in found["timed"].items():
        r = result["rates"]
        print(
            f"rates of {n}: {r['flops']['float32'] / 1e9:.1f} GFLOP/s, {r['bandwidth'] / 1e9:.2f} GB/s, "
            f"link {r['link'] / 1e9:.2f} GB/s, {r['latency'] * 1e6:.1f} µs"
        )
