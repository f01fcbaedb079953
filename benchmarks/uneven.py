"""What a batch costs that does not divide evenly: seconds of a step, seconds to compile it, temporary memory.

    python benchmarks/uneven.py [--devices 2] [--rounds 15] [--models MLP GPT ResNet-18] [--no-steps]

Each number is the uneven batch's over the even one's with one row more, whose steps run in turn. A GPT and an
MLP have no row that looks at another; ResNet-18 has BatchNorm.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxpar

sys.path.insert(0, str(Path(__file__).parent / "train_step"))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", nargs="+", default=["MLP", "GPT", "ResNet-18"])
    parser.add_argument("--no-steps", action="store_true", help="compile only")
    return parser.parse_args()


chosen = options()
jaxpar.virtual_devices(chosen.devices)
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from jax_sides import ResNet18  # noqa: E402

from jaxpar._training.training_engine import trace_step  # noqa: E402


class MLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(512, 512, rngs=rngs) for _ in range(4)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class Block(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.norm, self.other = (nnx.LayerNorm(width, rngs=rngs) for _ in "12")
        self.attention = nnx.MultiHeadAttention(4, width, width, decode=False, rngs=rngs)
        self.wide, self.narrow = (
            nnx.Linear(width, 4 * width, rngs=rngs),
            nnx.Linear(4 * width, width, rngs=rngs),
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.narrow(nnx.gelu(self.wide(self.other(x))))


class GPT(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, vocabulary: int = 512, width: int = 192, layers: int = 4):
        self.tokens = nnx.Embed(vocabulary, width, rngs=rngs)
        self.positions = nnx.Param(jnp.zeros((64, width)))
        self.blocks = nnx.List([Block(width, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.tokens(x) + self.positions[: x.shape[1]]
        for block in self.blocks:
            y = block(y)
        return self.tokens.attend(self.norm(y))


def squared(net: Any, x: jax.Array, t: jax.Array) -> jax.Array:
    return ((net(x) - t) ** 2).mean()


def next_token(net: Any, x: jax.Array, t: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(net(x), t).mean()


def rows_of(model: str, B: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(0)
    if model == "GPT":
        tokens = random.randint(0, 512, (B, 65))
        return tokens[:, :-1], tokens[:, 1:]
    if model == "ResNet-18":
        return random.randn(B, 32, 32, 3).astype(np.float32), random.randn(B, 10).astype(np.float32)
    return random.randn(B, 512).astype(np.float32), random.randn(B, 512).astype(np.float32)


MODELS: dict[str, tuple[Any, Any, int]] = {
    "MLP": (MLP, squared, 128),
    "GPT": (GPT, next_token, 16),
    "ResNet-18": (ResNet18, squared, 16),
}
TX = optax.sgd(0.01, momentum=0.9)


def made(model: str, wrap: Any, B: int) -> Callable[[], jax.Array]:
    """A step on B rows."""
    kind, loss_fn, _ = MODELS[model]
    net = wrap(kind(nnx.Rngs(0)), range(chosen.devices))
    step = jaxpar.train_step(net, nnx.Optimizer(net, TX, wrt=nnx.Param), loss_fn)
    return functools.partial(step, *rows_of(model, B))


def seconds(step: Callable[[], jax.Array], n: int) -> float:
    start = time.perf_counter()
    for _ in range(n):
        loss = step()
    jax.block_until_ready(loss)
    return (time.perf_counter() - start) / n


def steps(model: str, wrap: Any, B: int) -> float:
    """Of both batches in turn, the median of the ratios."""
    even, uneven = made(model, wrap, B), made(model, wrap, B - 1)
    n = 10 if model == "MLP" else 2
    for step in (even, uneven):
        seconds(step, 2)
    ratios = []
    for i in range(chosen.rounds):
        pair = [(even, 0), (uneven, 1)][:: 1 if i % 2 else -1]
        took = {which: seconds(step, n) for step, which in pair}
        ratios.append(took[1] / took[0])
    return statistics.median(ratios)


def compilation(model: str, wrap: Any, B: int, times: int = 3) -> tuple[float, int]:
    """Seconds to trace and compile a step, and its temporary bytes on a device."""
    kind, loss_fn, _ = MODELS[model]
    placement = jaxpar.Placement(tuple(jaxpar.devices()[: chosen.devices]))
    took = []
    for _ in range(times):
        jax.clear_caches()
        net = nnx.eval_shape(lambda: kind(nnx.Rngs(0)))
        if wrap is jaxpar.DataParallel:
            net = jaxpar.DataParallel(net, placement)
        optimizer = nnx.eval_shape(lambda net: nnx.Optimizer(net, TX, wrt=nnx.Param), net)
        start = time.perf_counter()
        program = trace_step(net, optimizer, loss_fn, rows_of(model, B), placement).lower().compile()
        took.append(time.perf_counter() - start)
    return min(took), program.memory_analysis().temp_size_in_bytes


def main() -> None:
    print(f"{chosen.devices} devices, {jax.devices()[0].device_kind}, JAX {jax.__version__}; uneven / even\n")
    print("| | step | compilation | temporary memory |\n|---|---|---|---|")
    for model in chosen.models:
        B = MODELS[model][2]
        for wrap in (jaxpar.DataParallel, jaxpar.DistributedDataParallel):
            step = f"{steps(model, wrap, B):.3f}" if not chosen.no_steps else "-"
            (even, a), (uneven, b) = (compilation(model, wrap, rows) for rows in (B, B - 1))
            name = f"{model}, {B - 1} and {B} rows, {wrap.__name__}"
            print(f"| {name} | {step} | {uneven / even:.2f} ({even:.1f} s) | {b / a:.2f} |", flush=True)


if __name__ == "__main__":
    main()
