"""A number that differs is named with the value it has on Flax's side, whatever the value."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch.nn import functional as F

from jaxpar import parity

X = np.random.RandomState(0).randn(4, 6).astype(np.float32)


def norm(eps):
    return nnx.LayerNorm(6, epsilon=eps, rngs=nnx.Rngs(0))


def group_norm(eps):
    return nnx.GroupNorm(6, 3, epsilon=eps, rngs=nnx.Rngs(0))


class AroundZero(nnx.LayerNorm):
    """A norm whose weight is kept around 0."""

    def __call__(self, x):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + 1e-5) * (1 + self.scale[...]) + self.bias[...]


def trained(layer):
    torch.nn.init.uniform_(layer.weight, generator=torch.Generator().manual_seed(0))
    return layer


CASES = {
    "LayerNorm's weight": (
        trained(torch.nn.LayerNorm(6)),
        AroundZero(6, rngs=nnx.Rngs(0)),
        "the weight multiplies as it is (1 is added to it first)",
    ),
    "LayerNorm's epsilon": (torch.nn.LayerNorm(6), norm(2.5e-4), "epsilon=1e-05 (it acts as 0.00025)"),
    "GroupNorm's epsilon": (torch.nn.GroupNorm(3, 6), group_norm(0.03), "epsilon=1e-05 (it acts as 0.03)"),
    "leaky relu": (
        lambda x: F.leaky_relu(x, 0.01),
        lambda x: jax.nn.leaky_relu(x, 0.17),
        "negative_slope=0.01 (it acts as 0.17)",
    ),
    "elu": (lambda x: F.elu(x), lambda x: jax.nn.elu(x, 1.3), "alpha=1 (it acts as 1.3)"),
    "a temperature": (
        lambda x: F.softmax(x / 0.5, -1),
        lambda x: jax.nn.softmax(x / 0.73, -1),
        "the number of div=0.5 (it acts as 0.73)",
    ),
    "an exponent": (
        lambda x: (x.abs() + 0.1) ** 2.0,
        lambda x: (jnp.abs(x) + 0.1) ** 2.35,
        "the number of pow=2 (it acts as 2.35)",
    ),
    "an addend, not nice": (
        lambda x: torch.tanh(x + 0.25) * x,
        lambda x: jnp.tanh(x + 1 / 7) * x,
        "the number of add=0.25 (it acts as 0.142857)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_number_is_named(case):
    reference, candidate, text = CASES[case]
    comparison = parity.compare(reference, candidate, X)
    assert not comparison.same
    assert text in [cause.text for cause in comparison.divergence.causes]


def test_what_no_number_explains_is_not_a_number():
    comparison = parity.compare(
        lambda x: F.leaky_relu(x, 0.01), lambda x: jnp.where(x > 0.5, x, 0.17 * x * x), X
    )
    assert not [cause for cause in comparison.divergence.causes if "it acts as" in cause.text]


def test_few_elements_prove_no_number():
    """One number can make one element anything."""
    comparison = parity.compare(lambda x: F.leaky_relu(x, 0.01).sum(), lambda x: x.sum() + 0.3, X)
    assert not [cause for cause in comparison.divergence.causes if "negative_slope" in cause.text]
