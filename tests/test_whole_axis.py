"""`jax.vmap(net, axis_name=)` around a DataParallel: its axis has the rows of all devices.

Law: outputs, gradients and a module's state are those of the module alone, for every number of rows.
"""

from __future__ import annotations

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpar
from jaxpar.errors import CollectiveError

RANDOM = np.random.RandomState(0)
X, W = RANDOM.randn(12, 3), RANDOM.randn(3, 3)
ROWS = 1, 2, 3, 7, 8, 12


@functools.partial(jax.tree_util.register_dataclass, data_fields=("w",), meta_fields=("function",))
@dataclasses.dataclass
class Row:
    """`function` of a row's product with w."""

    w: jax.Array
    function: object

    def __call__(self, x):
        return self.function(jnp.tanh(x @ self.w))


def nested(x):
    """A mean in a compiled function, a largest value in a loop, a sum in a condition."""
    mean = jax.jit(lambda x: jax.lax.pmean(x, "batch"))(x)
    total, _ = jax.lax.scan(lambda c, _: (c + jax.lax.pmax(x, "batch"), None), jnp.zeros(3), None, length=2)
    return mean * jax.lax.cond(x.size > 2, lambda x: jax.lax.psum(x, "batch"), lambda x: x, total + x)


REDUCTIONS = {
    "sum": lambda x: x * jax.lax.psum(x, "batch"),
    "mean": lambda x: x - jax.lax.pmean(x, "batch"),
    "mean of several": lambda x: sum(jax.lax.pmean((x, x**2), "batch")),
    "sum of what all rows share": lambda x: x + jax.lax.psum(jnp.ones(3), "batch"),
    "sum of a shared sum": lambda x: jax.lax.psum(jax.lax.psum(x, "batch"), "batch") * x,
    "number of rows": lambda x: x * jax.lax.axis_size("batch"),
    "integers": lambda x: x * jax.lax.psum((x > 0).astype(int), "batch"),
    "rematerialised": jax.checkpoint(lambda x: x * jnp.sin(jax.lax.psum(x, "batch"))),
}
EVEN_ONLY = {
    "largest": lambda x: x * jax.lax.pmax(x, "batch"),
    "smallest of what all rows share": lambda x: x * jax.lax.pmin(jnp.arange(3.0), "batch"),
    "nested": nested,
}


def both(net, x, out_axes=0):
    """Outputs and gradients by the module and by the rows."""

    def objective(net, x):
        outputs = jax.vmap(net, axis_name="batch", out_axes=out_axes)(x)
        weights = 1 + jnp.arange(outputs.size).reshape(outputs.shape)
        return (weights * outputs**2).sum(), outputs

    (_, outputs), gradients = jax.value_and_grad(objective, (0, 1), has_aux=True)(net, x)
    return [outputs, *jax.tree.leaves(gradients)]


def close(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_are_over_all_rows(name, rows, compiled):
    run = jax.jit(both) if compiled else both
    net = Row(jnp.asarray(W), REDUCTIONS[name])
    close(run(jaxpar.DataParallel(net, range(4)), X[:rows]), both(net, X[:rows]))


@pytest.mark.parametrize("name", EVEN_ONLY)
def test_largest_values_and_loops_with_equal_numbers_of_rows(name):
    net = Row(jnp.asarray(W), EVEN_ONLY[name])
    wrapped = jax.vmap(jaxpar.DataParallel(net, range(4)), axis_name="batch")
    close([wrapped(X)], [jax.vmap(net, axis_name="batch")(X)])  # JAX does not differentiate largest values
    if name != "smallest of what all rows share":
        with pytest.raises(CollectiveError, match="different numbers of rows"):
            wrapped(X[:7])


@pytest.mark.parametrize("rows", ROWS)
def test_what_all_rows_share_comes_out_once(rows):
    net = Row(jnp.asarray(W), lambda x: jax.lax.pmean(x**3, "batch"))
    got = both(jaxpar.DataParallel(net, range(4)), X[:rows], None)
    assert got[0].shape == (3,)
    close(got, both(net, X[:rows], None))


def test_float32():
    with jax.enable_x64(False):
        x, net = jnp.asarray(X[:7], jnp.float32), Row(jnp.asarray(W, jnp.float32), REDUCTIONS["mean"])
        for a, b in zip(both(jaxpar.DataParallel(net, range(4)), x), both(net, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


def test_a_planted_fault_is_found():
    net = Row(jnp.asarray(W), REDUCTIONS["mean"])
    per_device = Row(jnp.asarray(W), lambda x: x - jax.lax.pmean(x, "batch") * (1 + 1e-8))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        close(both(jaxpar.DataParallel(per_device, range(4)), X), both(net, X))


@jax.custom_jvp
def centred(x):
    return x - jax.lax.pmean(x, "batch")


centred.defjvp(lambda x, t: (centred(*x), t[0] - jax.lax.pmean(t[0], "batch")))

REFUSED = {
    "all_gather": (lambda x: jax.lax.all_gather(x, "batch").sum(0), "calls all_gather over the axis 'batch'"),
    "axis_index": (lambda x: x * jax.lax.axis_index("batch"), "calls axis_index over the axis 'batch'"),
    "ppermute": (lambda x: jax.lax.ppermute(x, "batch", [(0, 1)]), "calls ppermute over the axis 'batch'"),
    "several axes": (
        lambda x: jax.lax.psum(x, ("batch", "other")),
        "calls psum over the axis 'batch'",
    ),
    "a derivative": (centred, "a derivative of its own has a collective over the axis 'batch'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_collectives_are_refused(name):
    function, message = REFUSED[name]
    net = Row(jnp.asarray(W), function)
    with pytest.raises(CollectiveError, match=message):
        jax.vmap(
            lambda x: jax.vmap(jaxpar.DataParallel(net, range(4)), axis_name="batch")(x), axis_name="other"
        )(X[None])
    if name not in ("ppermute", "several axes"):  # of one device alone it is JAX's own
        outputs = jax.vmap(jaxpar.DataParallel(net, [0]), axis_name="batch")(X)
        close([outputs], [jax.vmap(net, axis_name="batch")(X)])


class Norms(eqx.Module):
    first: eqx.nn.BatchNorm
    linear: eqx.nn.SpectralNorm
    second: eqx.nn.BatchNorm

    def __init__(self, mode):
        keys = jax.random.split(jax.random.key(0))
        self.first = eqx.nn.BatchNorm(3, "batch", mode=mode)
        self.linear = eqx.nn.SpectralNorm(eqx.nn.Linear(3, 8, key=keys[0]), "weight", key=keys[1])
        self.second = eqx.nn.BatchNorm(8, "batch", mode=mode)

    def __call__(self, x, state):
        x, state = self.linear(*self.first(x, state))
        return self.second(jax.nn.gelu(x), state)


def train(wrap, mode, rows):
    model, state = eqx.nn.make_with_state(Norms)(mode)
    model, seen = wrap(model), []

    @eqx.filter_value_and_grad(has_aux=True)
    def loss_of(model, state, x):
        forward = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        outputs, state = forward(x, state)
        return (outputs**3).mean(), state

    for i in range(3):
        (loss, state), gradients = eqx.filter_jit(loss_of)(model, state, X[:rows] + i)
        model = eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradients))
        seen += [loss, *jax.tree.leaves((eqx.filter(gradients, eqx.is_array), state))]
    frozen = eqx.nn.inference_mode(model)
    outputs = jax.vmap(eqx.Partial(frozen, state=state))(X[:5])[0]
    return [np.asarray(x) for x in [*seen, outputs]]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("rows", [12, 7, 2])
@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_equinox_trains_with_state_as_on_one_device(mode, rows):
    close(train(lambda m: jaxpar.DataParallel(m, range(4)), mode, rows), train(lambda m: m, mode, rows))
