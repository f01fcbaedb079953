"""Layers: arguments without a counterpart, layers that take `rngs`, and the expressions of their tensors.

All but the first are derived from jaxpar.nn.channels_first and the rulebook: a new layer needs no line here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx
from torch import nn

from jaxpar._rulebook import Part, rule_for
from jaxpar.nn import channels_first

DROPPED = ("inplace", "device", "dtype", "sparse", "enable_nested_tensor", "mask_check")
"""Arguments of torch's layers that mean nothing in JAX."""

# Without Module, the base of users' classes: their constructors keep their own arguments.
_LAYERS = {
    name: inspect.signature(getattr(channels_first, name)).parameters
    for name in dir(channels_first)
    if inspect.isclass(getattr(nn, name, None)) and name != "Module"
}
_REQUIRED = inspect.Parameter.empty

RANDOM = frozenset(
    name
    for name, parameters in _LAYERS.items()
    if "rngs" in parameters and parameters["rngs"].default is _REQUIRED
)
"""Layers that are built with `rngs`."""

# Identity has **kwargs.
ACCEPTING = frozenset(name for name, parameters in _LAYERS.items() if parameters.keys() & {"rngs", "kwargs"})
"""Layers that accept `rngs`, so that code that takes their class as an argument can build them."""


@functools.cache
def leaves(layer: str) -> dict[str, str]:
    """Return the expressions in jaxpar's layer for torch's tensors: {"weight": "kernel[...].T"} for a Linear.

    Tensors that are not a permutation of one leaf are missing.
    """
    parameters: Mapping[str, inspect.Parameter] = _LAYERS.get(layer, {})
    # A row of the rulebook may depend on a layer's settings, so one is built, of any sizes, without arrays
    # (eval_shape), and with the statistics that are optional in InstanceNorm.
    sizes = [1 for name, parameter in parameters.items() if parameter.default is _REQUIRED and name != "rngs"]
    options = {name: True for name in ("track_running_stats",) if name in parameters}

    def build() -> Any:
        rngs = {"rngs": nnx.Rngs(0)} if "rngs" in parameters else {}
        return getattr(channels_first, layer)(*sizes, **options, **rngs)

    try:
        instance = nnx.eval_shape(build) if parameters else None
    except ValueError:
        # Upsample, which has no tensors, cannot be built from sizes alone.
        return {}
    rule = rule_for(instance)
    texts = ((part, _text(part, instance)) for part in (rule.parts if rule else ()))
    return {part.torch[0]: text for part, text in texts if text}


def _text(part: Part, layer: Any) -> str:
    name = part.flax[0]
    if part.plain and name.isidentifier():
        return f"{name}[...]"
    leaf = getattr(layer, name, None)
    if leaf is None or len(part.flax) > 1 or len(part.torch) > 1:
        return ""
    # The rulebook only has the conversion, so it is tried on numbered elements and axes of different lengths.
    shape = range(2, 2 + leaf.ndim)
    x = np.arange(float(np.prod(shape))).reshape(shape)
    (converted,) = part.back([x])
    axes = [shape.index(length) for length in converted.shape if length in shape]
    if (
        len(axes) < leaf.ndim
        or not np.array_equal(x.transpose(axes), converted)
        or converted.dtype != x.dtype
    ):
        return ""
    return f"{name}[...].T" if axes == [1, 0] else f"{name}[...].transpose({', '.join(map(str, axes))})"
