"""Random models against torch's DataParallel: outputs, gradients, statistics, in float64 to 1e-10.

    python benchmarks/random_models.py [--models 2000] [--first 0]

Each number is the seed of one model: two to six layers drawn from torch.nn and jaxpar.nn alike, with random
arguments, a random number of rows (one to nine) and of replicas (one to four), in training or evaluation.
torch's own DataParallel code runs on pretended devices (`torch_ref`). A model that disagrees is printed with
its seed; the exit code is 1 then. One whose outputs are 0, so that what both compute is rounding, is counted
apart. Ctrl-C prints what was done so far.
"""

from __future__ import annotations

import argparse
import functools
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jaxpar

jaxpar.virtual_devices(4)
import numpy as np  # noqa: E402
import torch  # noqa: E402
from flax import nnx  # noqa: E402

from jaxpar import parity  # noqa: E402

SIZES = (1, 2, 3, 4, 6, 8)
RNGS = nnx.Rngs(0)


class Pair(NamedTuple):
    """A layer in both frameworks, and the features that it returns if they are others."""

    torchs: torch.nn.Module
    flaxs: Callable[..., Any]
    features: int | None = None


def linear(draw: random.Random, c: int) -> Pair:
    out, bias = draw.choice(SIZES), draw.random() < 0.7
    return Pair(torch.nn.Linear(c, out, bias), nnx.Linear(c, out, use_bias=bias, rngs=RNGS), out)


def convolution(draw: random.Random, c: int) -> Pair:
    groups = draw.choice((1, c))
    out = draw.choice(SIZES) * groups
    args = (c, out, (3, 3), draw.choice((1, 2)), 1, 1, groups, draw.random() < 0.7)
    return Pair(torch.nn.Conv2d(*args), jaxpar.nn.Conv(*args, rngs=RNGS), out)


def batch_norm(theirs: type[torch.nn.Module]) -> Callable[[random.Random, int], Pair]:
    def make(draw: random.Random, c: int) -> Pair:
        momentum = draw.choice((0.1, 0.5, None))
        args = (c, 1e-5, momentum, draw.random() < 0.7, draw.random() < 0.8)
        return Pair(theirs(*args), jaxpar.nn.BatchNorm(*args, rngs=RNGS))

    return make


def layer_norm(draw: random.Random, c: int) -> Pair:
    args = (c, draw.choice((1e-5, 1e-3)), draw.random() < 0.7)
    return Pair(torch.nn.LayerNorm(*args), jaxpar.nn.LayerNorm(*args, rngs=RNGS))


def group_norm(draw: random.Random, c: int) -> Pair:
    args = (draw.choice([g for g in (1, 2, 3) if c % g == 0]), c)
    return Pair(torch.nn.GroupNorm(*args), jaxpar.nn.GroupNorm(*args, rngs=RNGS))


def pool(draw: random.Random, c: int) -> Pair:
    del c
    if draw.random() < 0.5:
        return Pair(torch.nn.MaxPool2d(2, 1, 1), jaxpar.nn.MaxPool((2, 2), 1, 1))
    return Pair(torch.nn.AvgPool2d(2, 1, 1), jaxpar.nn.AvgPool((2, 2), 1, 1))


def activation(draw: random.Random, c: int) -> Pair:
    del c
    exact = functools.partial(nnx.gelu, approximate=False)
    choices = {"ReLU": nnx.relu, "GELU": exact, "SiLU": nnx.silu, "Tanh": nnx.tanh, "Sigmoid": nnx.sigmoid}
    name = draw.choice(sorted(choices))
    return Pair(getattr(torch.nn, name)(), choices[name])


FLAT = [linear, linear, batch_norm(torch.nn.BatchNorm1d), layer_norm, activation]
IMAGES = [convolution, convolution, batch_norm(torch.nn.BatchNorm2d), group_norm, pool, activation]


class Torch(torch.nn.Module):
    def __init__(self, layers: list[torch.nn.Module]):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Flax(nnx.Module):
    def __init__(self, layers: list[Any]):
        # Functions have no weights, and stay out of the list of layers.
        self.order = tuple(None if isinstance(layer, nnx.Module) else layer for layer in layers)
        self.layers = nnx.Dict(
            {f"{i}": layer for i, layer in enumerate(layers) if isinstance(layer, nnx.Module)}
        )

    def __call__(self, x: Any) -> Any:
        for i, function in enumerate(self.order):
            x = self.layers[f"{i}"](x) if function is None else function(x)
        return x


class Drawn(NamedTuple):
    torchs: Torch
    flaxs: Flax
    x: np.ndarray
    replicas: int
    training: bool


def drawn(seed: int) -> Drawn:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    images, c = draw.random() < 0.5, draw.choice(SIZES)
    rows, replicas = draw.randint(1, 9), draw.randint(1, 4)
    x = np.random.RandomState(seed).randn(*((rows, c, 7, 6) if images else (rows, c)))
    pairs = []
    for _ in range(draw.randint(2, 6)):
        pair = draw.choice(IMAGES if images else FLAT)(draw, c)
        pairs.append(pair)
        c = pair.features or c
    torchs, flaxs = Torch([pair.torchs for pair in pairs]), Flax([pair.flaxs for pair in pairs])
    return Drawn(torchs, flaxs, x, replicas, draw.random() < 0.7)


def ask(seed: int) -> str:
    """ "same", "different" with the comparison, "refused" by torch, or "nothing but rounding" to compare."""
    model = drawn(seed)
    options = {"replicas": model.replicas, "training": model.training, "layout": "channels_last"}
    try:
        found = parity.compare(model.torchs, model.flaxs, model.x, **options)
    except ValueError as error:
        # BatchNorm refuses one value for each channel, in a replica too.
        if "more than 1 value per channel" not in str(error):
            raise
        return "refused"
    if found.same:
        return "same"
    # A norm over one feature, then one over rows: the outputs are 0, and what is computed is rounding.
    left = [row.difference for row in found.different]
    if all(d.kind is parity.Kind.OUTPUT and d.magnitude < 1e-12 for d in left):
        return "nothing but rounding"
    return f"different\n{found}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first model")
    chosen = parser.parse_args()
    # A shell lets what it starts in the background ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    counts: dict[str, int] = {}
    start = time.perf_counter()
    try:
        for seed in range(chosen.first, chosen.first + chosen.models):
            said = ask(seed)
            kind = said.partition("\n")[0]
            counts[kind] = counts.get(kind, 0) + 1
            if kind == "different":
                print(f"seed {seed}: {drawn(seed).torchs}\n{said}", flush=True)
            if (seed + 1) % 100 == 0:
                seconds = time.perf_counter() - start
                print(f"{seed + 1}: {counts}, {seconds:.0f} s", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    print(", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items())))
    return 1 if "different" in counts else 0


if __name__ == "__main__":
    sys.exit(main())
