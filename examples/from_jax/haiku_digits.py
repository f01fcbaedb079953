"""What haiku_digits_plain.py does, with its batches shared out over all devices."""

from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, digits, main

import jaxpar


class TrainingState(NamedTuple):
    params: hk.Params
    average: hk.Params
    opt_state: optax.OptState


def net_fn(images):
    return hk.Sequential([hk.Flatten(), hk.nets.MLP([64, 32, 10])])(images)


def train(dtype="float32"):
    network = hk.without_apply_rng(hk.transform(net_fn))
    apply = jaxpar.DataParallel(network.apply)
    tx = optax.adam(1e-3, eps=1e-6)

    def loss_fn(params, images, labels):
        logits = apply(jaxpar.replicated(params), images)
        penalty = 0.5 * sum((x**2).sum() for x in jax.tree.leaves(params))
        log_likelihood = (jax.nn.one_hot(labels, 10) * jax.nn.log_softmax(logits)).sum()
        return -log_likelihood / len(labels) + 1e-4 * penalty

    @jax.jit
    def update(state, images, labels):
        loss, gradients = jax.value_and_grad(loss_fn)(state.params, images, labels)
        updates, opt_state = tx.update(gradients, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        average = optax.incremental_update(params, state.average, step_size=0.001)
        return TrainingState(params, average, opt_state), loss

    images, labels = digits(14)
    params = cast(network.init(jax.random.key(0), jnp.asarray(images[:1])), dtype)
    state = TrainingState(params, params, tx.init(params))
    for batch in batches(32, images, labels, dtype=dtype):
        state, loss = update(state, *batch)
        yield loss, (state.params, state.average)


if __name__ == "__main__":
    main(train)
