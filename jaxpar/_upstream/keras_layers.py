"""Keras's layers and variables by the attributes that hold them, as torch names its modules.

Keras lists a layer's sublayers, but not under which attributes they are stored. Attributes such as `_kernel`
and `_query_dense` are private; a public list of sublayers with their attributes would do.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any


def is_of_keras(model: object) -> bool:
    """Whether a model is a layer or a model of Keras, which is not imported if it is not yet."""
    layers = getattr(sys.modules.get("keras"), "layers", None)
    return layers is not None and isinstance(model, layers.Layer)


def members(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the layers and variables that a layer holds, by path below it.

    Layers of a Sequential or a functional model have their names, and all other members their attributes'
    without leading underscores. A random stream's state ends in `.state`.
    """
    import keras

    listed = set[int]()
    for attribute, value in vars(layer).items():
        if attribute not in _bookkeeping():
            for path, member in _contents(attribute.lstrip("_"), value):
                listed.add(id(member))
                yield path, member
    children = (child for child in getattr(layer, "layers", ()) if id(child) not in listed)
    yield from _named([child for child in children if not isinstance(child, keras.layers.InputLayer)])


def _named(layers: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield layers with their names, of which those that Keras makes up are numbered within the model.

    Keras numbers them within the process, so that the same code makes `dense` and then `dense_1`.
    """
    counts: Counter[str] = Counter()
    names = set[str]()
    for layer in layers:
        name = re.sub(r"_\d+$", "", layer.name)
        if name.replace("_", "") == type(layer).__name__.lower():
            counts[name] += 1
            name += f"_{counts[name] - 1}" if counts[name] > 1 else ""
        else:
            name = layer.name
        name = layer.name if name in names else name
        names.add(name)
        yield name, layer


def _contents(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    import keras

    if isinstance(value, keras.random.SeedGenerator):
        yield f"{path}.state", value.state
    elif isinstance(value, keras.layers.Layer | keras.Variable):
        yield path, value
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _contents(f"{path}.{i}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _contents(f"{path}.{key}", item)


@functools.cache
def _bookkeeping() -> frozenset[str]:
    """Return the attributes that every layer and model has, and that list layers and variables again."""
    import keras

    # Named, because a name that Keras makes up would change the names of the user's next layers.
    inputs, layer = keras.Input((1,), name="inputs"), keras.layers.Identity(name="layer")
    models = keras.Model(inputs, inputs, name="model"), keras.Sequential([inputs, layer], name="sequential")
    return frozenset(name for one in (layer, *models) for name in vars(one))
