"""Digits from scratch. Structure: jax/examples/spmd_mnist_classifier_fromscratch.py (pmap)."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from common import batches, cast, digits, main
from jax.scipy.special import logsumexp


def random_params(scale, sizes):
    random = np.random.RandomState(0)
    return [(scale * random.randn(m, n), scale * random.randn(n)) for m, n in itertools.pairwise(sizes)]


def predict(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    logits = x @ params[-1][0] + params[-1][1]
    return logits - logsumexp(logits, axis=1, keepdims=True)


def loss_fn(params, x, targets):
    return -(predict(params, x) * targets).sum(1).mean()


@partial(jax.pmap, axis_name="batch")
def update(params, x, targets):
    loss, gradients = jax.value_and_grad(loss_fn)(params, x, targets)
    loss, gradients = jax.lax.pmean((loss, gradients), "batch")
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), loss


def train(dtype="float32"):
    images, labels = digits(14)
    n = jax.device_count()
    params = cast(random_params(0.1, [196, 64, 64, 10]), dtype)
    params = jax.tree.map(lambda x: np.broadcast_to(x, (n, *x.shape)), params)
    for batch in batches(32, images.reshape(-1, 196), np.eye(10)[labels], dtype=dtype):
        params, loss = update(params, *(x.reshape(n, -1, *x.shape[1:]) for x in batch))
        yield loss[0], jax.tree.map(lambda x: x[0], params)


if __name__ == "__main__":
    main(train)
