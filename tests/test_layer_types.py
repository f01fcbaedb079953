"""Which layers take `dtype`, `param_dtype` and `rngs`: what docs/nn.md says of them."""

from __future__ import annotations

import dataclasses
import inspect

import jax.numpy as jnp
import pytest
from flax import nnx

from jaxpar import nn
from jaxpar._rulebook import ROWS, Rule

LAYERS = [
    name for name in dir(nn) if isinstance(made := getattr(nn, name), type) and issubclass(made, nnx.Module)
]
TYPES = {"dtype", "param_dtype", "rngs"}
DRAW = {"AlphaDropout", "Dropout", "FeatureAlphaDropout", "FeatureDropout", "RReLU"}
WITHOUT_PARAMETERS = {
    name.removeprefix("jaxpar.nn.")
    for name, rule in ROWS.items()
    if name.startswith("jaxpar.nn.") and isinstance(rule, Rule) and not rule.parts
} - DRAW
"""Layers of which the rulebook names no tensor."""
REPEAT_OR_WRAP = {"TransformerDecoder", "TransformerEncoder", "WeightNorm", "SpectralNorm"}


def test_all_layers_are_looked_at():
    assert len(LAYERS) > 40
    assert set(LAYERS) > DRAW | WITHOUT_PARAMETERS | REPEAT_OR_WRAP


@pytest.mark.parametrize("name", LAYERS)
def test_who_takes_types(name):
    taken = TYPES & set(inspect.signature(getattr(nn, name).__init__).parameters)
    if name in DRAW or name == "SpectralNorm":  # its vectors are drawn
        assert taken == {"rngs"}
    elif name in WITHOUT_PARAMETERS | REPEAT_OR_WRAP:
        assert not taken
    else:
        assert taken == TYPES


def test_a_subclass_may_have_fields_of_its_own():
    @dataclasses.dataclass(eq=False, repr=False)
    class NamedPool(nn.MaxPool):
        label: str = "pool"

    x = jnp.arange(12.0).reshape(1, 3, 4, 1)
    assert NamedPool(2, label="first").label == "first"
    assert (NamedPool(2)(x) == nn.MaxPool(2)(x)).all()
