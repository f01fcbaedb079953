"""A parabola. Structure: flax/examples/nnx_toy_examples/02_lifted_transforms.py (nnx.cached_partial)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import batches, cast, main
from flax import nnx


class Linear(nnx.Module):
    def __init__(self, inputs, outputs, *, rngs):
        self.w = nnx.Param(jax.random.uniform(rngs.params(), (inputs, outputs)))
        self.b = nnx.Param(jnp.zeros((outputs,)))

    def __call__(self, x):
        return x @ self.w[...] + self.b[...]


class Count(nnx.Variable):
    pass


class MLP(nnx.Module):
    def __init__(self, inputs, hidden, outputs, *, rngs):
        self.count = Count(jnp.array(0))
        self.linear1 = Linear(inputs, hidden, rngs=rngs)
        self.linear2 = Linear(hidden, outputs, rngs=rngs)

    def __call__(self, x):
        self.count[...] += 1
        return self.linear2(jax.nn.relu(self.linear1(x)))


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss_fn(model):
        return ((y - model(x)) ** 2).mean()

    loss, gradients = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, gradients)
    return loss


def train(dtype="float32"):
    model = MLP(1, 32, 1, rngs=nnx.Rngs(0))
    nnx.update(model, cast(nnx.state(model), dtype))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
    step = nnx.cached_partial(train_step, model, optimizer)
    x = np.linspace(0, 1, 100)[:, None]
    for batch in batches(32, x, 0.8 * x**2 + 0.1, dtype=dtype):
        yield step(*batch), model


if __name__ == "__main__":
    main(train)
