"""Links: which torch tensors make which Flax leaves, for one pair of models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from ..._rulebook import Part, Rule
from .tree import Leaf

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Link:
    """A layer of torch and its layer in Flax.

    Attributes:
      torch: path of the torch module, as in `named_modules()`.
      flax: path of the Flax module.
      rule: the rulebook's row; None for a container, or a module of the user's own.
      parts: what becomes what, by full names; only those of this layer itself.
    """

    torch: str
    flax: str
    rule: Rule | None
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Links:
    """The matched layers of two models, and the conversion of everything that is in them.

    Arrays are by name: torch's as in `state_dict()`, Flax's by leaf path ("blocks.0.fc.kernel", Linen
    without its collections). What is not given is left out, so gradients of the parameters alone, or
    the tensors of one layer, convert as well.

    Attributes:
      layers: in the Flax model's order; containers before what is in them.
      leaves: shape, dtype and kind of every Flax leaf.
      repeats: parts whose leaves another part makes already (tied weights).
      tied: for a torch name, the other names of the same tensor.
      surplus: torch names without a place in Flax, and what they are given back as.
    """

    layers: tuple[Link, ...]
    leaves: Mapping[str, Leaf]
    repeats: tuple[Part, ...] = ()
    tied: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    surplus: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def parts(self) -> Iterator[Part]:
        return (part for link in self.layers for part in link.parts)

    @property
    def pairs(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """(torch names, Flax leaves) that make each other, for display."""
        return tuple((part.torch, part.flax) for part in self.parts)

    def to_flax(self, tensors: Mapping[str, np.ndarray], gradient: bool = False) -> Arrays:
        """Flax leaves from torch arrays; views of these where no copy is needed.

        With `gradient`, merged biases take torch's gradient once instead of the sum of two.
        """
        found: Arrays = {}
        for part in self.parts:
            arrays = [self._find(name, tensors) for name in part.torch]
            if all(array is not None for array in arrays):
                found.update(zip(part.flax, part.forth(arrays, gradient), strict=True))  # type: ignore[arg-type]
        return found

    def to_torch(self, leaves: Mapping[str, np.ndarray], gradient: bool = False) -> Arrays:
        """Torch arrays from Flax leaves; all names of tied tensors, no surplus."""
        found: Arrays = {}
        for part in (*self.parts, *self.repeats):
            if leaves.keys() >= set(part.flax):
                arrays = part.back((leaves[leaf] for leaf in part.flax), gradient)
                found.update(zip(part.torch, arrays, strict=True))
        for name in list(found):
            found |= {other: found[name] for other in self.tied.get(name, ()) if other not in found}
        return found

    def parameters(self, tensors: Mapping[str, np.ndarray]) -> Arrays:
        """`to_flax`, parameters only."""
        return {path: x for path, x in self.to_flax(tensors).items() if self.leaves[path].parameter}

    def state(self, tensors: Mapping[str, np.ndarray]) -> Arrays:
        """`to_flax`, without the parameters: what torch calls buffers."""
        return {path: x for path, x in self.to_flax(tensors).items() if not self.leaves[path].parameter}

    def gradients(self, tensors: Mapping[str, np.ndarray]) -> Arrays:
        """`to_flax` of gradients."""
        return self.to_flax(tensors, gradient=True)

    def _find(self, name: str, tensors: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """By its name, or by another name of the same tensor."""
        return next((tensors[n] for n in (name, *self.tied.get(name, ())) if n in tensors), None)
