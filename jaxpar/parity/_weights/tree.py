"""Tree: a Flax model as layers and leaves by path, the same for NNX and Linen.

Linen's collections are not part of a path, so BatchNorm's `scale` and `mean` stand side by side in both.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from flax import linen, nnx

from ..._rulebook import Rule, rule_for
from ..._typing import Shape
from .paths import last, owner

FlaxModule: TypeAlias = "nnx.Module | linen.Module"
Variables: TypeAlias = Mapping[str, Any]
"""Of a Linen module: trees of arrays by collection."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a Flax model. `parameter` is False for what torch calls a buffer."""

    shape: Shape
    dtype: np.dtype
    parameter: bool


class Tree(abc.ABC):
    """A Flax model, with or without values.

    Attributes:
      layers: every module by path, in the order of definition (NNX) or of calls (Linen); the model itself
        is "".
      leaves: every array but random states, caches and intermediates, in the layers' order. A variable that
        stands in several places is listed at the first.
      aliases: the other places of such variables, each with the first.
      names: every path without the `layers` of Sequential and the `module` of DataParallel, which torch's
        names do not have.
      files: the name of every leaf in a file: with Linen's collections, as the variables have them.
      wrapped: whether the model itself is a DataParallel, so that torch's names begin with `module.`
    """

    layers: dict[str, FlaxModule]
    leaves: dict[str, Leaf]
    aliases: dict[str, str]
    names: dict[str, str]
    files: dict[str, str]
    wrapped: bool

    @abc.abstractmethod
    def values(self) -> dict[str, Any]:
        """The arrays as they are, by leaf path."""

    @abc.abstractmethod
    def write(self, values: Mapping[str, np.ndarray]) -> nnx.Module | Variables:
        """Puts arrays of the leaves' shapes and dtypes in their places, on the devices of the old ones.

        NNX: in place; returns the module. Linen: returns new variables.
        """

    def own_shapes(self, path: str) -> dict[str, Shape]:
        """The shapes of a layer's own leaves, by their names in it."""
        return self._shapes.get(path, {})

    def rule(self, path: str) -> Rule | None:
        """The rulebook's rule for a layer."""
        return rule_for(self.layers.get(path), self.own_shapes(path))

    def real_path(self, path: str) -> str:
        """The path that a mapping means, which may leave out DataParallel's `module` and the like."""
        if path in self.names:
            return path
        return next((real for real, name in self.names.items() if name == path), path)

    def first(self, leaf: str) -> str:
        """The place under which a leaf is listed."""
        return self.aliases.get(leaf, leaf)

    @functools.cached_property
    def _shapes(self) -> dict[str, dict[str, Shape]]:
        found: dict[str, dict[str, Shape]] = {}
        for path, leaf in self.leaves.items():
            found.setdefault(owner(path), {})[last(path)] = leaf.shape
        return found
