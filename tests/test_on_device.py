"""Parts of one model on different devices, against the same model in torch."""

from __future__ import annotations

import flax.linen as linen
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers
from flax import nnx

import jaxpar
from jaxpar import errors

TOKENS = np.random.RandomState(0).randint(0, 7, (6, 3))
R = np.random.RandomState(1)
TABLE, W1, W2 = R.randn(7, 4), R.randn(4, 5), R.randn(5, 2)


class Embed(nnx.Module):
    def __init__(self):
        self.table = nnx.Param(jnp.asarray(TABLE))

    def __call__(self, tokens):
        return self.table[...][tokens].mean(1)


class Dense(nnx.Module):
    def __init__(self, w):
        self.w = nnx.Param(jnp.asarray(w))
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        return jnp.tanh(x @ self.w[...])


class Split(nnx.Module):
    """An embedding on the CPU, two layers on two devices, moved between by hand as in torch."""

    def __init__(self, on=jaxpar.OnDevice, first=1, second=2):
        self.embed = on(Embed(), "cpu")
        self.one = on(Dense(W1), first)
        self.two = on(Dense(W2), second)
        self.devices = (first, second)

    def __call__(self, tokens):
        x = self.embed(tokens)
        x = self.one(jaxpar.to(x, self.devices[0]))
        return self.two(jaxpar.to(x, self.devices[1]))


def torch_losses(steps):
    torch = pytest.importorskip("torch")
    table, w1, w2 = (torch.tensor(w.copy(), requires_grad=True) for w in (TABLE, W1, W2))
    optimizer = torch.optim.SGD([table, w1, w2], lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        y = torch.tanh(torch.tanh(table[torch.tensor(TOKENS)].mean(1) @ w1) @ w2)
        loss = (y**2 + y).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), [w.detach().numpy() for w in (table, w1, w2)]


def train(model, steps):
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    losses = []
    for _ in range(steps):
        loss, gradients = nnx.value_and_grad(lambda m: (m(TOKENS) ** 2 + m(TOKENS)).mean())(model)
        optimizer.update(model, gradients)
        losses.append(loss)
    return np.array(losses)


@pytest.mark.full
def test_training_equals_torch(devices):
    model = Split()
    losses, weights = torch_losses(15)
    assert_equal_numbers("losses", train(model, 15), losses)
    for part, w, d in zip(
        (model.embed.module.table, model.one.module.w, model.two.module.w), weights, devices, strict=False
    ):
        assert_equal_numbers("weights", part[...], w)
        assert part[...].devices() == {d}


@pytest.mark.full
def test_data_parallel_of_one_part(devices):
    """The embedding on the CPU, the rest split over four devices."""

    class Half(nnx.Module):
        def __init__(self):
            self.embed = jaxpar.OnDevice(Embed(), "cpu")
            self.rest = jaxpar.DataParallel(nnx.Sequential(Dense(W1), Dense(W2)), range(4), output_device=0)

        def __call__(self, tokens):
            return self.rest(self.embed(tokens))

    assert_equal_numbers("losses", train(Half(), 10), torch_losses(10)[0])


@pytest.mark.full
@pytest.mark.parametrize("make", [optax.adam, lambda lr: optax.adamw(lr, weight_decay=0.1)])
def test_each_device_is_the_same_optimizer_for_every_part(make):
    """The same weights as on one device, with an optimizer that optax compiles for the whole tree."""
    split, whole = Split(), Split(lambda m, d: m, 0, 0)
    losses = []
    for model, tx in ((split, jaxpar.each_device(make(0.05))), (whole, make(0.05))):
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        for _ in range(5):
            loss, gradients = nnx.value_and_grad(lambda m: (m(TOKENS) ** 2).mean())(model)
            optimizer.update(model, gradients)
        losses.append(loss)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-12)
    np.testing.assert_allclose(split.two.module.w[...], whole.two.w[...], rtol=1e-11)


def test_each_part_is_compiled_once():
    traces = []

    class Traced(Dense):
        def __call__(self, x):
            traces.append(x.shape)
            return super().__call__(x)

    part = jaxpar.OnDevice(Traced(W1), 3)
    for _ in range(5):
        part(np.ones((2, 4)))
    assert traces == [(2, 4)]
    assert part.module.calls[...] == 5


def test_wrapper(devices):
    part = jaxpar.OnDevice(Dense(W1), 3)
    assert part.device is devices[3]
    assert isinstance(part, nnx.Module)
    assert [p for p, _ in nnx.to_flat_state(nnx.state(part, nnx.Param))] == [("module", "w")]
    assert part(np.ones((2, 4))).devices() == {devices[3]}
    assert jaxpar.OnDevice(jnp.sin, 2)(np.ones(2)).devices() == {devices[2]}


def test_inside_jit_it_is_the_module():
    part = jaxpar.OnDevice(Dense(W1), 3)
    got = nnx.jit(lambda m, x: m(x))(part, np.ones((2, 4)))
    np.testing.assert_allclose(got, np.tanh(np.ones((2, 4)) @ W1), rtol=1e-12)


# a module and an input on different devices raise
def test_an_input_elsewhere():
    part = jaxpar.OnDevice(Dense(W1), 3)
    x = jaxpar.to(np.ones((2, 4)), 1)
    message = (
        r"found at least two devices, cpu:3 and cpu:1! Dense is on cpu:3, inputs\[0\] on cpu:1; move "
        r".*jaxpar\.to\("
    )
    with pytest.raises(errors.MixedDevicesError, match=message):
        part(x)
    with pytest.raises(ValueError, match="incompatible devices"):
        nnx.grad(lambda m, x: m(x).sum(), argnums=1)(part, x)


def test_linen_modules_are_refused():
    with pytest.raises(TypeError, match=r"Dense is a Linen module.*jaxpar\.to\(variables, device\)"):
        jaxpar.OnDevice(linen.Dense(3), 1)


def test_outputs_that_no_program_returns():
    with pytest.raises(errors.GatherTypeError, match=r"OnDevice: outputs\['n'\] is of type str"):
        jaxpar.OnDevice(lambda x: {"n": "text"}, 1)(np.ones(2))


def test_an_uninitialised_module():
    with pytest.raises(errors.UninitializedError, match="Cannot move"):
        jaxpar.OnDevice(nnx.eval_shape(lambda: Dense(W1)), 1)
