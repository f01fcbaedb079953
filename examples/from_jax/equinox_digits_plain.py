"""Digits with an Equinox module. Structure: equinox/docs/examples/mnist.ipynb (vmap, filter_jit)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, digits, main


class CNN(eqx.Module):
    layers: list

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Conv2d(1, 3, kernel_size=3, key=keys[0]),
            eqx.nn.MaxPool2d(kernel_size=2),
            jax.nn.relu,
            jnp.ravel,
            eqx.nn.Linear(363, 32, key=keys[1]),
            jax.nn.sigmoid,
            eqx.nn.Linear(32, 10, key=keys[2]),
        ]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def loss_fn(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()


def train(dtype="float32"):
    model = CNN(jax.random.key(0))
    arrays, static = eqx.partition(model, eqx.is_array)
    model = eqx.combine(cast(arrays, dtype), static)
    tx = optax.adamw(3e-4)
    opt_state = tx.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def make_step(model, opt_state, x, y):
        loss, gradients = eqx.filter_value_and_grad(loss_fn)(model, x, y)
        updates, opt_state = tx.update(gradients, opt_state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), opt_state, loss

    images, labels = digits(14)
    for x, y in batches(32, images.transpose(0, 3, 1, 2), labels, dtype=dtype):
        model, opt_state, loss = make_step(model, opt_state, x, y)
        yield loss, eqx.filter(model, eqx.is_array)


if __name__ == "__main__":
    main(train)
