"""A small Gemma on packed sentences. Structure: flax/examples/gemma (fsdp and tensor axes, nnx.capture)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import batches, cast, main, sentences
from flax import nnx

VOCABULARY, LENGTH, WIDTH, HEADS, GROUPS, HEAD, WINDOW = 32, 16, 32, 4, 2, 8, 4


class Sharding(NamedTuple):
    """Mesh axes by what is split over them."""

    rows: str | None = "fsdp"
    fsdp: str | None = "fsdp"
    tensor: str | None = "tensor"

    def __call__(self, *keys):
        return jax.P(*(getattr(self, key) if key else None for key in keys))

    def hidden(self, *keys):
        """Return the split of a layer's output, which is the compiler's where rows are not split."""
        return self(*keys) if self.rows else None


class RMSNorm(nnx.Module):
    def __init__(self, width, rngs, **metadata):
        self.scale = nnx.Param(nnx.initializers.zeros(rngs.params(), (width,)), **metadata)

    def __call__(self, x):
        return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1 + self.scale)


def rotated(x, positions, wavelength):
    """Rotate the halves [batch, length, heads, size / 2] of x by their positions."""
    angles = positions[..., None, None] / wavelength ** (jnp.arange(HEAD // 2) / (HEAD // 2))
    sin, cos = jnp.sin(angles).astype(x.dtype), jnp.cos(angles).astype(x.dtype)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nnx.Module):
    def __init__(self, window, sharding, rngs):
        def einsum(formula, shape, *keys):
            metadata = {"out_sharding": sharding(*keys)}
            return nnx.Einsum(formula, shape, kernel_metadata=metadata, rngs=rngs)

        self.query = einsum("btd,ndh->btnh", (HEADS, WIDTH, HEAD), "tensor", "fsdp", None)
        self.keys = einsum("btd,ckdh->cbtkh", (2, GROUPS, WIDTH, HEAD), None, "tensor", "fsdp", None)
        self.out = einsum("btnh,nhd->btd", (HEADS, HEAD, WIDTH), "tensor", None, "fsdp")
        self.query_norm, self.key_norm = RMSNorm(HEAD, rngs), RMSNorm(HEAD, rngs)
        self.window, self.sharding = window, sharding

    def __call__(self, x, positions, mask):
        q = self.query(x, out_sharding=self.sharding.hidden("rows", None, "tensor", None))
        k, v = self.keys(x, out_sharding=self.sharding.hidden(None, "rows", None, "tensor", None))
        wavelength = 1e4 if self.window else 1e6
        q = rotated(self.query_norm(q), positions, wavelength) / HEAD**0.5
        k = rotated(self.key_norm(k), positions, wavelength)
        scores = jnp.einsum("btkgh,bskh->btkgs", q.reshape(*q.shape[:2], GROUPS, -1, HEAD), k)
        if self.window:
            ones = jnp.ones_like(mask)
            mask = mask & jnp.triu(ones, 1 - self.window) & jnp.tril(ones, self.window - 1)
        weights = jax.nn.softmax(jnp.where(mask[:, :, None, None], scores, -1e30))
        y = jnp.einsum("btkgs,bskh->btkgh", weights, v).reshape(q.shape)
        return self.out(y, out_sharding=self.sharding.hidden("rows", None, "tensor"))


class FeedForward(nnx.Module):
    def __init__(self, sharding, rngs):
        def linear(inputs, outputs, *keys):
            metadata = {"out_sharding": sharding(*keys)}
            return nnx.Linear(inputs, outputs, use_bias=False, kernel_metadata=metadata, rngs=rngs)

        self.gate, self.up = (linear(WIDTH, 2 * WIDTH, "fsdp", "tensor") for _ in range(2))
        self.down = linear(2 * WIDTH, WIDTH, "tensor", "fsdp")
        self.sharding = sharding

    def __call__(self, x):
        split = self.sharding.hidden("rows", None, "tensor")
        x = nnx.gelu(self.gate(x, out_sharding=split)) * self.up(x, out_sharding=split)
        return self.down(x, out_sharding=split)


class Block(nnx.Module):
    def __init__(self, window, dropout, sharding, rngs):
        split = sharding("tensor")
        self.norm1, self.norm2 = (RMSNorm(WIDTH, rngs, out_sharding=split) for _ in range(2))
        self.attention = Attention(window, sharding, rngs)
        self.mlp = FeedForward(sharding, rngs)
        self.dropout = nnx.Dropout(dropout)

    def __call__(self, x, positions, mask, rngs):
        x = x + self.attention(self.norm1(x), positions, mask)
        self.sow(nnx.Intermediate, "after_attention", x)
        return self.dropout(x + self.mlp(self.norm2(x)), rngs=rngs)


class Transformer(nnx.Module):
    def __init__(self, dtype, dropout, sharding, rngs):
        metadata = {"out_sharding": sharding("tensor", "fsdp")}
        self.embed = nnx.Embed(VOCABULARY, WIDTH, param_dtype=dtype, embedding_metadata=metadata, rngs=rngs)
        self.blocks = nnx.List(Block(window, dropout, sharding, rngs) for window in (WINDOW, None))
        self.norm = RMSNorm(WIDTH, rngs, out_sharding=sharding("tensor"))
        self.sharding = sharding

    def __call__(self, tokens, positions, mask, rngs):
        split = self.sharding.hidden("rows", None, "tensor")
        x = self.embed(tokens, out_sharding=split) * WIDTH**0.5
        for block in self.blocks:
            x = block(x, positions, mask, rngs)
        logits = self.embed.attend(self.norm(x), out_sharding=split)
        return 30 * jnp.tanh(logits / 30)


def train_step(model, optimizer, rngs, metrics, inputs, positions, segments, targets):
    weights = inputs > 0
    mask = weights[:, None] & jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    mask = mask & (segments[:, :, None] == segments[:, None])

    def loss_fn(model, rngs):
        logits, intermediates = nnx.capture(model, nnx.Intermediate)(inputs, positions, mask, rngs)
        chosen = jax.nn.one_hot(targets, VOCABULARY, dtype=logits.dtype)
        loss = -(chosen * nnx.log_softmax(logits)).sum(-1) * weights
        by_row = loss.sum(1) * len(loss) / weights.sum()
        return by_row.mean(), (by_row, logits, intermediates)

    gradient_of = nnx.value_and_grad(loss_fn, has_aux=True)
    (loss, (by_row, logits, intermediates)), gradients = gradient_of(model, rngs.fork())
    optimizer.update(model, gradients)
    metrics.update(loss=by_row, logits=logits, labels=targets, mask={"accuracy": weights})
    return loss, intermediates


def packed(text):
    """Sentences of half the length, two in a row, with their positions and their numbers in the row."""
    inputs, targets = (each.reshape(-1, LENGTH) for each in (text[:, :-1], text[:, 1:]))
    positions = np.tile(np.arange(LENGTH // 2), (len(inputs), 2))
    return inputs, positions, np.repeat([[0, 1]], LENGTH // 2, 1).repeat(len(inputs), 0), targets


def train(dtype="float32", dropout=0.1):
    mesh = jax.make_mesh((2, 2), ("fsdp", "tensor"))
    rows = jax.NamedSharding(mesh, jax.P("fsdp"))

    def schedule(count):
        count = jnp.asarray(count, dtype)
        return 3e-3 * jnp.minimum(count / 4, 2 / jnp.sqrt(jnp.maximum(count, 4)))

    with jax.set_mesh(mesh):
        model = Transformer(dtype, dropout, Sharding(), nnx.Rngs(0))
        nnx.update(model, cast(nnx.state(model), dtype))
        tx = optax.adamw(schedule, b2=0.98, eps=1e-9, weight_decay=0.1)
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    nnx.update(metrics, cast(nnx.state(metrics), dtype))
    rngs = nnx.Rngs(params=0, dropout=0)
    step = nnx.jit(train_step, donate_argnames=("model", "optimizer"))
    for batch in batches(16, *packed(sentences(512, LENGTH // 2 + 1, VOCABULARY))):
        with jax.set_mesh(mesh):
            loss, _ = step(model, optimizer, rngs, metrics, *jax.device_put(batch, rows))
        yield loss, model


if __name__ == "__main__":
    main(train)
