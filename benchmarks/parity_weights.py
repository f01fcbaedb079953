"""Converting weights, against copying the same bytes with NumPy.

    python benchmarks/parity_weights.py [--gigabytes 1] [--repeats 5] [--json]

A transformer's weights (embedding, attention, two matrices a block) go from torch into an NNX model and
back. All are float32. What is compared with is `numpy.copy` of each tensor, which is what moving them
costs at the least; both sides allocate what they fill.
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
parser.add_argument("--gigabytes", type=float, default=1.0)
parser.add_argument("--repeats", type=int, default=5)
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
jaxpar.virtual_devices(1)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from flax import nnx  # noqa: E402

from jaxpar import parity  # noqa: E402

WIDTH, HEADS, VOCABULARY = 1024, 16, 32768
BLOCK = 4 * (WIDTH * WIDTH) + 8 * WIDTH * WIDTH
BAR = 2.0


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)


class Transformer(nnx.Module):
    def __init__(self, depth, rngs):
        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(depth)])


def torch_transformer(depth):
    def block():
        return torch.nn.ModuleDict(
            {
                "norm": torch.nn.LayerNorm(WIDTH),
                "attention": torch.nn.MultiheadAttention(WIDTH, HEADS),
                "up": torch.nn.Linear(WIDTH, 4 * WIDTH),
                "down": torch.nn.Linear(4 * WIDTH, WIDTH),
            }
        )

    return torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(VOCABULARY, WIDTH),
            "blocks": torch.nn.ModuleList([block() for _ in range(depth)]),
        }
    )


def in_turn(functions, repeats):
    """Median seconds of each; they run in turn, so that what disturbs one disturbs all."""
    seconds = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            result = function()
            seconds[name].append(time.perf_counter() - start)
            del result
    return {name: statistics.median(times) for name, times in seconds.items()}


depth = max(1, round((options.gigabytes * 1e9 / 4 - VOCABULARY * WIDTH) / BLOCK))
theirs = torch_transformer(depth)
state = theirs.state_dict()
arrays = {name: tensor.numpy() for name, tensor in state.items()}
size = sum(array.nbytes for array in arrays.values())
shapes = nnx.eval_shape(lambda: Transformer(depth, nnx.Rngs(0)))
ours = parity.load_torch(nnx.clone(shapes), state)


def load():
    return parity.load_torch(nnx.clone(shapes), state)


measured = in_turn(
    {
        "numpy.copy": lambda: {name: np.copy(array) for name, array in arrays.items()},
        "load_torch": load,
        "to_torch": lambda: parity.to_torch(ours, like=state),
    },
    options.repeats,
)
back = parity.to_torch(load(), like=state)
assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
ratios = {name: measured[name] / measured["numpy.copy"] for name in ("load_torch", "to_torch")}
if options.json:
    print(json.dumps({"bytes": size, "seconds": measured, "ratios": ratios, "bar": BAR}))
else:
    print(f"{len(arrays)} tensors, {size / 1e9:.2f} GB")
    for name, seconds in measured.items():
        ratio = f"   ratio {ratios[name]:.2f}  (bar {BAR})" if name in ratios else ""
        print(f"{name:12} {seconds * 1e3:8.0f} ms{ratio}")
