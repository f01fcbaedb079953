"""A parabola. Structure: flax/examples/nnx_toy_examples/03_train_state.py (NNX split into a TrainState)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import batches, cast, main
from flax import nnx
from flax.training import train_state


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


class TrainState(train_state.TrainState):
    counts: nnx.State
    graphdef: nnx.GraphDef


@jax.jit
def train_step(state, x, y):
    def loss_fn(params):
        model = nnx.merge(state.graphdef, params, state.counts, copy=True)
        loss = ((y - model(x)) ** 2).mean()
        return loss, nnx.state(model, Count)

    (loss, counts), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradients, counts=counts), loss


def train(dtype="float32"):
    model = MLP(1, 32, 1, rngs=nnx.Rngs(0))
    graphdef, params, counts = nnx.split(model, nnx.Param, Count)
    state = TrainState.create(
        apply_fn=None, graphdef=graphdef, params=cast(params, dtype), tx=optax.sgd(0.1), counts=counts
    )
    x = np.linspace(0, 1, 100)[:, None]
    for batch in batches(32, x, 0.8 * x**2 + 0.1, dtype=dtype):
        state, loss = train_step(state, *batch)
        yield loss, (state.params, state.counts)


if __name__ == "__main__":
    main(train)
