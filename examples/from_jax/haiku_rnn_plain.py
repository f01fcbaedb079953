"""An LSTM on symbols, time first. Structure: dm-haiku/examples/rnn/train.py (dynamic_unroll over [T, B])."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from common import cast, main, sentences


def unroll_net(tokens):
    core = hk.ResetCore(hk.LSTM(16))
    x = hk.Embed(20, 8)(tokens)
    x, _ = hk.dynamic_unroll(core, (x, tokens == 0), core.initial_state(tokens.shape[1]))
    return hk.BatchApply(hk.Linear(20))(x)


def train(dtype="float32"):
    model = hk.without_apply_rng(hk.transform(unroll_net))
    apply = model.apply

    def loss_fn(params, batch):
        logits = apply(params, batch["input"])
        log_probs = jax.nn.log_softmax(logits)
        one_hot = jax.nn.one_hot(batch["target"], 20, dtype=logits.dtype)
        return -jnp.sum(one_hot * log_probs) / batch["target"].size

    @jax.jit
    def update(state, batch):
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    tokens = sentences(96, 17, 20).T
    tx = optax.adam(1e-2)
    params = cast(model.init(jax.random.PRNGKey(0), tokens[:-1, :2]), dtype)
    state = (params, tx.init(params))
    step = 0
    while True:
        part = tokens[:, step % 6 * 16 : step % 6 * 16 + 16]
        step += 1
        state, loss = update(state, {"input": part[:-1], "target": part[1:]})
        yield loss, state[0]


if __name__ == "__main__":
    main(train)
