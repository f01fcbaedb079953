"""Conversion of weights by name between torch's layout and Flax's, in memory; the models hold no values.

`load_torch` and `to_torch` move weights between models. Here only arrays move: a Flax module says what the
leaves are called and how they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import MatchError
from ._weights.load_torch import converted
from ._weights.source import source_of
from ._weights.to_torch import imagined, state_dict
from ._weights.tree_of import tree_of
from ._weights.unmatched import complete_links


def torch_to_flax(
    tensors: Mapping[str, Any],
    flax_module: Any,
    *,
    inputs: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    variables: Any = None,
    mapping: Mapping[str, Any] | None = None,
    ignore_torch: Sequence[str] = (),
    ignore_flax: Sequence[str] = (),
    label: str = "torch_to_flax",
) -> dict[str, np.ndarray]:
    """A torch state_dict as the arrays of a Flax module, by the names that its leaves have in a file.

    Args:
      tensors: tensors or arrays by torch's names.
      flax_module, inputs, kwargs, variables, mapping, ignore_torch, ignore_flax: as in `load_torch`.
      label: what errors begin with.

    Raises:
      MatchError: the weights are not the model's.
    """
    here, there = tree_of(flax_module, inputs, kwargs, variables), source_of(tensors)
    links = complete_links(here, there, mapping, ignore_torch, ignore_flax, label)
    return {here.files[path]: leaf for path, leaf in converted(links, there).items()}


def flax_to_torch(
    arrays: Mapping[str, Any],
    flax_module: Any,
    *,
    inputs: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    variables: Any = None,
    mapping: Mapping[str, Any] | None = None,
    ignore_torch: Sequence[str] = (),
    ignore_flax: Sequence[str] = (),
    label: str = "flax_to_torch",
) -> dict[str, np.ndarray]:
    """The way back: arrays by the names of `torch_to_flax` as a torch state_dict of arrays.

    Raises:
      MatchError: the arrays are not the model's.
    """
    here = tree_of(flax_module, inputs, kwargs, variables)
    there = imagined(here, dict(mapping or {}), set(ignore_flax))
    links = complete_links(here, there, mapping, ignore_torch, ignore_flax, label)
    wanted = {here.files[path]: path for part in links.parts for path in part.flax}
    if wanted.keys() != arrays.keys():
        raise MatchError(
            f"{label}: it is not this model's file in Flax's layout. Only in the file: "
            f"{_some(arrays.keys() - wanted.keys())}; only in the model: "
            f"{_some(wanted.keys() - arrays.keys())}."
        )
    given = source_of(arrays)
    leaves = {path: given.array(name) for name, path in wanted.items()}
    for path, leaf in leaves.items():
        shape = here.leaves[path].shape
        if leaf.shape != shape:
            raise MatchError(f"{label}: {path} is {leaf.shape} in the file and {shape} in the model.")
    return state_dict(links, leaves, there)


def _some(names: set[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ", ".join(listed[:5]) + more if listed else "nothing"
