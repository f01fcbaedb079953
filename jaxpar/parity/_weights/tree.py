"""A Flax model as layers and leaves by path, the same for NNX and Linen.

A path is the attributes' names with dots between them: `blocks.0.attn.query.kernel`. Linen's
collections are not part of it, so BatchNorm's `scale` and `mean` stand side by side in both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from flax import linen, nnx

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a Flax model. `parameter` is False for what torch calls a buffer."""

    shape: Shape
    dtype: np.dtype
    parameter: bool


class Tree(Protocol):
    """A Flax model, with or without values.

    Attributes:
      layers: every module in it by path, in the order of definition (NNX) or of calls (Linen); the
        model itself is "".
      leaves: every array but random states, caches and intermediates, in the layers' order. Of a
        variable that stands in several places, the first.
      aliases: the other places of such variables, and the first.
      names: every path without the `layers` of Sequential and the `module` of DataParallel, which
        torch's names do not have.
      files: the name of every leaf in a file: with Linen's collections, so that the names are those of
        the variables.
      wrapped: whether the model itself is a DataParallel, so that torch's names begin with `module.`
    """

    layers: dict[str, Any]
    leaves: dict[str, Leaf]
    aliases: dict[str, str]
    names: dict[str, str]
    files: dict[str, str]
    wrapped: bool

    def own_shapes(self, path: str) -> dict[str, Shape]:
        """The shapes of a layer's own leaves, by their names in it."""

    def values(self) -> dict[str, Any]:
        """The arrays as they are, by leaf path."""

    def write(self, values: Mapping[str, np.ndarray]) -> Any:
        """Puts arrays of the leaves' shapes and dtypes in their places, on the devices where the old
        ones are. NNX: in place, returns the module. Linen: returns new variables."""


def tree(module: Any, inputs: Sequence[Any] | None = None, kwargs: Any = None, variables: Any = None) -> Tree:
    """The tree of a module.

    Args:
      module: an NNX module, or a Linen module (`inputs` needed, `bind` not).
      inputs: what the Linen module is called with; arrays or `jax.ShapeDtypeStruct`s.
      kwargs: keyword arguments of that call.
      variables: the Linen module's variables, where there are any.

    Raises:
      TypeError: no Flax module, or a Linen module without inputs.
    """
    if isinstance(module, nnx.Module):
        from .nnx_tree import NNXTree

        return NNXTree(module)
    if isinstance(module, linen.Module):
        from .linen_tree import LinenTree

        if inputs is None:
            raise TypeError(
                f"{type(module).__name__} is a Linen module, which only knows its layers when it is called: "
                "give inputs=(x,), the arguments of one call (shapes are enough: jax.ShapeDtypeStruct)."
            )
        return LinenTree(module, tuple(inputs), dict(kwargs or {}), variables)
    raise TypeError(
        f"{type(module).__module__}.{type(module).__qualname__} is no Flax module; load_torch and its like "
        "take an nnx.Module or a flax.linen.Module first, and torch's second."
    )


def by_owner(leaves: Mapping[str, Leaf]) -> dict[str, dict[str, Shape]]:
    """Leaves' shapes by the layer that they are in."""
    found: dict[str, dict[str, Shape]] = {}
    for path, leaf in leaves.items():
        found.setdefault(owner(path), {})[path.rpartition(".")[2]] = leaf.shape
    return found


def real_path(tree: Tree, path: str) -> str:
    """The path that a mapping means, which may leave DataParallel's `module` and the like away."""
    if path in tree.names:
        return path
    return next((real for real, name in tree.names.items() if name == path), path)


def torch_like(path: str) -> str:
    """`blocks_0.attn` as `blocks.0.attn`: how a path is compared with torch's."""
    return re.sub(r"_(\d+)(?=\.|$)", r".\1", path)


def owner(leaf: str) -> str:
    """The path of the layer that a leaf is in."""
    return leaf.rpartition(".")[0]


def inside(path: str, prefix: str) -> str | None:
    """What is left of a path below a prefix, by whole words; None if it is not below it."""
    if not prefix or path == prefix:
        return path if not prefix else ""
    return path[len(prefix) + 1 :] if path.startswith(prefix + ".") else None


def join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
