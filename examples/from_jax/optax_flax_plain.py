"""Digits with Flax and Optax alone. Structure: optax/examples/flax_example.ipynb (a loss with aux)."""

import jax
import jax.numpy as jnp
import optax
from common import batches, cast, digits, main
from flax import linen as nn


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(features=8, kernel_size=(3, 3))(x)
        x = nn.relu(x)
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(features=32)(x))
        return nn.Dense(features=10)(x)


def train(dtype="float32"):
    net = CNN()

    @jax.jit
    def predict(params, inputs):
        return net.apply({"params": params}, inputs)

    @jax.jit
    def loss_accuracy(params, data):
        inputs, labels = data
        logits = predict(params, inputs)
        loss = jnp.mean(optax.losses.softmax_cross_entropy_with_integer_labels(logits=logits, labels=labels))
        accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
        return loss, {"accuracy": accuracy}

    @jax.jit
    def update_model(state, data):
        params, opt_state = state
        (value, aux), grads = jax.value_and_grad(loss_accuracy, has_aux=True)(params, data)
        updates, opt_state = opt.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), value, aux

    images, labels = digits(14)
    params = cast(net.init(jax.random.key(0), jnp.ones((1, 14, 14, 1)))["params"], dtype)
    opt = optax.adam(1e-3)
    state = (params, opt.init(params))
    for data in batches(32, images, labels, dtype=dtype):
        state, value, aux = update_model(state, data)
        yield value, (state[0], aux["accuracy"])


if __name__ == "__main__":
    main(train)
