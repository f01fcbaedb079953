"""What mnist_linen_plain.py does, with its batches shared out over all devices."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, digits, main
from flax.training import train_state

import jaxpar


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        for features in (8, 16):
            x = nn.relu(nn.Conv(features, (3, 3))(x))
            x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))
        return nn.Dense(10)(x)


@jax.jit
def apply_model(state, images, labels):
    def loss_fn(params):
        logits = state.apply_fn({"params": params}, images)
        one_hot = jax.nn.one_hot(labels, 10, dtype=logits.dtype)
        return optax.softmax_cross_entropy(logits, one_hot).mean(), logits

    (loss, logits), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return gradients, loss, jnp.mean(logits.argmax(-1) == labels)


@jax.jit
def update_model(state, gradients):
    return state.apply_gradients(grads=gradients)


def train(dtype="float32"):
    images, labels = digits()
    cnn = jaxpar.DataParallel(CNN())
    params = cast(cnn.init(jax.random.key(0), images[:1])["params"], dtype)
    state = train_state.TrainState.create(apply_fn=cnn.apply, params=params, tx=optax.sgd(0.02, 0.9))
    for batch in batches(32, images, labels, dtype=dtype):
        gradients, loss, _ = apply_model(state, *batch)
        state = update_model(state, gradients)
        yield loss, state.params


if __name__ == "__main__":
    main(train)
