"""A Transformer on padded sentences. Structure: flax/examples/lm1b (jit with shardings, weights)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, main, sentences
from flax.training.train_state import TrainState


class Block(nn.Module):
    heads: int = 2
    dropout: float = 0.1

    @nn.compact
    def __call__(self, x, mask, train):
        y = nn.MultiHeadDotProductAttention(self.heads, use_bias=False)(nn.LayerNorm()(x), mask=mask)
        x = x + nn.Dropout(self.dropout, deterministic=not train)(y)
        y = nn.Dense(64)(nn.LayerNorm()(x))
        return x + nn.Dropout(self.dropout, deterministic=not train)(nn.Dense(x.shape[-1])(nn.relu(y)))


class TransformerLM(nn.Module):
    vocabulary: int = 32
    width: int = 32
    dropout: float = 0.1

    @nn.compact
    def __call__(self, tokens, train=True):
        mask = nn.combine_masks(nn.make_attention_mask(tokens > 0, tokens > 0), nn.make_causal_mask(tokens))
        x = nn.Embed(self.vocabulary, self.width)(jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1])
        angle = jnp.arange(tokens.shape[1])[:, None] / 100 ** (jnp.arange(self.width // 2) / self.width * 2)
        x = x + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(x.dtype)
        for _ in range(2):
            x = Block(dropout=self.dropout)(x, mask, train)
        return nn.Dense(self.vocabulary)(nn.LayerNorm()(x))


def weighted_cross_entropy(logits, targets, weights):
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return (loss * weights).sum(), weights.sum()


def train_step(state, tokens, dropout_key):
    weights = jnp.where(tokens > 0, 1.0, 0.0)
    dropout_key = jax.random.fold_in(dropout_key, state.step)

    def loss_fn(params):
        logits = state.apply_fn({"params": params}, tokens, rngs={"dropout": dropout_key})
        loss, count = weighted_cross_entropy(logits, tokens, weights)
        return loss / count, logits

    (loss, _), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradients), loss


def train(dtype="float32", dropout=0.1):
    model = TransformerLM(dropout=dropout)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (jax.sharding.AxisType.Auto,))
    everywhere, rows = jax.NamedSharding(mesh, jax.P()), jax.NamedSharding(mesh, jax.P("data"))
    params = cast(model.init(jax.random.key(0), jnp.ones((1, 12), jnp.int32), False)["params"], dtype)

    def schedule(count):
        count = jnp.asarray(count, dtype)
        return 3e-3 * jnp.minimum(count / 4, 2 / jnp.sqrt(jnp.maximum(count, 4)))

    tx = optax.adamw(schedule, b2=0.98, eps=1e-9, weight_decay=0.1)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    step = jax.jit(train_step, in_shardings=(everywhere, rows, None), out_shardings=everywhere)
    for (tokens,) in batches(16, sentences(512, 12, 32)):
        state, loss = step(state, tokens, jax.random.key(1))
        yield loss, state.params


if __name__ == "__main__":
    main(train)
