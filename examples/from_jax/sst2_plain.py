"""A classifier of sentences. Structure: flax/examples/sst2 (BiLSTM, attention, sums of metrics by batch)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, main, sentences
from flax.training.train_state import TrainState


class Attention(nn.Module):
    size: int

    @nn.compact
    def __call__(self, keys, mask):
        energy = nn.tanh(nn.Dense(self.size, use_bias=False)(keys))
        scores = nn.Dense(1, use_bias=False)(energy).squeeze(-1)
        return nn.softmax(jnp.where(mask, scores, -jnp.inf))


class TextClassifier(nn.Module):
    size: int = 16
    vocabulary: int = 32
    dropout: float = 0.5
    dtype: Any = "float32"

    @nn.compact
    def __call__(self, tokens, lengths, deterministic=True):
        drop = nn.Dropout(self.dropout, deterministic=deterministic)
        x = drop(nn.Embed(self.vocabulary, self.size)(tokens))
        cells = [nn.OptimizedLSTMCell(self.size, param_dtype=self.dtype) for _ in range(2)]
        x = drop(nn.Bidirectional(*map(nn.RNN, cells))(x, seq_lengths=lengths))
        weights = Attention(self.size)(x, jnp.arange(tokens.shape[1]) < lengths[:, None])
        x = drop((weights[:, None] @ x).squeeze(1))
        return nn.Dense(1, use_bias=False)(nn.tanh(nn.Dense(self.size)(x)))


def compute_metrics(logits, labels):
    loss = optax.sigmoid_binary_cross_entropy(logits, labels)
    correct = (logits >= 0) == labels
    return {"loss": loss.sum(), "accuracy": correct.sum(), "count": len(logits)}


def train_step(state, tokens, lengths, labels, rngs):
    rngs = {name: jax.random.fold_in(key, state.step) for name, key in rngs.items()}

    def loss_fn(params):
        logits = state.apply_fn({"params": params}, tokens, lengths, deterministic=False, rngs=rngs)
        return optax.sigmoid_binary_cross_entropy(logits, labels).mean(), logits

    (_, logits), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradients), compute_metrics(logits, labels)


def train(dtype="float32", dropout=0.5):
    model = TextClassifier(dropout=dropout, dtype=dtype)
    tokens = sentences(512, 12, 32)
    lengths, labels = (tokens > 0).sum(1), (tokens[:, :1] < tokens[:, 1:2]).astype(dtype)
    params = cast(model.init(jax.random.key(0), tokens[:2], lengths[:2])["params"], dtype)
    tx = optax.chain(optax.sgd(0.1, 0.9), optax.add_decayed_weights(3e-6))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    step, rngs = jax.jit(train_step), {"dropout": jax.random.key(1)}
    for batch in batches(32, tokens, lengths, labels, dtype=dtype):
        state, metrics = step(state, *batch, rngs)
        yield metrics["loss"] / metrics["count"], state.params


if __name__ == "__main__":
    main(train)
