"""A parabola on a mesh. Structure: flax/examples/nnx_toy_examples/10_fsdp_and_optimizer.py (its own SGD).

The example writes `sharding_metadata`, which Flax 0.12 keeps and does not act on; here it is `out_sharding`,
which splits the parameters over "model". w2 is split along its rows, because it has one column.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from common import batches, cast, main
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass(frozen=True)
class MeshRules:
    embed: str | None = None
    mlp: str | None = "model"
    data: str | None = "data"

    def __call__(self, *keys):
        return tuple(getattr(self, key) for key in keys)


mesh_rules = MeshRules()


class MLP(nnx.Module):
    def __init__(self, inputs, hidden, outputs, rngs):
        init = nnx.initializers.lecun_normal()
        self.w1 = nnx.Param(init(rngs.params(), (inputs, hidden)), out_sharding=mesh_rules("embed", "mlp"))
        self.b1 = nnx.Param(jnp.zeros((hidden,)), out_sharding=mesh_rules("mlp"))
        self.w2 = nnx.Param(init(rngs.params(), (hidden, outputs)), out_sharding=mesh_rules("mlp", "embed"))

    def __call__(self, x):
        return nnx.relu(x @ self.w1 + self.b1) @ self.w2


class SGDState(nnx.Variable):
    pass


class SGD(nnx.Pytree):
    def __init__(self, params, lr, decay):
        def zeros(variable):
            return SGDState(jnp.zeros_like(variable[...]), **variable.get_metadata())

        self.lr, self.decay = lr, decay
        self.params = nnx.data(params)
        self.momentum = nnx.data(jax.tree.map(zeros, params, is_leaf=is_variable))

    def update(self, gradients):
        def update(param, momentum, gradient):
            momentum[...] = self.decay * momentum[...] + (1 - self.decay) * gradient[...]
            param[...] -= self.lr * momentum[...]

        jax.tree.map(update, self.params, self.momentum, gradients, is_leaf=is_variable)


def is_variable(x):
    return isinstance(x, nnx.Variable)


@nnx.jit(static_argnums=0)
def create_model(dtype):
    model = MLP(1, 32, 1, rngs=nnx.Rngs(0))
    nnx.update(model, cast(nnx.state(model), dtype))
    return model, SGD(nnx.variables(model, nnx.Param), 0.05, decay=0.9)


def loss_fn(model, x, y):
    return ((y - model(x)) ** 2).mean()


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(gradients)
    return loss


def train(dtype="float32"):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        model, optimizer = create_model(dtype)
    x = np.linspace(-2, 2, 100)[:, None]
    y = 0.8 * x**2 + 0.1 + np.random.RandomState(0).normal(0, 0.1, x.shape)
    for batch in batches(32, x, y, dtype=dtype):
        batch = jax.device_put(batch, NamedSharding(mesh, P("data")))
        yield train_step(model, optimizer, *batch), model


if __name__ == "__main__":
    main(train)
