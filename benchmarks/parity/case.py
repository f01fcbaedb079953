"""A case: two modules that should be the same, and what they are fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx

Maker = Callable[[np.random.RandomState], np.ndarray]
"""Makes one input, in torch's layout, from a seeded generator."""


@dataclass(frozen=True)
class Case:
    """The arguments of `jaxpar.parity.compare`, with the modules not yet built.

    `loss` is a pair (torch, JAX) of functions of the outputs and the targets; without one the outputs
    are projected on a fixed random direction. `optimizer` is a pair as well: a function from parameters
    to a torch optimizer, and an optax transformation.
    """

    name: str
    torch: Callable[[], Any]
    flax: Callable[[nnx.Rngs], Any]
    inputs: tuple[Maker, ...]
    targets: tuple[Maker, ...] = ()
    loss: tuple[Callable, Callable] | None = None
    optimizer: tuple[Callable, Any] | None = None
    steps: int = 1
    layout: str = "same"
    training: bool = True


class Apply(nnx.Module):
    """A function as a module without parameters, as torch's activations and pools are."""

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, *inputs):
        return self.function(*inputs)


def normal(*shape: int, mean: float = 0.0) -> Maker:
    return lambda random: mean + random.randn(*shape)


def uniform(*shape: int) -> Maker:
    """Between 0 and 1, both left out: probabilities."""
    return lambda random: random.uniform(0.01, 0.99, shape)


def integers(below: int, *shape: int) -> Maker:
    """Tokens or class numbers."""
    return lambda random: random.randint(below, size=shape)


def signs(*shape: int) -> Maker:
    return lambda random: random.choice([-1.0, 1.0], shape)


def lengths(longest: int, *shape: int) -> Maker:
    """How many tokens of a row are real: at least one, the first row all of them."""

    def make(random):
        found = random.randint(1, longest + 1, size=shape)
        found[0] = longest
        return found

    return make
