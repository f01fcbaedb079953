"""Rule and Part: conversions between one layer's torch tensors and its Flax leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

Layer: TypeAlias = Any  # of flax.nnx, flax.linen or jaxpar.nn; the rulebook imports no framework
Shape = tuple[int, ...]
Arrays = tuple[np.ndarray, ...]
Conversion = Callable[..., Arrays]
Shapes = Mapping[str, Shape]


def always(shapes: Shapes) -> bool:
    return True


@dataclasses.dataclass(frozen=True)
class Part:
    """The smallest unit of conversion: torch names and the Flax leaves that they convert to.

    `to_flax` takes torch's arrays as arguments and returns a tuple of leaves; `to_torch` is its inverse.
    `gradient_to_flax` and `gradient_to_torch` replace them for gradients that convert differently.
    `when` selects, by the leaves' shapes, between parts with the same leaves and different torch names.
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
      parts: the conversions; one whose names or leaves are missing is skipped, such as a bias.
      channels: "last" if the layer's data is (N, C, *S) in torch and (N, *S, C) in Flax; else None.
      also: other torch classes with the same tensor names.
      surplus: torch names without a Flax leaf, and the values that they get in a conversion to torch.

    >>> import numpy as np
    >>> from jaxpar._rulebook import Rule, kernel, same
    >>> rule = Rule("Linear", (kernel(), same("bias")))
    >>> leaves = rule.to_flax({"weight": np.zeros((3, 4)), "bias": np.zeros(3)})
    >>> {name: leaf.shape for name, leaf in leaves.items()}
    {'kernel': (4, 3), 'bias': (3,)}
    """

    torch: str
    parts: tuple[Part, ...] = ()
    channels: Literal["last"] | None = None
    also: tuple[str, ...] = ()
    surplus: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.torch, *self.also)

    def parts_of_torch(self, names: Iterable[str]) -> tuple[Part, ...]:
        # A part with some names missing is skipped, which makes biases optional.
        available = set(names)
        return tuple(part for part in self.parts if available.issuperset(part.torch))

    def parts_of_flax(self, shapes: Shapes) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if shapes.keys() >= set(part.flax) and part.when(shapes))

    def to_flax(self, tensors: Mapping[str, np.ndarray], gradient: bool = False) -> dict[str, np.ndarray]:
        converted: dict[str, np.ndarray] = {}
        for part in self.parts_of_torch(tensors):
            arrays = part.forth((tensors[name] for name in part.torch), gradient)
            converted.update(zip(part.flax, arrays, strict=True))
        return converted

    def to_torch(self, leaves: Mapping[str, np.ndarray], gradient: bool = False) -> dict[str, np.ndarray]:
        converted: dict[str, np.ndarray] = {}
        for part in self.parts_of_flax({name: leaf.shape for name, leaf in leaves.items()}):
            arrays = part.back((leaves[name] for name in part.flax), gradient)
            converted.update(zip(part.torch, arrays, strict=True))
        return converted

    def torch_shapes(self, shapes: Shapes) -> dict[str, Shape]:
        return {name: array.shape for name, array in self.to_torch(_empty(shapes)).items()}

    def inside(self, path: str) -> Rule:
        """Return the rule of a layer that has this one as its attribute `path`."""
        return self._with(lambda part: {"flax": tuple(f"{path}.{leaf}" for leaf in part.flax)})

    def at_depth(self, depth: int, reverse: bool = False) -> Rule:
        """Return a cell's rule with torch's names for one layer and direction: `weight_ih_l0_reverse`."""
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
    return {name: np.broadcast_to(np.zeros((), np.bool_), shape) for name, shape in shapes.items()}


def same(torch: str, flax: str | None = None) -> Part:
    """Return a part that only renames: `flax` is torch's array, under the same name by default.

    >>> from jaxpar._rulebook import same
    >>> same("weight", "scale").flax
    ('scale',)
    """
    return Part((torch,), (flax or torch,), _through, _through)


def kernel(torch: str = "weight", flax: str = "kernel") -> Part:
    """Return a part that converts (O, I, *k) to (*k, I, O): without k, the transpose of a matrix.

    >>> import numpy as np
    >>> from jaxpar._rulebook import kernel
    >>> kernel().forth([np.zeros((8, 3, 5, 5))])[0].shape
    (5, 5, 3, 8)
    """
    return Part(
        (torch,),
        (flax,),
        lambda weight: (weight.transpose(*range(2, weight.ndim), 1, 0),),
        lambda kernel: (kernel.transpose(-1, -2, *range(kernel.ndim - 2)),),
    )


def _through(array: np.ndarray) -> Arrays:
    return (array,)
