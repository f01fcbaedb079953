"""A training in plain JAX and Linen, as its examples have it, whose mistakes show in other worlds alone.

    jaxpar invariance benchmarks/invariance/script.py

One `parity.Tap` is all that is about jaxpar. Rows are divided by hand, gradients reduced in `jax.shard_map`,
and losses divided by the rows (or the letters) of all devices and accumulated batches.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpar import parity

RANK, WORLD = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
K = int(os.environ.get("JAXPAR_ACCUMULATE", 1))
LETTERS = 12
DECAY = 0.9  # of the averaged parameters

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--plant", default="")
parser.add_argument("--healthy", action="store_true", help="the training of the plant, without its mistake")
options = parser.parse_args()
PLANT = options.plant
draw = Random(options.seed)
MODEL = draw.choice(["mlp", "letters"])
if PLANT in ("batch statistics", "letters of each part"):
    MODEL = {"b": "norm", "l": "letters"}[PLANT[0]]
elif PLANT in ("healthy statistics", "unequal batches"):
    MODEL = {"h": "norm", "u": "mlp"}[PLANT[0]]
WIDTH, RATE, BATCH = draw.choice([8, 12, 16]), draw.choice([0.01, 0.03, 0.05]), draw.choice([8, 16, 24])
OPTIMIZER = draw.choice(["sgd", "momentum", "adam", "adamw"])
EPOCH = draw.choice([2, 3, 4]) * BATCH + draw.choice([0, BATCH // 2])
EPOCH += BATCH // 2 * (PLANT == "drops the last batch" and EPOCH % BATCH == 0)
if PLANT == "unequal batches":
    EPOCH = EPOCH // BATCH * BATCH + 5
CLIP = draw.choice([None, 0.05, 0.2])
if PLANT == "clips parts":
    CLIP = draw.choice([0.02, 0.05])
DROPOUT = draw.choice([0.0, 0.2])
if PLANT.startswith("masks"):
    DROPOUT = 0.3
if options.healthy:
    PLANT = ""


class Net(linen.Module):
    axis_name: str | None

    @linen.compact
    def __call__(self, x: jax.Array, keep: jax.Array) -> jax.Array:
        if MODEL == "letters":
            x = linen.Embed(LETTERS, WIDTH)(x)
        x = linen.Dense(WIDTH)(x)
        if MODEL == "norm":
            x = linen.BatchNorm(False, axis_name=self.axis_name)(x)
        x = linen.tanh(x)
        x = x * keep.reshape(len(x), *[1] * (x.ndim - 2), WIDTH) / (1 - DROPOUT)
        return linen.Dense(LETTERS if MODEL == "letters" else 1)(x)


if WORLD > 1:
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, WORLD, RANK)
devices = jax.local_devices() if PLANT == "not averaged" else jax.devices()
N = len(devices)
mesh = jax.make_mesh((N,), ("data",), axis_types=(AxisType.Auto,), devices=devices)
net = Net(None if PLANT == "batch statistics" or N == 1 else "data")


def losses(params: Any, stats: Any, x: Any, y: Any, weights: Any, keep: Any) -> tuple[Any, Any]:
    """Return the sum of the losses, their number, and the running statistics."""
    output, state = net.apply({"params": params, **stats}, x, keep, mutable=list(stats))
    if MODEL == "letters":
        each = optax.softmax_cross_entropy_with_integer_labels(output, y)
        weights = weights[:, None] * (y != 0)
    else:
        each = (output[:, 0] - y) ** 2
    return (each * weights).sum(), (weights.sum(), state)


def clipped(gradients: Any) -> Any:
    factor = jnp.minimum(1.0, CLIP / optax.global_norm(gradients))
    return jax.tree.map(lambda g: g * factor, gradients)


@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(), *[P("data")] * 4, P()), out_specs=P(), check_vma=False)
def sums(params: Any, stats: Any, x: Any, y: Any, weights: Any, keep: Any, key: Any) -> Any:
    """Return sums over all devices of the losses and gradients, and their number."""
    if PLANT == "masks by device":
        key = jax.random.fold_in(key, jax.lax.axis_index("data"))
    if PLANT.startswith("masks"):
        keep = jax.random.bernoulli(key, 1 - DROPOUT, keep.shape) * 1.0
    (total, (count, stats)), gradients = jax.value_and_grad(losses, has_aux=True)(
        params, stats, x, y, weights, keep
    )
    own = total / count
    whole = jax.lax.psum(count, "data")
    if PLANT == "letters of each part":
        total, gradients = (jax.tree.map(lambda g: g / count * whole / N, z) for z in (total, gradients))
    if PLANT == "sum of devices":
        total, gradients = (jax.tree.map(lambda g: g * N, z) for z in (total, gradients))
    if PLANT == "clips parts":
        gradients = jax.tree.map(
            lambda g: g * whole / N, clipped(jax.tree.map(lambda g: g / count, gradients))
        )
    total, gradients = jax.lax.psum((total, gradients), "data")
    if PLANT == "loss of a device":
        total = own * whole
    return total, gradients, whole, stats


def spread(x: np.ndarray, rows: int) -> jax.Array:
    """Put rows on all devices, filled up to a number that they divide."""
    x = np.concatenate([x, np.zeros((-rows % N, *x.shape[1:]), x.dtype)])
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, P("data")), lambda index: x[index])


def batches(random: Any) -> Any:
    """Yield the numbers of the rows of each update."""
    while True:
        order = random.permutation(EPOCH)
        if PLANT == "another order" and WORLD > 1:
            order = order[::-1]
        size = BATCH * (WORLD if PLANT == "batch of each process" else 1)
        for start in range(0, EPOCH, size):
            rows = order[start : start + size]
            if not (PLANT == "drops the last batch" and WORLD > 1 and len(rows) < size):
                yield rows


def main() -> None:
    random = np.random.default_rng(options.seed)
    if MODEL == "letters":
        inputs = random.integers(1, LETTERS, (EPOCH, 6))
        targets = np.where(np.arange(6) < random.integers(1, 7, (EPOCH, 1)), inputs[:, ::-1], 0)
    else:
        inputs = random.standard_normal((EPOCH, 4))
        targets = np.tanh(inputs @ random.standard_normal(4)) + 0.1 * random.standard_normal(EPOCH)
    seed = options.seed + (RANK + 5 * (WORLD > 1) if PLANT == "seed of a process" else 0)
    variables = Net(None).init(jax.random.key(seed), inputs[:2], np.ones((2, WIDTH)))
    params, stats = variables["params"], {k: v for k, v in variables.items() if k != "params"}
    rate = RATE * (N if PLANT == "rate by devices" else 1)
    tx = {
        "sgd": optax.sgd(rate),
        "momentum": optax.sgd(rate, 0.9),
        "adam": optax.adam(rate),
        "adamw": optax.adamw(rate),
    }[OPTIMIZER]
    state, average, key = tx.init(params), params, jax.random.key(options.seed)
    params, state, average, stats = jax.device_put((params, state, average, stats), NamedSharding(mesh, P()))
    blend = jax.jit(lambda a, p: jax.tree.map(lambda x, y: DECAY * x + (1 - DECAY) * y, a, p))
    tap = parity.Tap("taps", start=params, extra={"average": average, **stats})
    order = batches(random)
    for step in range(14):
        rows, total, count, gradients = next(order), 0.0, 0.0, None
        keep = random.random((EPOCH, WIDTH)) >= DROPOUT
        for piece in np.array_split(rows, K):
            taken = np.tile(piece, WORLD) if PLANT == "no sampler" else piece
            if PLANT == "not averaged":
                taken = np.array_split(piece, WORLD)[RANK]
            x, y = (spread(z[taken], len(taken)) for z in (inputs, targets))
            weights, masks = (spread(z, len(taken)) for z in (np.ones(len(taken)), 1.0 * keep[taken]))
            key = jax.random.fold_in(key, step)
            part, own, number, stats = sums(params, stats, x, y, weights, masks, key)
            if PLANT == "unequal batches":
                part, own, number = part / number, jax.tree.map(lambda g: g / number, own), 1.0  # noqa: B023
            total, count = total + part, count + number
            gradients = own if gradients is None else jax.tree.map(jnp.add, gradients, own)
            mine = taken if PLANT in ("no sampler", "not averaged") else np.array_split(taken, WORLD)[RANK]
            mine = piece if PLANT == "no sampler" else mine
            tap(step, batch=(inputs[mine], targets[mine]))
        count = count / K if PLANT == "sum of batches" else count
        loss = total / count
        gradients = jax.tree.map(lambda g: g / count, gradients)  # noqa: B023
        if CLIP and PLANT != "clips parts":
            gradients = clipped(gradients)
        updates, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        for _ in range(K if PLANT == "averages batches" else 1):
            average = blend(average, params)
        extra = {"average": average, **stats}
        tap(step, loss=loss, gradients=gradients, parameters=params, optimizer=state, extra=extra)


main()
