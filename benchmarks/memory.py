"""Where the memory goes in a training step: torch's DataParallel against jaxpar's.

    python benchmarks/memory.py [--devices 4] [--rows 32] [--png memory.png] [--json]

The model is a small language model with a large vocabulary, whose outputs (rows x tokens x vocabulary)
are far larger than its inputs: the case in which gathering them on the first device hurts most.
Nothing is computed; the numbers come from shapes and from compiled programs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jaxpar

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument(
    "--devices", type=int, default=4, help="virtual CPU devices, where there is no accelerator"
)
parser.add_argument("--rows", type=int, default=32, help="of the batch")
parser.add_argument("--png", type=Path, help="write a bar chart there")
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
jaxpar.virtual_devices(options.devices)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402

VOCABULARY, WIDTH, TOKENS, BLOCKS = 8192, 256, 64, 2


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(8, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norms[0](x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class LanguageModel(nnx.Module):
    def __init__(self, rngs):
        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def cross_entropy(logits):
    targets = jnp.zeros(logits.shape[:2], jnp.int32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


tokens = jax.ShapeDtypeStruct((options.rows, TOKENS), jnp.int32)
placement = jaxpar.Placement(tuple(jaxpar.devices()[: options.devices]))
model = nnx.eval_shape(lambda: LanguageModel(nnx.Rngs(0)))
report = jaxpar.memory_report(model, tokens, cross_entropy, optimizer=optax.adam(1e-3), device_ids=placement)
print(json.dumps(report.as_dict(), indent=1) if options.json else report.table())
if options.png:
    report.plot(options.png)
