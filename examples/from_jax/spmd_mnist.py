"""What spmd_mnist_plain.py does, with a step of jaxpar in place of pmap."""

import itertools

import jax.numpy as jnp
import numpy as np
import optax
from common import batches, cast, digits, main
from jax.scipy.special import logsumexp

import jaxpar


def random_params(scale, sizes):
    random = np.random.RandomState(0)
    return [(scale * random.randn(m, n), scale * random.randn(n)) for m, n in itertools.pairwise(sizes)]


def predict(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    logits = x @ params[-1][0] + params[-1][1]
    return logits - logsumexp(logits, axis=1, keepdims=True)


def loss_fn(net, x, targets):
    return -(net(x) * targets).sum(1).mean()


def train(dtype="float32"):
    images, labels = digits(14)
    params = cast(random_params(0.1, [196, 64, 64, 10]), dtype)
    state = jaxpar.FunctionState.create(params, optax.sgd(0.1))
    update = jaxpar.train_step(jaxpar.DistributedDataParallel(predict), state, loss_fn)
    for batch in batches(32, images.reshape(-1, 196), np.eye(10)[labels], dtype=dtype):
        yield update(*batch), update.state.params


if __name__ == "__main__":
    main(train)
