"""A line, one layer trained. Structure: equinox/docs/examples/frozen_layer.ipynb (partition, combine)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import batches, main


def train(dtype="float32"):
    inputs = np.random.RandomState(0).randn(200, 1)
    model = eqx.nn.MLP(1, 1, width_size=8, depth=1, key=jax.random.PRNGKey(0), dtype=dtype)
    filter_spec = jax.tree.map(lambda _: False, model)
    filter_spec = eqx.tree_at(
        lambda tree: (tree.layers[-1].weight, tree.layers[-1].bias), filter_spec, replace=(True, True)
    )

    @eqx.filter_jit
    def make_step(model, x, y, opt_state):
        @eqx.filter_value_and_grad
        def loss(diff_model, static_model, x, y):
            model = eqx.combine(diff_model, static_model)
            return jnp.mean((y - jax.vmap(model)(x)) ** 2)

        diff_model, static_model = eqx.partition(model, filter_spec)
        value, grads = loss(diff_model, static_model, x, y)
        updates, opt_state = optim.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, value

    optim = optax.sgd(3e-2)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    for x, y in batches(30, inputs, 5 * inputs - 2, dtype=dtype):
        model, opt_state, value = make_step(model, x, y, opt_state)
        yield value, model


if __name__ == "__main__":
    main(train)
