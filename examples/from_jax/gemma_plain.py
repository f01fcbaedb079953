"""A Transformer and its activations. Structure: flax/examples/gemma (nnx.capture)."""

import jax
import jax.numpy as jnp
import optax
from common import batches, cast, main, sentences
from flax import nnx


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.norm1, self.norm2 = nnx.RMSNorm(width, rngs=rngs), nnx.RMSNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, width, use_bias=False, decode=False, rngs=rngs)
        self.gate = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, use_bias=False, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.norm1(x), mask=mask)
        y = self.norm2(x)
        self.sow(nnx.Intermediate, "mlp", y)
        return x + self.down(nnx.gelu(self.gate(y)) * self.up(y))


class Transformer(nnx.Module):
    def __init__(self, vocabulary, width, rngs):
        self.embedder = nnx.Embed(vocabulary, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(2)])
        self.norm = nnx.RMSNorm(width, rngs=rngs)

    def __call__(self, tokens, mask):
        x = self.embedder(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.embedder.attend(self.norm(x))


def weighted_cross_entropy(logits, targets, weights):
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, targets) * weights
    return loss.sum(1) * len(loss) / weights.sum()  # of each sentence


@nnx.jit
def train_step(model, optimizer, metrics, tokens):
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    weights = (targets > 0).astype(jnp.float32)
    mask = (inputs > 0)[:, None, None] & jnp.tri(inputs.shape[1], dtype=bool)

    def loss_fn(model):
        logits, intermediates = nnx.capture(model, nnx.Intermediate)(inputs, mask)
        losses = weighted_cross_entropy(logits, targets, weights)
        return losses.mean(), (losses, intermediates)

    (loss, (losses, intermediates)), gradients = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, gradients)
    metrics.update(loss=losses)
    return loss, jax.tree.map(jnp.max, intermediates)


def train(dtype="float32"):
    model = Transformer(32, 32, nnx.Rngs(0))
    nnx.update(model, cast(nnx.state(model), dtype))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3, 0.9, 0.98, eps=1e-6), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    nnx.update(metrics, cast(nnx.state(metrics), dtype))
    for (tokens,) in batches(32, sentences(512, 13, 32)):
        loss, _ = train_step(model, optimizer, metrics, tokens)
        yield loss, model


if __name__ == "__main__":
    main(train)
