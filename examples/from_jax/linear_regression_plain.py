"""One row. Structure: flax/examples/linen_design_test/linear_regression.py (functions of params)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from common import cast, main


def train(dtype="float32"):
    x, y = jnp.ones((1, 10), dtype), jnp.ones((5,), dtype)
    model = nn.Dense(5)

    @jax.jit
    def predict(params):
        return model.apply({"params": params}, x)

    @jax.jit
    def loss_fn(params):
        return jnp.abs(y - predict(params)).mean()

    @jax.jit
    def init_params(key):
        return model.init({"params": key}, x)["params"]

    params = cast(init_params(jax.random.key(42)), dtype)
    while True:
        loss, gradients = jax.value_and_grad(loss_fn)(params)
        params = jax.tree.map(lambda w, g: w - 0.03 * g, params, gradients)
        yield loss, params


if __name__ == "__main__":
    main(train)
