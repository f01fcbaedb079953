"""Nets without values, and the compiled programs of their training steps."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from hlo import Program, read

import jaxpar

WRAPPERS = {"dp": jaxpar.DataParallel, "ddp": jaxpar.DistributedDataParallel}
IN, HIDDEN, OUT = 32, 64, 8
PARAMETERS = IN * HIDDEN + HIDDEN + 2 * HIDDEN + HIDDEN * OUT + OUT
STATISTICS = 2 * HIDDEN
ARRAYS = 6 + 2
"""Parameters and statistics; Adam has two more for each parameter, and its counter and nnx's."""


class Net(nnx.Module):
    """Two layers with a normalisation between them."""

    def __init__(self, norm, rngs):
        self.first, self.norm = nnx.Linear(IN, HIDDEN, rngs=rngs), norm(HIDDEN, rngs=rngs)
        self.last = nnx.Linear(HIDDEN, OUT, rngs=rngs)

    def __call__(self, x):
        return self.last(jax.nn.relu(self.norm(self.first(x))))


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.one, self.two = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        y = self.one(x)
        x = x + self.attention(y, mask=nnx.make_causal_mask(jnp.zeros(x.shape[:2])))
        return x + self.down(jax.nn.gelu(self.up(self.two(x))))


class GPT(nnx.Module):
    """Ten million parameters: 40 MB of gradients, more than XLA puts into one all-reduce."""

    def __init__(self, rngs, layers=2, width=640, vocabulary=512):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(layers)])
        self.head = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def squared(net, x, y):
    return ((net(x) - y) ** 2).mean()


def likelihood(net, tokens, targets):
    return optax.softmax_cross_entropy_with_integer_labels(net(tokens), targets).mean()


MAKE = {
    "batch_norm": lambda: Net(nnx.BatchNorm, nnx.Rngs(0)),
    "sync_batch_norm": lambda: jaxpar.convert_sync_batchnorm(Net(nnx.BatchNorm, nnx.Rngs(0))),
    "gpt": lambda: GPT(nnx.Rngs(0)),
}


def shapes(net: str, rows: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """A batch for a net."""
    if net == "gpt":
        tokens = jax.ShapeDtypeStruct((rows, 64), jnp.int32)
        return tokens, tokens
    x, y = ((rows, IN), (rows, OUT))
    return jax.ShapeDtypeStruct(x, jnp.float32), jax.ShapeDtypeStruct(y, jnp.float32)


def trained(net: str):
    """Its loss, and Adam for a net without values."""
    return likelihood if net == "gpt" else squared, optax.adam(1e-3)


def step_of(
    kind, net="batch_norm", hosts=1, devices=8, hook=None, card="h100", tx=None, shard=False, **options
):
    """A training step of a wrapped net on H100s."""
    options = dict(options)
    extra = ({} if hook is None else {"comm_hook": hook}) | ({"shard_optimizer": True} if shard else {})
    gpus = jaxpar.topology(card, hosts=hosts, devices=devices)
    wrapped = WRAPPERS[kind](nnx.eval_shape(MAKE[net]), gpus, **extra)
    loss_fn, adam = trained(net)
    tx = tx or adam
    optimizer = nnx.eval_shape(lambda net: nnx.Optimizer(net, tx, wrt=nnx.Param), wrapped)
    return jaxpar.train_step(wrapped, optimizer, loss_fn, **options)


@functools.cache
def compiled(kind: str, rows: int = 64, net: str = "batch_norm", **options):
    """The compiled program of a call that updates."""
    return step_of(kind, net, **options).lower(*shapes(net, rows)).compile()


@functools.cache
def program(kind: str, rows: int = 64, net: str = "batch_norm", **options) -> Program:
    """The same as the reader has it."""
    return read(compiled(kind, rows, net, **options).as_text())
