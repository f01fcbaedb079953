"""`jaxpar convert`: files of weights from one kind to another, and between torch's layout and Flax's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import MatchError
from ._files import read_weights, write_weights

NAMES = (
    "flax_module",
    "inputs",
    "layout",
    "flax_kwargs",
    "variables",
    "mapping",
    "ignore_torch",
    "ignore_flax",
)
"""What a spec may define for it."""


def convert(source: str, target: str, *, key: str | None, spec: str | None, to: str | None) -> str:
    """Converts a file and says what it did.

    Args:
      source, target: paths; their endings say of what kind they are.
      key: where the state_dict is in a checkpoint.
      spec: a Python file that defines `flax_module`.
      to: "flax" or "torch", the layout that is wanted.

    Raises:
      FileError: `source` cannot be read, or `target` not hold it. SpecError: the spec is wrong.
      MatchError: the weights are not the model's.
    """
    tensors = read_weights(source, key=key)
    metadata = {"format": "pt"}
    if spec is not None:
        tensors = _to_flax(tensors, source, spec) if to == "flax" else _to_torch(tensors, source, spec)
        metadata = {"format": "flax" if to == "flax" else "pt"}
    write_weights(target, tensors, metadata=metadata)
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in tensors.values())
    return f"{source} -> {target}: {len(tensors)} tensors, {size / 1e6:.1f} MB"


def _to_flax(tensors: dict[str, Any], source: str, spec: str) -> dict[str, np.ndarray]:
    from ._weights.load import converted
    from ._weights.matching import linked
    from ._weights.source import source as source_of

    here, links_with = _model(spec)
    there = source_of(tensors)
    leaves = converted(linked(here, there, function=f"convert {source}", **links_with), there)
    return {here.files[path]: leaf for path, leaf in leaves.items()}


def _to_torch(arrays: dict[str, Any], source: str, spec: str) -> dict[str, np.ndarray]:
    from ._weights.give import imagined, state_dict
    from ._weights.matching import linked
    from ._weights.source import source as source_of

    here, links_with = _model(spec)
    ignored = set(links_with["ignore_flax"])
    there = imagined(here, dict(links_with["mapping"] or {}), ignored)
    links = linked(here, there, function=f"convert {source}", **links_with)
    wanted = {here.files[path]: path for part in links.parts for path in part.flax}
    if wanted.keys() != arrays.keys():
        raise MatchError(
            f"convert {source}: it is not this model's file in Flax's layout. Only in the file: "
            f"{_some(arrays.keys() - wanted.keys())}; only in the model: "
            f"{_some(wanted.keys() - arrays.keys())}."
        )
    given = source_of(arrays)
    leaves = {path: given.array(name) for name, path in wanted.items()}
    for path, leaf in leaves.items():
        shape = here.leaves[path].shape
        if leaf.shape != shape:
            raise MatchError(
                f"convert {source}: {path} is {leaf.shape} in the file and {shape} in the model."
            )
    return state_dict(links, leaves, there)


def _model(spec: str) -> tuple[Any, dict[str, Any]]:
    """The spec's model as a tree, and how it is to be matched."""
    from .._cli.parity_spec import read_spec
    from ._sides.layout import Layout
    from ._weights.tree import tree

    given = read_spec(spec, ("flax_module",), NAMES)
    inputs = given.get("inputs")
    if inputs is not None:
        layout = Layout.parse(given.get("layout", "same"))
        several = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        inputs = tuple(layout.inputs(np.asarray(x)) for x in several)
    here = tree(given["flax_module"], inputs, given.get("flax_kwargs"), given.get("variables"))
    return here, {
        "mapping": given.get("mapping"),
        "ignore_torch": given.get("ignore_torch", ()),
        "ignore_flax": given.get("ignore_flax", ()),
    }


def _some(names: Any) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ", ".join(listed[:5]) + more if listed else "nothing"
