"""The outline of a JAX model in a trace: its layers, leaves and names, without the model's code.

The rulebook looks a layer's class up by name, and reads a few settings. So a layer of a trace is an object of
an empty class with the same names of bases and the recorded settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from .._weights.tree import LeafSpec, Outline, Tree, join
from .writing import is_setting

MOST_BASES = 64


def outline_to_json(tree: Tree) -> dict[str, Any]:
    return {
        "layers": [[path, _layer_to_json(path, layer, tree)] for path, layer in tree.layers.items()],
        "leaves": [[path, list(x.shape), str(x.dtype), x.parameter] for path, x in tree.leaves.items()],
        "aliases": [list(pair) for pair in tree.aliases.items()],
        "names": [list(pair) for pair in tree.names.items()],
        "wrapped": tree.wrapped,
    }


def _layer_to_json(path: str, layer: Any, tree: Tree) -> dict[str, Any]:
    kinds = type(layer).__mro__[:-1]
    attributes = {name: x for name, x in vars(layer).items() if isinstance(name, str)}
    parts = [name for name in attributes if join(path, name) in tree.layers]
    arrays = [name for name in attributes if tree.first(join(path, name)) in tree.leaves]
    plain = {name: x for name, x in attributes.items() if is_setting(x)}
    settings = {name: list(x) if isinstance(x, tuple) else x for name, x in plain.items()}
    return {
        "kinds": [[kind.__module__, kind.__name__] for kind in kinds[:MOST_BASES]],
        "settings": settings,
        "parts": parts,
        "arrays": arrays,
    }


class RecordedOutline(Outline):
    """An outline read from a trace; fields that make no sense raise a ValueError or the like."""

    def __init__(self, data: Mapping[str, Any]):
        self.leaves = {
            str(path): LeafSpec(tuple(map(int, shape)), np.dtype(str(dtype)), bool(parameter))
            for path, shape, dtype, parameter in data["leaves"]
        }
        self.aliases = {str(path): str(first) for path, first in data["aliases"]}
        self.names = {str(path): str(name) for path, name in data["names"]}
        self.wrapped = bool(data["wrapped"])
        entries = {str(path): entry for path, entry in data["layers"]}
        if not {*entries, *self.leaves} <= self.names.keys():
            raise ValueError("it has a layer or a leaf without a name")
        if not set(self.aliases.values()) <= self.leaves.keys():
            raise ValueError("it has an alias of no leaf")
        self.layers = {path: _stand_in(entry) for path, entry in entries.items()}
        for path, entry in entries.items():
            for name in entry["parts"]:
                vars(self.layers[path])[str(name)] = self.layers[join(path, str(name))]
            for name in entry["arrays"]:
                shape = self.leaves[self.first(join(path, str(name)))].shape
                vars(self.layers[path])[str(name)] = SimpleNamespace(shape=shape)


def _stand_in(entry: Mapping[str, Any]) -> Any:
    kind: type = object
    for module, name in reversed(entry["kinds"][:MOST_BASES]):
        kind = type(str(name), (kind,), {"__module__": str(module)})
    layer = type("Layer", (kind,), {})() if kind is object else kind()
    for name, x in entry["settings"].items():
        # Not through `setattr`, for which a name such as __class__ has a meaning.
        vars(layer)[str(name)] = tuple(x) if isinstance(x, list) else x
    return layer
