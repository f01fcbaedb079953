"""What a comparison does not reach is a note, and what initial values hide is found by perturbing them."""

from __future__ import annotations

import random
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import linen, nnx

from jaxpar import parity
from jaxpar.parity import _reach
from jaxpar.parity._sides.torch_choices import TorchChoices

X = np.random.RandomState(0).randn(4, 6).astype(np.float32)
IMAGES = np.random.RandomState(1).randn(4, 3, 5, 5).astype(np.float32)


def adam(torch_betas=(0.9, 0.999), flax_b2=0.999):
    return (
        lambda parameters: torch.optim.Adam(parameters, 0.1, betas=torch_betas),
        optax.adam(0.1, b2=flax_b2),
    )


def sgd(torch_momentum, flax_momentum):
    return (
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=torch_momentum),
        optax.sgd(0.1, momentum=flax_momentum),
    )


OPTIMIZERS = {
    "the same momentum": (sgd(0.9, 0.9), True),
    "momentum on one side": (sgd(0.9, None), False),
    "the same betas": (adam(), True),
    "other betas": (adam((0.9, 0.99)), False),
}


@pytest.mark.full
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_what_an_optimizer_remembers_is_compared(case):
    optimizer, same = OPTIMIZERS[case]

    def compare(**options):
        linears = torch.nn.Linear(6, 2), nnx.Linear(6, 2, rngs=nnx.Rngs(0))
        # With data of its own in each step: Adam divides a constant gradient by itself.
        return parity.compare(*linears, lambda step: X * step, optimizer=optimizer, **options)

    assert compare().same is same
    assert compare().steps == 2
    (gap,) = (gap for gap in compare(steps=1).unreached if "optimizer" in gap)
    assert gap.startswith("one step")
    assert not any("optimizer" in gap for gap in compare(steps=2).unreached)


class Scaled(torch.nn.Module):
    """A residual branch behind a scale that starts at 0, as in ReZero."""

    def __init__(self, start=0.0):
        super().__init__()
        self.inner, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 2)
        self.scale = torch.nn.Parameter(torch.full((1,), start))

    def forward(self, x):
        return self.head(x + self.scale**2 * torch.nn.functional.gelu(self.inner(x)))


class FlaxScaled(nnx.Module):
    def __init__(self, activation):
        self.inner, self.head = nnx.Linear(6, 6, rngs=nnx.Rngs(0)), nnx.Linear(6, 2, rngs=nnx.Rngs(1))
        self.scale, self.activation = nnx.Param(np.zeros(1, np.float32)), activation

    def __call__(self, x):
        return self.head(x + self.scale[...] ** 2 * self.activation(self.inner(x)))


def exact_gelu(x):
    return nnx.gelu(x, approximate=False)


@pytest.mark.full
def test_a_branch_that_starts_at_zero_is_compared_with_perturbed_weights():
    healthy = parity.compare(Scaled(), FlaxScaled(exact_gelu), X)
    assert healthy.same
    assert any("perturbed" in note and "inner" in note for note in healthy.notes)
    assert not parity.compare(Scaled(), FlaxScaled(nnx.relu), X).same
    blind = parity.compare(Scaled(), FlaxScaled(nnx.relu), X, shake=False)
    assert blind.same
    assert any(gap.startswith("3 of 5 parameters") and "inner.bias" in gap for gap in blind.unreached)


def test_weights_are_perturbed_on_request_and_not_without_need():
    pair = Scaled(1.0), FlaxScaled(exact_gelu)
    assert not any("perturbed" in note for note in parity.compare(*pair, X).notes)
    assert any("perturbed" in note for note in parity.compare(*pair, X, shake=True).notes)
    with pytest.raises(ValueError, match="weights='own'"):
        parity.compare(*pair, X, shake=True, weights="own")


class Frozen(torch.nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.norm, self.head = torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2)
        self.norm.running_mean += 0.5
        self.norm.train(not frozen)

    def forward(self, x):
        return self.head(self.norm(x))


class LinenFrozen(linen.Module):
    frozen: bool

    @linen.compact
    def __call__(self, x):
        x = linen.BatchNorm(use_running_average=self.frozen, momentum=0.9, epsilon=1e-5, name="norm")(x)
        return linen.Dense(2, name="head")(x)


class FlaxFrozen(nnx.Module):
    def __init__(self, frozen):
        self.norm = nnx.BatchNorm(6, use_running_average=frozen, momentum=0.9, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(6, 2, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.head(self.norm(x))


@pytest.mark.full
@pytest.mark.parametrize("kind", [LinenFrozen, FlaxFrozen])
def test_a_frozen_layer_keeps_its_mode(kind):
    frozen = parity.compare(Frozen(True), kind(True), X)
    assert frozen.same
    assert any("modes of their own" in note for note in frozen.notes)
    assert not parity.compare(Frozen(True), kind(False), X).same


class Branch(torch.nn.Linear):
    def __init__(self, throw):
        super().__init__(6, 2)
        self.throw = throw

    def forward(self, x):
        return super().forward(x) * (2 if self.throw() < -1 else 1)


THROWS = {
    "torch": (lambda: torch.rand(()), "torch's rand"),
    "in place": (lambda: torch.empty(()).uniform_(), "torch's uniform_"),
    "Python": (random.random, "Python's random"),
    "NumPy": (lambda: np.random.random(), "numpy.random"),
    "none": (lambda: 0, None),
}


@pytest.mark.parametrize("case", THROWS)
def test_a_random_branch_of_torch_is_named(case):
    throw, name = THROWS[case]
    gaps = parity.compare(Branch(throw), nnx.Linear(6, 2, rngs=nnx.Rngs(0)), X).unreached
    assert [name in gap for gap in gaps if "throws" in gap] == ([True] if name else [])


ACTIVATIONS = {
    "relu6": (torch.nn.ReLU6(), nnx.relu6, 1, ["relu6 gets no number above 6"]),
    "relu6 of large numbers": (torch.nn.ReLU6(), nnx.relu6, 20, []),
    "hardtanh with bounds": (torch.nn.Hardtanh(-9, 9), lambda x: x, 1, ["below -9", "above 9"]),
    "relu": (torch.nn.ReLU(), nnx.relu, 1, []),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_bounds_that_no_input_reaches_are_named(case):
    activation, function, factor, expected = ACTIVATIONS[case]
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), activation)
    flax = nnx.Sequential(nnx.Linear(6, 8, rngs=nnx.Rngs(0)), function)
    gaps = [gap for gap in parity.compare(model, flax, X * factor).unreached if "gets no number" in gap]
    assert len(gaps) == len(expected)
    assert all(text in gap for text, gap in zip(expected, gaps, strict=True))


IMAGE, KERNEL = torch.zeros(1, 2, 6, 6), torch.zeros(2, 2, 1, 1)
WINDOWS = {
    "a pool of its own size": (torch.max_pool2d, (IMAGE, 2), {}, True),
    "a pool of one step": (torch.max_pool2d, (IMAGE, 2, 1), {}, False),
    "a pool of two steps": (torch.max_pool2d, (IMAGE, 3, 2), {}, True),
    "a pool by keywords": (torch.max_pool2d, (IMAGE,), {"kernel_size": 2, "stride": 1}, False),
    "a kernel by keyword": (torch.max_pool2d, (IMAGE,), {"kernel_size": 2}, True),
    "a convolution": (torch.conv2d, (IMAGE, KERNEL), {}, False),
    "a convolution of two steps": (torch.conv2d, (IMAGE, KERNEL, None, 2), {}, True),
    "another axis": (torch.conv2d, (IMAGE, KERNEL, None, (1, 2)), {}, True),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_that_skip_positions_are_named(case):
    function, args, kwargs, strides = WINDOWS[case]
    choices = TorchChoices()
    choices.look(function, function.__name__, args, kwargs)
    assert any(gap.startswith("inputs of other sizes") for gap in choices.gaps()) is strides


class Dropping(nnx.Module):
    def __init__(self):
        self.drop, self.norm = nnx.Dropout(0.3, rngs=nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.norm(self.drop(x))


@pytest.mark.parametrize(
    ("torch_layer", "broadcast_dims", "same"),
    [(torch.nn.Dropout, (), True), (torch.nn.Dropout, (0,), False), (torch.nn.Dropout2d, (1, 2), True)],
)
def test_masks_that_hold_for_a_whole_axis(torch_layer, broadcast_dims, same):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch_layer(0.5))
    flax = nnx.Sequential(
        nnx.Conv(3, 8, (1, 1), rngs=nnx.Rngs(0)),
        nnx.Dropout(0.5, broadcast_dims=broadcast_dims, rngs=nnx.Rngs(0)),
    )
    assert parity.compare(model, flax, IMAGES, layout="channels_last").same is same


class Rounding(nnx.Module):
    def __init__(self, dtype):
        # Not `dtype`, which a comparison sets.
        self.fc, self.narrow = nnx.Linear(6, 6, rngs=nnx.Rngs(0)), dtype

    def __call__(self, x):
        return (x.astype(self.narrow) + self.fc(x)).astype(x.dtype)


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 6)

    def forward(self, x):
        return x + self.fc(x)


@pytest.mark.parametrize(
    ("dtype", "names"), [(jnp.bfloat16, ["bfloat16 in test_reach.py:"]), (jnp.float32, [])]
)
def test_roundings_to_16_bits_are_named(dtype, names):
    comparison = parity.compare(Residual(), Rounding(dtype), X)
    assert comparison.same
    gaps = [gap for gap in comparison.unreached if "roundings" in gap]
    assert len(gaps) == len(names)
    assert all(name in gap for name, gap in zip(names, gaps, strict=True))


def test_evaluation_names_dropout_and_statistics():
    from collections import OrderedDict

    layers = OrderedDict(drop=torch.nn.Dropout(0.1), norm=torch.nn.BatchNorm2d(3))
    gaps = parity.compare(
        torch.nn.Sequential(layers).eval(), Dropping(), IMAGES, layout="channels_last"
    ).unreached
    assert [gap for gap in gaps if gap.startswith("evaluation")] == [
        "evaluation: what JAX's layers do in training (drop, norm)",
        "evaluation: dropout (drop)",
        "evaluation: batch statistics and their momentum (norm)",
    ]


class Dead(torch.nn.Linear):
    """No number passes the relu, and what is in front of it shows in no output."""

    def forward(self, x):
        return torch.relu(super().forward(torch.tanh(x)))


class FlaxDead(nnx.Linear):
    def __init__(self, inner):
        super().__init__(6, 2, rngs=nnx.Rngs(0))
        self.inner = inner

    def __call__(self, x):
        return nnx.relu(super().__call__(self.inner(x)))


@pytest.mark.parametrize("inner", [jnp.tanh, jnp.sin])
def test_a_model_without_any_gradient_is_perturbed_until_it_has_one(inner):
    dead = Dead(6, 2)
    torch.nn.init.zeros_(dead.weight)
    torch.nn.init.constant_(dead.bias, -0.1)
    comparison = parity.compare(dead, FlaxDead(inner), X)
    assert comparison.same == (inner is jnp.tanh)
    assert any(note.startswith("all weights were perturbed by 0.5") for note in comparison.notes)


def test_outputs_that_ignore_the_input_are_named():
    class Constant(torch.nn.Linear):
        def forward(self, x):
            return super().forward(torch.zeros_like(x))

    class FlaxConstant(nnx.Linear):
        def __call__(self, x):
            return super().__call__(0 * x)

    gaps = parity.compare(Constant(6, 2), FlaxConstant(6, 2, rngs=nnx.Rngs(0)), X).unreached
    assert any(gap.startswith("the outputs do not depend on") for gap in gaps)


def gradient_row(name, step, size):
    return SimpleNamespace(kind=parity.Kind.GRADIENT, name=name, step=step, magnitude=size, max_abs=0.0)


def test_a_gradient_in_one_step_is_enough():
    rows = [
        gradient_row("a.w", 1, 1.0),
        gradient_row("a.w", 2, 0.0),
        gradient_row("b.w", 1, 0.0),
        gradient_row("b.v", 2, 0.0),
    ]
    assert _reach.without_gradient(rows) == ["b.w", "b.v"]
    assert _reach.layers_without_gradient(rows) == ["b"]


@pytest.mark.full
def test_a_record_of_perturbed_weights_has_them(tmp_path):
    net, flax = torch.nn.Linear(6, 2), nnx.Linear(6, 2, rngs=nnx.Rngs(0))
    for name, options in (("plain", {}), ("shaken", {"shake": True})):
        parity.record(tmp_path / f"{name}.safetensors", net, flax, X, **options)
        assert parity.check(tmp_path / f"{name}.safetensors", nnx.Linear(6, 2, rngs=nnx.Rngs(1))).same
    plain, shaken = (
        parity.read_weights(tmp_path / f"{name}.safetensors")["start/kernel"] for name in ("plain", "shaken")
    )
    np.testing.assert_allclose(plain, net.weight.detach().T, rtol=1e-6)
    assert 0.001 < abs(plain - shaken).max() < 0.2
