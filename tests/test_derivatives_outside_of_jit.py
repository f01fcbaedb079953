"""The functional `data_parallel`, the four verbs and DataParallel, differentiated without `jax.jit`.

torch's own first test of `data_parallel` takes gradients of a module that lies on one device. They come back
to that device, as through torch's Broadcast (docs/semantics.md row 34).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_trees
from flax import linen, nnx

import jaxpar

IDS = [0, 1]
X = np.random.RandomState(0).randn(5, 3)


def four_verbs(module, x):
    replicas, rows = jaxpar.replicate(module, IDS), jaxpar.scatter((x,), IDS)
    return jaxpar.gather(jaxpar.parallel_apply(replicas, rows), 0)


def four_verbs_of_lists(module, x):
    replicas, rows = list(jaxpar.replicate(module, IDS)), list(jaxpar.scatter((x,), IDS))
    return jaxpar.gather(jaxpar.parallel_apply(replicas, rows), 0)


def data_parallel(module, x):
    return jaxpar.data_parallel(module, x, IDS)


def assert_same(got, want):
    named = [dict(enumerate(map(np.asarray, jax.tree.leaves(tree)))) for tree in (got, want)]
    assert_equal_trees("derivative", *named)


def alone(module, x):
    return module(x)


def nnx_module(w):
    graphdef, state = nnx.split(nnx.Linear(3, 2, use_bias=False, param_dtype=float, rngs=nnx.Rngs(0)))
    state["kernel"].set_value(w)
    return nnx.merge(graphdef, state)


def linen_module(w):
    return linen.Dense(2, use_bias=False).bind({"params": {"kernel": w}})


def function(w):
    return lambda x: x @ w


def function_of_a_tree(w):
    weights = {"w": w, "b": jnp.zeros(2)}
    return lambda x: x @ weights["w"] + weights["b"]


FORMS = [data_parallel, four_verbs, four_verbs_of_lists]
MODULES = [nnx_module, linen_module, function, function_of_a_tree]
# A function in a list runs as it is, on the device of what it holds.
CASES = [
    (form, m) for form in FORMS for m in MODULES if form is not four_verbs_of_lists or "module" in m.__name__
]


def of_weights(form, module):
    return lambda w: (form(module(w), X) ** 3).sum()


def twice(f):
    return lambda w: jax.grad(lambda w: (jax.grad(f)(w) ** 2).sum())(w)


def forward(f):
    return lambda w: jax.jvp(f, (w,), (w,))


DERIVATIVES = {"grad": jax.grad, "of second order": twice, "forward": forward}


@pytest.fixture(params=["on device 0", "on all devices"])
def w(request, devices):
    value = np.random.RandomState(1).randn(3, 2)
    if request.param == "on device 0":
        return jax.device_put(value, devices[0])
    return jax.device_put(
        value, jaxpar.DataParallel(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), IDS).placement.replicated
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize(("form", "module"), CASES)
def test_derivatives_are_those_of_the_module_and_return_to_its_device(form, module, derivative, w, devices):
    take = DERIVATIVES[derivative]
    got = take(of_weights(form, module))(w)
    want = take(of_weights(alone, module))(jax.device_put(w, devices[0]))
    assert_same(got, want)
    if derivative != "forward":
        assert got.devices() == w.devices()


WITH_AN_AXIS = {
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])),
    "jacrev": jax.jacrev,
    "jacfwd": jax.jacfwd,
    "hessian": jax.hessian,
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(lambda x: f(x).sum()))(jnp.stack([x, 2 * x])),
}


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("name", WITH_AN_AXIS)
@pytest.mark.parametrize("B", [4, 5])
def test_transformations_that_add_an_axis(name, B):
    net = jaxpar.DataParallel(nnx.Linear(3, 2, param_dtype=float, rngs=nnx.Rngs(0)), IDS)
    x = jnp.asarray(np.random.RandomState(2).randn(B, 3))
    take = WITH_AN_AXIS[name]
    got = take(lambda x: (net(x) ** 3).sum(1))(x)
    net.module.kernel.set_value(jax.device_get(net.module.kernel[...]))
    net.module.bias.set_value(jax.device_get(net.module.bias[...]))
    want = take(lambda x: (net.module(x) ** 3).sum(1))(x)
    assert_same(got, want)


ENSEMBLES = {
    "outputs": lambda f: jax.vmap(f),
    "gradients in it": lambda f: jax.vmap(jax.grad(lambda w: (f(w) ** 3).sum())),
    "gradients around it": lambda f: jax.grad(lambda w: (jax.vmap(f)(w) ** 3).sum()),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ENSEMBLES)
@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("form", [data_parallel, four_verbs])
def test_an_ensemble_of_modules(form, module, name, w, devices):
    take, several = ENSEMBLES[name], jnp.stack([w, 2 * w, -w])
    got = take(lambda w: form(module(w), X))(several)
    assert_same(got, take(lambda w: alone(module(w), X))(jax.device_put(several, devices[0])))
    if name == "gradients around it":
        assert got.devices() == several.devices()


def test_an_ensemble_made_by_flax():
    @nnx.split_rngs(splits=2)
    @nnx.vmap
    def make(rngs):
        return nnx.Linear(3, 2, param_dtype=float, use_bias=False, rngs=rngs)

    net = make(nnx.Rngs(0))
    run = nnx.vmap(lambda net, x: net(x), in_axes=(0, None))
    want = run(net, X)
    assert_same(run(jaxpar.DataParallel(net, IDS), X), want)


def test_the_derivative_of_another_module_is_a_difference(w):
    got = jax.grad(of_weights(data_parallel, nnx_module))(w)
    with pytest.raises(AssertionError):
        assert_same(got, jax.grad(lambda w: (data_parallel(nnx_module(w), X) ** 2).sum())(w))
