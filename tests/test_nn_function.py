"""nn.Function: operations with gradients of their own. The reference is torch.autograd.Function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxpar import nn

X = np.random.RandomState(0).randn(3, 4)
W = np.random.RandomState(1).randn(4)


def defined(base, cumulative):
    """Return an operation with two outputs, in one framework or the other."""

    class Scaled(base):
        @staticmethod
        def forward(ctx, x, w, rows, power, scale=3.0):
            ctx.save_for_backward(x, w)
            ctx.power, ctx.scale, ctx.rows = power, scale, rows
            return x**power * w, cumulative(x, 0)

        @staticmethod
        def backward(ctx, first, second):
            x, w = ctx.saved_tensors
            assert ctx.needs_input_grad[:3] == (True, True, False)
            gradient = ctx.scale * first * w + second * x[ctx.rows]
            return gradient, (first * x**ctx.power).sum(0), None, None, None

    return Scaled


def total(first, second):
    return (first**2).sum() + (second * 0.5).sum()


def torchs(arguments):
    operation = defined(torch.autograd.Function, torch.cumsum)
    x, w = torch.tensor(X, requires_grad=True), torch.tensor(W, requires_grad=True)
    value = total(*operation.apply(x, w, torch.tensor([2, 0, 1]), *arguments))
    value.backward()
    return value.item(), x.grad.numpy(), w.grad.numpy()


TRANSFORMS = {"eager": lambda f: f, "jit": jax.jit, "remat": jax.checkpoint}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("arguments", [(2,), (3, 0.5)], ids=str)
def test_values_and_gradients_are_torchs(arguments, transform):
    operation = defined(nn.Function, jnp.cumsum)

    def loss(x, w):
        return total(*operation.apply(x, w, jnp.array([2, 0, 1]), *arguments))

    value, gradients = jax.value_and_grad(TRANSFORMS[transform](loss), (0, 1))(X, W)
    for one, other in zip((value, *gradients), torchs(arguments), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_it_is_mapped_over_rows():
    class Halved(nn.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient / 2  # not in a tuple, as in torch

    gradients = jax.vmap(jax.grad(lambda x: Halved.apply(x).sum()))(X)
    np.testing.assert_allclose(gradients, np.full_like(X, 0.5))


def test_variables_are_read_and_trained():
    class Doubled(nn.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            return (2 * gradient,)

    net = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    gradients = nnx.grad(lambda net: Doubled.apply(net.kernel).sum())(net)
    np.testing.assert_allclose(gradients.kernel[...], 2)


REFUSED = {
    "too few gradients": (lambda ctx, gradient: (gradient,), "expected 2, got 1"),
    "too many gradients": (lambda ctx, gradient: (gradient,) * 3, "expected 2, got 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_number_of_gradients_is_refused(name):
    backward, message = REFUSED[name]
    methods = {"forward": staticmethod(lambda ctx, x, y: x * y), "backward": staticmethod(backward)}
    operation = type("Product", (nn.Function,), methods)
    with pytest.raises(ValueError, match=f"Product: backward returned an incorrect number.*{message}"):
        jax.grad(lambda x: operation.apply(x, 2.0))(1.0)


@pytest.mark.parametrize("missing", ["forward", "backward"])
def test_a_missing_method_is_named(missing):
    methods = {"forward": staticmethod(lambda ctx, x: x), "backward": staticmethod(lambda ctx, g: g)}
    del methods[missing]
    with pytest.raises(NotImplementedError, match=f"defines {missing}"):
        jax.grad(lambda x: type("Half", (nn.Function,), methods).apply(x))(1.0)


def test_frozen_parameters_are_not_trained_and_shared_ones_stay_one():
    first = nn.channels_first
    net = first.Sequential(first.Linear(2, 2, rngs=nnx.Rngs(0)), first.Linear(2, 2, rngs=nnx.Rngs(1)))
    net[1].kernel = net[0].kernel
    before = net(jnp.ones((1, 2)))
    assert first.freeze(net) is net
    assert not nnx.to_flat_state(nnx.state(net, nnx.Param))
    assert net[1].kernel is net[0].kernel
    np.testing.assert_array_equal(net(jnp.ones((1, 2))), before)


def test_frozen_parameters_in_lists_and_of_derived_kinds_keep_their_metadata():
    first = nn.channels_first
    net = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    net.scales = nnx.List([nnx.Param(jnp.ones(2), role="scale")])
    net.low = nnx.Dict(a=nnx.LoRAParam(jnp.ones(2)))
    first.freeze(net)
    assert not nnx.to_flat_state(nnx.state(net, nnx.Param))
    assert net.scales[0].get_metadata()["role"] == "scale"
    assert len(nnx.to_flat_state(nnx.state(net))) == 4
