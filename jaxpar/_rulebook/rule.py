"""Rule and Part: how one layer's tensors in torch become its leaves in Flax, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

Layer: TypeAlias = Any
"""A layer of flax.nnx, flax.linen or jaxpar.nn. Only its attributes are read, so none of them is imported."""
Shape = tuple[int, ...]
Arrays = tuple[np.ndarray, ...]
Conversion = Callable[..., Arrays]
Shapes = Mapping[str, Shape]


def always(shapes: Shapes) -> bool:
    return True


@dataclasses.dataclass(frozen=True)
class Part:
    """Torch names and Flax leaves that are converted into each other; the smallest unit of conversion.

    Attributes:
      torch: names inside the torch layer, `("weight",)`.
      flax: leaf paths inside the Flax layer, `("kernel",)`.
      to_flax: the torch arrays, one argument each, to a tuple of the Flax leaves.
      to_torch: the way back.
      gradient_to_flax: for gradients, if they convert differently from values.
      gradient_to_torch: the way back for gradients.
      when: whether Flax leaves of these shapes go back in this form; it decides between parts that make
        the same leaves from different names.
    """

    torch: tuple[str, ...]
    flax: tuple[str, ...]
    to_flax: Conversion
    to_torch: Conversion
    gradient_to_flax: Conversion | None = None
    gradient_to_torch: Conversion | None = None
    when: Callable[[Shapes], bool] = always

    @property
    def plain(self) -> bool:
        """Whether it is the same array under another name."""
        return self.to_flax is _through

    def forth(self, arrays: Iterable[np.ndarray], gradient: bool = False) -> Arrays:
        step = self.gradient_to_flax if gradient and self.gradient_to_flax else self.to_flax
        return step(*arrays)

    def back(self, arrays: Iterable[np.ndarray], gradient: bool = False) -> Arrays:
        step = self.gradient_to_torch if gradient and self.gradient_to_torch else self.to_torch
        return step(*arrays)


@dataclasses.dataclass(frozen=True)
class Rule:
    """One row of the rulebook, for one layer.

    Attributes:
      torch: torch's class, "Linear", "Conv2d".
      parts: what its tensors become. A part without its names, or without its leaves, is left out,
        so the row of a layer with a bias is also the row of one without.
      channels: "last" if the layer's data is (N, C, *S) in torch and (N, *S, C) in Flax; else None.
      also: other torch classes with the same names.
      surplus: names that torch has and the Flax layer does not, and the values they go back with.
    """

    torch: str
    parts: tuple[Part, ...] = ()
    channels: Literal["last"] | None = None
    also: tuple[str, ...] = ()
    surplus: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The torch classes that this row is for."""
        return (self.torch, *self.also)

    def parts_of_torch(self, names: Iterable[str]) -> tuple[Part, ...]:
        """The parts whose torch names are all there."""
        available = set(names)
        return tuple(part for part in self.parts if available.issuperset(part.torch))

    def parts_of_flax(self, shapes: Shapes) -> tuple[Part, ...]:
        """The parts whose leaves are all there, in the form that torch has for these shapes."""
        return tuple(part for part in self.parts if shapes.keys() >= set(part.flax) and part.when(shapes))

    def to_flax(self, tensors: Mapping[str, np.ndarray], gradient: bool = False) -> dict[str, np.ndarray]:
        """Flax leaves from torch arrays, both by their names inside the layer."""
        converted: dict[str, np.ndarray] = {}
        for part in self.parts_of_torch(tensors):
            arrays = part.forth((tensors[name] for name in part.torch), gradient)
            converted.update(zip(part.flax, arrays, strict=True))
        return converted

    def to_torch(self, leaves: Mapping[str, np.ndarray], gradient: bool = False) -> dict[str, np.ndarray]:
        """Torch arrays from Flax leaves; without what is in `surplus`."""
        converted: dict[str, np.ndarray] = {}
        for part in self.parts_of_flax({name: leaf.shape for name, leaf in leaves.items()}):
            arrays = part.back((leaves[name] for name in part.flax), gradient)
            converted.update(zip(part.torch, arrays, strict=True))
        return converted

    def torch_shapes(self, shapes: Shapes) -> dict[str, Shape]:
        """The shapes of the torch arrays that Flax leaves of these shapes become."""
        return {name: array.shape for name, array in self.to_torch(_empty(shapes)).items()}

    def inside(self, path: str) -> Rule:
        """The row of a layer that holds this one as its attribute `path`."""
        return self._with(lambda part: {"flax": tuple(f"{path}.{leaf}" for leaf in part.flax)})

    def at_depth(self, depth: int, reverse: bool = False) -> Rule:
        """A cell's row as that of one layer and direction of torch's stack: `weight_ih_l0_reverse`."""
        end = f"_l{depth}" + "_reverse" * reverse
        names = self._with(lambda part: {"torch": tuple(name + end for name in part.torch)})
        return dataclasses.replace(
            names,
            torch=self.torch.removesuffix("Cell"),
            also=tuple(kind.removesuffix("Cell") for kind in self.also),
        )

    def _with(self, change: Callable[[Part], dict]) -> Rule:
        return dataclasses.replace(
            self, parts=tuple(dataclasses.replace(part, **change(part)) for part in self.parts)
        )


def _empty(shapes: Shapes) -> dict[str, np.ndarray]:
    """Arrays of these shapes that take no memory: one byte, broadcast."""
    return {name: np.broadcast_to(np.zeros((), np.bool_), shape) for name, shape in shapes.items()}


def same(torch: str, flax: str | None = None) -> Part:
    """The same array under another name (or the same one)."""
    return Part((torch,), (flax or torch,), _through, _through)


def kernel(torch: str = "weight", flax: str = "kernel") -> Part:
    """(O, I, *k) to (*k, I, O); without k the transpose of a matrix."""
    return Part((torch,), (flax,), _kernel_forth, _kernel_back)


def _kernel_forth(weight: np.ndarray) -> Arrays:
    return (weight.transpose(*range(2, weight.ndim), 1, 0),)


def _kernel_back(kernel: np.ndarray) -> Arrays:
    n = kernel.ndim
    return (kernel.transpose(n - 1, n - 2, *range(n - 2)),)


def _through(array: np.ndarray) -> Arrays:
    return (array,)
