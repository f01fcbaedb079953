"""Sines of random numbers. Structure: equinox/docs/examples/stateful.ipynb (BatchNorm, SpectralNorm)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import batches, cast, main


class Net(eqx.Module):
    first_norm: eqx.nn.BatchNorm
    spectral: eqx.nn.SpectralNorm
    second_norm: eqx.nn.BatchNorm
    mlp: eqx.nn.MLP

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.first_norm = eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")
        linear = eqx.nn.Linear(3, 8, key=keys[0])
        self.spectral = eqx.nn.SpectralNorm(linear, weight_name="weight", key=keys[1])
        self.second_norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
        self.mlp = eqx.nn.MLP(8, 3, 8, depth=1, key=keys[2])

    def __call__(self, x, state):
        x, state = self.first_norm(x, state)
        x, state = self.spectral(x, state)
        x, state = self.second_norm(jax.nn.relu(x), state)
        return self.mlp(jax.nn.relu(x)), state


def loss_fn(model, state, x, y):
    forward = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    outputs, state = forward(x, state)
    return jnp.mean((outputs - y) ** 2), state


def train(dtype="float32"):
    model, state = eqx.nn.make_with_state(Net)(jax.random.key(0))
    arrays, static = eqx.partition(model, eqx.is_array)
    model, state = eqx.combine(cast(arrays, dtype), static), cast(state, dtype)
    tx = optax.adam(3e-4)
    opt_state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def make_step(model, state, opt_state, x, y):
        gradient_of = eqx.filter_value_and_grad(loss_fn, has_aux=True)
        (loss, state), gradients = gradient_of(model, state, x, y)
        updates, opt_state = tx.update(gradients, opt_state)
        return eqx.apply_updates(model, updates), state, opt_state, loss

    numbers = np.random.RandomState(0).randn(400, 3)
    for x, y in batches(60, numbers, np.sin(numbers) + 1, dtype=dtype):
        model, state, opt_state, loss = make_step(model, state, opt_state, x, y)
        yield loss, (eqx.filter(model, eqx.is_array), state)


if __name__ == "__main__":
    main(train)
