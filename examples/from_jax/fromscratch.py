"""What fromscratch_plain.py does, with its batches shared out over all devices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from common import cast, digits, main
from jax.scipy.special import logsumexp

import jaxpar


def init_params(scale, sizes, rng):
    return [(scale * rng.randn(m, n), scale * rng.randn(n)) for m, n in itertools.pairwise(sizes)]


def predict(params, inputs):
    x = inputs
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    logits = x @ w + b
    return logits - logsumexp(logits, axis=1, keepdims=True)


def train(dtype="float32"):
    apply = jaxpar.DataParallel(predict)

    def loss(params, batch):
        inputs, targets = batch
        return -jnp.mean(jnp.sum(apply(jaxpar.replicated(params), inputs) * targets, axis=1))

    @jax.jit
    def update(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        return value, [(w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(params, grads, strict=True)]

    images, labels = digits(8)
    images, labels = images[:150].reshape(150, -1).astype(dtype), np.eye(10, dtype=dtype)[labels[:150]]
    rng = np.random.RandomState(0)

    def data_stream():
        while True:
            perm = rng.permutation(150)
            for i in range(5):
                index = perm[i * 32 : (i + 1) * 32]
                yield images[index], labels[index]

    params = cast(init_params(0.1, [64, 32, 32, 10], np.random.RandomState(0)), dtype)
    for batch in data_stream():
        value, params = update(params, batch)
        yield value, params


if __name__ == "__main__":
    main(train)
