"""Case: a torch module to be ported, and what it is called with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

Maker = Callable[[torch.Generator], Any]
"""Makes one input from a seeded generator."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One module, at a small size, with random weights.

    Attributes:
      name: of the model; a row of the page. No other case of its group has it.
      make: builds the module. A library is imported in it, so that the table can be read without.
      inputs: makers of the positional arguments.
      kwargs: keyword arguments; makers are called, other values are given as they are.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    inputs: tuple[Maker, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call, the same each time."""
        generator = torch.Generator().manual_seed(0)
        inputs = tuple(make(generator) for make in self.inputs)
        return inputs, {
            name: each(generator) if callable(each) else each for name, each in self.kwargs.items()
        }


def normal(*shape: int) -> Maker:
    return lambda generator: torch.randn(shape, generator=generator)


def integers(below: int, *shape: int) -> Maker:
    """Tokens, or numbers of classes."""
    return lambda generator: torch.randint(below, shape, generator=generator)


def ones(*shape: int, dtype: torch.dtype = torch.long) -> Maker:
    """A mask that hides nothing."""
    return lambda generator: torch.ones(shape, dtype=dtype)
