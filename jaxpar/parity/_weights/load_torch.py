"""load_torch: load a torch model's weights into a Flax model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import MatchError
from .mapping import Entries
from .pairing import Arrays, Links
from .pytree_model import PytreeModel
from .source import TorchWeights, WeightSource, source_of
from .torch_tree import candidate_tree
from .tree import FlaxModule, JaxModel, Tree, Variables, tree_of
from .unmatched import complete_links


def load_torch(
    flax_module: JaxModel,
    torch_module: TorchWeights,
    *,
    mapping: Entries | None = None,
    ignore_torch: Iterable[str] = (),
    ignore_flax: Iterable[str] = (),
    inputs: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    variables: Variables | None = None,
    lossy: bool = False,
) -> Any:
    """Load a torch model's weights into an equivalent Flax model.

    Layers are matched by name and converted by the rulebook. Every tensor and every leaf must be used exactly
    once; otherwise nothing is loaded. Leaves keep the Flax model's element types and devices.

    Args:
      flax_module: an NNX module (`nnx.eval_shape`'s result included), a Linen module, `(function, params)`,
        a Keras 3 model, or a callable pytree such as an Equinox module.
      torch_module: a torch module, a state_dict (of tensors or arrays), or the path of a
        `.safetensors`, `.pt`, `.pth` or `.bin` file.
      mapping: Flax paths by torch names, where they differ; see `match`. A key applies to all names nested
        under it; values are paths, `flattened`, `transposed`, or tuples of paths.
      ignore_torch, ignore_flax: names, including all nested ones, that the other side lacks. Ignored leaves
        keep their values.
      inputs, kwargs: the arguments of one call of a Linen module; shapes are enough.
      variables: initial values of a Linen module, needed for `ignore_flax`.
      lossy: allow values to change in the conversion to a leaf's element type.

    Returns:
      The same module for NNX and Keras, filled; the variables for Linen; a pytree or params with torch's
      numbers.

    Raises:
      MatchError: names, shapes or element types do not fit; the message lists both sides.
      FileError: the file is damaged or of an unknown kind.

    torch counterpart: `module.load_state_dict(state_dict, strict=True)`.

    >>> import numpy as np
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> state_dict = {"weight": np.ones((3, 2), np.float32), "bias": np.zeros(3, np.float32)}
    >>> net = parity.load_torch(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), state_dict)
    >>> net.kernel.shape, float(net.kernel.sum())
    ((2, 3), 6.0)
    """
    source = source_of(torch_module)
    tree = tree_of(flax_module, inputs, kwargs, variables)
    links = complete_links(tree, source, mapping, ignore_torch, ignore_flax)
    leaves = converted(links, source)
    return tree.write({path: _fitted(path, array, tree, lossy) for path, array in leaves.items()})


def links_of(
    flax_module: FlaxModule,
    torch_module: TorchWeights,
    *,
    inputs: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    variables: Variables | None = None,
    **options: Any,
) -> Links:
    """Return the links of two models, with `complete_links`'s options."""
    tree = candidate_tree(flax_module, inputs, kwargs, variables)
    return complete_links(tree, source_of(torch_module), **options)


def with_buffers(module: FlaxModule, links: Links, buffers: frozenset[str]) -> Links:
    """Turn leaves of a tree into buffers where torch has buffers."""
    if not isinstance(module, PytreeModel):
        return links
    parts = [part for link in links.layers for part in link.parts if set(part.torch) <= buffers]
    floating = {name for name, leaf in links.leaves.items() if np.issubdtype(leaf.dtype, np.inexact)}
    names = floating & {leaf for part in parts for leaf in part.flax}
    module.keep(names)
    leaves = {
        name: dataclasses.replace(leaf, parameter=leaf.parameter and name not in names)
        for name, leaf in links.leaves.items()
    }
    return dataclasses.replace(links, leaves=leaves, buffers=tuple(sorted(names)))


def converted(links: Links, source: WeightSource) -> Arrays:
    leaves = links.to_flax(source)
    for part in links.repeats:
        for path, array in zip(part.flax, part.forth([source[name] for name in part.torch]), strict=True):
            if not np.array_equal(array, leaves[path], equal_nan=array.dtype.kind == "f"):
                raise MatchError(
                    f"load_torch: {', '.join(part.torch)} is one more tensor for {path}, which Flax has "
                    "once, and its values are not those of the first one. Give the Flax model a variable of "
                    "its own for it."
                )
    return leaves


def _fitted(path: str, array: np.ndarray, tree: Tree, lossy: bool) -> np.ndarray:
    dtype = tree.leaves[path].dtype
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        fitted = array.astype(dtype)
        back = fitted.astype(array.dtype)
        changed = 0 if lossy else np.count_nonzero((array != back) & ~((array != array) & (back != back)))
    if changed:
        raise MatchError(
            f"load_torch: {path} is {dtype} in Flax and {array.dtype} in torch: {changed} of {array.size} "
            f"values would change. Build the model with param_dtype={array.dtype}, convert torch's first, "
            "or allow it with lossy=True."
        )
    return fitted
