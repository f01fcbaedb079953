"""Forward and backward of layers in torch's form against the plain Flax layer: ratios, in one run.

    python benchmarks/nn.py [Conv BatchNorm ...] [--rounds 25] [--small] [--json]

Both sides are compiled programs that return the output, the gradients by parameters and inputs, and
the changed statistics. They are timed in turn, many short rounds of both, and the ratio is that of
the medians, so that a busy machine slows both sides alike. Beside it are the ratio of the processor
time of all threads, and of the bytes that XLA says the two programs read and write, which no other
work on the machine changes. The bar is 1.1.
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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxpar import nn

BAR = 1.1
R = nnx.Rngs(0)


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer of jaxpar.nn and the one of Flax that is nearest to it.

    inputs: shapes of float32 arrays, or arrays; integers are not differentiated.
    call: how a side is called, `call(module, *inputs)`; its floats are summed for the gradient.
    """

    name: str
    ours: Callable[[], nnx.Module]
    flax: Callable[[], nnx.Module]
    inputs: tuple[Any, ...]
    call: Callable[..., Any] = lambda module, *inputs: module(*inputs)


IMAGE, SENTENCE = (32, 28, 28, 64), (32, 128, 256)


def conv(
    c_in: int, c_out: int, k: tuple, stride: int = 1, pad: int = 0, mode: str = "zeros", **groups
) -> Row:
    """A convolution whose padding Flax can express."""
    flax_pad = [(pad, pad)] * len(k) if mode == "zeros" else "CIRCULAR"
    g = groups.get("groups", 1)
    name = f"Conv({c_in}, {c_out}, {k}, {stride}, {pad}, groups={g}, padding_mode='{mode}')"
    return Row(
        name,
        lambda: nn.Conv(c_in, c_out, k, stride, pad, groups=g, padding_mode=mode, rngs=R),
        lambda: nnx.Conv(c_in, c_out, k, stride, padding=flax_pad, feature_group_count=g, rngs=R),
        ((16, *(28,) * len(k), c_in) if len(k) < 3 else (4, 12, 12, 12, c_in),),
    )


def pool(name: str, options: str, function: Callable[..., jax.Array], *arguments: Any) -> Row:
    numbers = tuple(int(n) for n in options.split(","))
    return Row(
        f"{name}({options})",
        lambda: getattr(nn, name)(*numbers),
        lambda: nnx.Sequential(lambda x: function(x, *arguments)),
        (IMAGE,),
    )


def recurrent(form: str, cell: Any, shape: tuple[int, ...], size: int) -> Row:
    return Row(
        f"{form}({shape[-1]}, {size}), {shape}",
        lambda: getattr(nn, form)(shape[-1], size, batch_first=True, rngs=R),
        lambda: nnx.RNN(cell(shape[-1], size, rngs=R)),
        (shape,),
        lambda module, x: module(x) if isinstance(module, nnx.RNN) else module(x)[0],
    )


def attend(module: nnx.Module, x: jax.Array) -> jax.Array:
    if isinstance(module, nnx.MultiHeadAttention):
        return module(x)
    return module(x, x, x, need_weights=False)[0]


ROWS = [
    Row("BatchNorm(64)", lambda: nn.BatchNorm(64), lambda: nnx.BatchNorm(64, rngs=R), (IMAGE,)),
    Row("SyncBatchNorm(64)", lambda: nn.SyncBatchNorm(64), lambda: nnx.BatchNorm(64, rngs=R), (IMAGE,)),
    Row("LayerNorm(256)", lambda: nn.LayerNorm(256), lambda: nnx.LayerNorm(256, rngs=R), (SENTENCE,)),
    Row("RMSNorm(256)", lambda: nn.RMSNorm(256), lambda: nnx.RMSNorm(256, rngs=R), (SENTENCE,)),
    Row(
        "GroupNorm(8, 64)",
        lambda: nn.GroupNorm(8, 64),
        lambda: nnx.GroupNorm(64, num_groups=8, rngs=R),
        (IMAGE,),
    ),
    Row(
        "InstanceNorm(64, affine=True)",
        lambda: nn.InstanceNorm(64, affine=True),
        lambda: nnx.InstanceNorm(64, rngs=R),
        (IMAGE,),
    ),
    conv(32, 32, (3,), 1, 1),
    conv(32, 32, (3, 3), 1, 1),
    conv(32, 64, (3, 3), 2, 1),
    conv(32, 32, (3, 3), 1, 1, groups=4),
    conv(32, 32, (3, 3), 1, 1, mode="circular"),
    conv(8, 8, (3, 3, 3), 1, 1),
    Row(
        "ConvTranspose(32, 32, (3, 3), stride=2)",
        lambda: nn.ConvTranspose(32, 32, (3, 3), stride=2, rngs=R),
        lambda: nnx.ConvTranspose(32, 32, (3, 3), strides=2, padding="VALID", transpose_kernel=True, rngs=R),
        ((16, 14, 14, 32),),
    ),
    pool("MaxPool", "2", nnx.max_pool, (2, 2), (2, 2)),
    pool("MaxPool", "3, 2, 1", nnx.max_pool, (3, 3), (2, 2), ((1, 1), (1, 1))),
    pool("MaxPool", "3, 1, 1", nnx.max_pool, (3, 3), (1, 1), ((1, 1), (1, 1))),
    pool("AvgPool", "2", nnx.avg_pool, (2, 2), (2, 2)),
    pool("AvgPool", "3, 2, 1", nnx.avg_pool, (3, 3), (2, 2), ((1, 1), (1, 1))),
    pool("AvgPool", "7", nnx.avg_pool, (7, 7), (7, 7)),
    Row(
        "Upsample(scale_factor=2, mode='bilinear')",
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        lambda: nnx.Sequential(
            lambda x: jax.image.resize(x, (len(x), 56, 56, 64), "bilinear", antialias=False)
        ),
        (IMAGE,),
    ),
    *[
        Row(
            f"Embedding(10_000, 256{more})",
            lambda options=options: nn.Embedding(10_000, 256, **options, rngs=R),
            lambda: nnx.Embed(10_000, 256, rngs=R),
            (np.random.RandomState(0).randint(0, 10_000, (32, 128)),),
        )
        for more, options in [("", {}), (", padding_idx=0", {"padding_idx": 0})]
    ],
    Row("Dropout(0.5)", lambda: nn.Dropout(0.5, rngs=R), lambda: nnx.Dropout(0.5, rngs=R), (SENTENCE,)),
    Row(
        "FeatureDropout(0.5)",
        lambda: nn.FeatureDropout(0.5, rngs=R),
        lambda: nnx.Dropout(0.5, broadcast_dims=(1, 2), rngs=R),
        (IMAGE,),
    ),
    Row("PReLU()", lambda: nn.PReLU(), lambda: nnx.PReLU(), (SENTENCE,)),
    Row("PReLU(256)", lambda: nn.PReLU(256), lambda: nnx.PReLU(), (SENTENCE,)),
    *[
        recurrent(form, cell, shape, size)
        for form, cell in [("LSTM", nnx.OptimizedLSTMCell), ("GRU", nnx.GRUCell), ("RNN", nnx.SimpleCell)]
        for shape, size in [((32, 64, 256), 256), ((8, 128, 64), 128)]
    ],
    Row(
        "MultiheadAttention(256, 8)",
        lambda: nn.MultiheadAttention(256, 8, batch_first=True, rngs=R),
        lambda: nnx.MultiHeadAttention(8, 256, decode=False, rngs=R),
        (SENTENCE,),
        attend,
    ),
]


def program(row: Row, layer: nnx.Module, inputs: list[jax.Array]) -> Any:
    """The compiled forward and backward program, with its arguments."""
    graph, parameters, rest = nnx.split(layer, nnx.Param, ...)
    real = [i for i, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def run(parameters: Any, rest: Any, floats: list[jax.Array], inputs: list[jax.Array], weight: Any) -> Any:
        def loss_of(parameters: Any, floats: list[jax.Array]) -> Any:
            module = nnx.merge(graph, parameters, rest, copy=True)
            given = list(inputs)
            for i, x in zip(real, floats, strict=True):
                given[i] = x
            outputs = row.call(module, *given)
            summed = jax.tree.map(lambda y, w: (y * w).sum(), _floats(outputs), weight)
            return sum(jax.tree.leaves(summed)), (outputs, nnx.state(module, nnx.Not(nnx.Param)))

        return jax.grad(loss_of, (0, 1), has_aux=True)(parameters, floats)

    shapes = jax.eval_shape(
        lambda *xs: _floats(row.call(nnx.merge(graph, parameters, rest, copy=True), *xs)), *inputs
    )
    random = np.random.RandomState(1)
    weight = jax.tree.map(lambda s: jnp.asarray(random.randn(*s.shape), s.dtype), shapes)
    arguments = (parameters, rest, [inputs[i] for i in real], inputs, weight)
    return jax.jit(run).lower(*arguments).compile(), arguments


def _floats(outputs: Any) -> list[jax.Array]:
    return [y for y in jax.tree.leaves(outputs) if jnp.issubdtype(y.dtype, jnp.inexact)]


def inputs_of(row: Row, small: bool) -> list[jax.Array]:
    random = np.random.RandomState(0)
    given = [x if hasattr(x, "shape") else random.randn(*x).astype(np.float32) for x in row.inputs]
    return [jnp.asarray(x[:2] if small else x) for x in given]


def measure(row: Row, rounds: int, small: bool) -> dict[str, float]:
    """Medians in milliseconds, and the ratios of time, processor time and bytes."""
    inputs = inputs_of(row, small)
    sides = [program(row, make(), inputs) for make in (row.ours, row.flax)]
    clocks = (time.perf_counter, time.process_time)
    seconds: list[list[list[float]]] = [[[], []], [[], []]]  # by clock and side
    for compiled, arguments in sides:
        jax.block_until_ready(compiled(*arguments))
    for i in range(rounds):
        # Who goes first has a colder cache.
        for side in (0, 1) if i % 2 else (1, 0):
            compiled, arguments = sides[side]
            starts = [clock() for clock in clocks]
            for _ in range(3):
                out = compiled(*arguments)
            jax.block_until_ready(out)
            for times, clock, start in zip(seconds, clocks, starts, strict=True):
                times[side].append((clock() - start) / 3)
    (ours, flax), cpu = ([1e3 * statistics.median(side) for side in both] for both in seconds)
    read = [compiled.cost_analysis().get("bytes accessed", float("nan")) for compiled, _ in sides]
    return {
        "jaxpar_ms": ours,
        "flax_ms": flax,
        "ratio": ours / flax,
        "cpu_ratio": cpu[0] / cpu[1],
        "bytes_ratio": read[0] / read[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="rows whose names begin with one of these; all if left out")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--small", action="store_true", help="two rows of each batch, to see that it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.names or row.name.startswith(tuple(options.names))]
    report = {}
    if not options.json:
        print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}; the bar is {BAR}")
    for row in rows:
        result = report[row.name] = measure(row, options.rounds, options.small)
        if not options.json:
            print(
                f"{row.name:66} {result['jaxpar_ms']:9.3f} ms {result['flax_ms']:9.3f} ms   "
                f"ratio {result['ratio']:.3f}  cpu {result['cpu_ratio']:.3f}  "
                f"bytes {result['bytes_ratio']:.3f}",
                flush=True,
            )
    if options.json:
        print(json.dumps({"device": jax.devices()[0].device_kind, "bar": BAR, "rows": report}, indent=1))


if __name__ == "__main__":
    main()
