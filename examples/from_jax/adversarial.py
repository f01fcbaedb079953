"""What adversarial_plain.py does, with its batches shared out over all devices."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, digits, main

import jaxpar


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        for features in (4, 8):
            x = nn.relu(nn.Conv(features, (3, 3))(x))
            x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(32)(x.reshape(len(x), -1)))
        return nn.Dense(10)(x)


def train(dtype="float32"):
    net = jaxpar.DataParallel(CNN())
    tx = optax.adam(1e-3)

    @jax.jit
    def loss_fn(params, penalty, images, labels):
        logits = net.apply({"params": params}, images)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss + 0.5 * penalty * optax.tree.norm(params, squared=True)

    @jax.jit
    def attack(images, labels, params, size=0.01, steps=4):
        """Add to each pixel at most `size`, so that the loss grows."""
        change, gradient_of = jnp.zeros_like(images), jax.grad(loss_fn, argnums=2)
        for _ in range(steps):
            change += 2 * size / steps * jnp.sign(gradient_of(params, 0.0, images + change, labels))
            change = jnp.clip(change, -size, size)
        return jnp.clip(images + change, 0, 1)

    @jax.jit
    def train_step(params, opt_state, images, labels):
        attacked = attack(images, labels, params)
        loss, gradients = jax.value_and_grad(loss_fn)(params, 1e-4, attacked, labels)
        updates, opt_state = tx.update(gradients, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    images, labels = digits(14)
    params = cast(net.init(jax.random.key(0), images[:1])["params"], dtype)
    opt_state = tx.init(params)
    for batch in batches(32, images, labels, dtype=dtype):
        params, opt_state, loss = train_step(params, opt_state, *batch)
        yield loss, params


if __name__ == "__main__":
    main(train)
