"""A sine. Structure: flax/examples/nnx_toy_examples/hijax_basic.py (modules as arguments of jax.jit)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import batches, cast, main
from flax import nnx


class Linear(nnx.Module):
    def __init__(self, inputs, outputs, *, rngs):
        self.w = nnx.Param(rngs.params.uniform((inputs, outputs)))
        self.b = nnx.Param(jnp.zeros((outputs,)))

    def __call__(self, x):
        return x @ self.w + self.b[None]


class Count(nnx.Variable):
    pass


class MLP(nnx.Module):
    def __init__(self, inputs, hidden, outputs, *, rngs):
        self.count = Count(jnp.array(0))
        self.linear1 = Linear(inputs, hidden, rngs=rngs)
        self.linear2 = Linear(hidden, outputs, rngs=rngs)

    def __call__(self, x):
        self.count[...] += 1
        return self.linear2(jax.nn.relu(self.linear1(x)) * 0.5)


@jax.jit
def train_step(model, optimizer, x, y):
    graphdef, params, others = nnx.split(model, nnx.Param, ...)

    def loss_fn(params):
        model = nnx.merge(graphdef, params, others)
        return ((y - model(x)) ** 2).mean()

    loss, gradients = jax.value_and_grad(loss_fn)(nnx.with_vars(params, hijax=False))
    optimizer.update(model, gradients)
    return loss


def train(dtype="float32"):
    with nnx.var_defaults(hijax=True):
        model = MLP(1, 32, 1, rngs=nnx.Rngs(0))
        nnx.update(model, cast(nnx.state(model), dtype))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    x = np.linspace(-np.pi, np.pi, 100)[:, None]
    y = 0.8 * np.sin(x) + 0.1 + np.random.RandomState(0).normal(0, 0.1, x.shape)
    for batch in batches(32, x, y, dtype=dtype):
        yield train_step(model, optimizer, *batch), model


if __name__ == "__main__":
    main(train)
