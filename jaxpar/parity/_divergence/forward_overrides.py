"""Detect torch layers with a custom `forward` that computes their inputs, such as positions from a mask.

The Flax counterpart is the plain layer, which correctly returns something different for the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ..._rulebook import Rule
from .._sides.torch_float64 import in_float64
from .._sides.torch_side import to_numpy
from .._tensors import tensor_of
from .dataflow import with_tensors
from .torch_trace import LayerCall, tensors


def plain_results(layer: torch.nn.Module, rule: Rule, call: LayerCall) -> list[np.ndarray] | None:
    """Return the results of the rule's torch class, one for each way to call it; None without an override."""
    plain = _plain_forward(layer, rule)
    if plain is None or not call.outputs:
        return None
    results = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]), in_float64():
        for args, kwargs in _ways_to_call(call):
            try:
                again = tensors(plain(layer, *args, **kwargs))
            except Exception:
                continue  # the plain forward has a different signature, or rejects these arguments
            results += [to_numpy(x) for x in again[:1]]
    return results


def _plain_forward(layer: torch.nn.Module, rule: Rule) -> Callable[..., Any] | None:
    """Return the overridden `forward`, or None if the layer does not override it."""
    for kind in rule.kinds:
        base = getattr(torch.nn, kind, None)
        if base is not None and isinstance(layer, base):
            layer_forward = getattr(layer.forward, "__func__", None)
            return None if layer_forward is base.forward else base.forward
    return (lambda self, index: F.embedding(index, self.weight)) if "Embedding" in rule.kinds else None


def _ways_to_call(call: LayerCall) -> Iterator[tuple[tuple, dict[str, Any]]]:
    """Yield the original arguments, the arrays alone, and the first array alone."""
    arrays = [tensor_of(x.copy()) for x in call.inputs]
    instead = {id(old): new for old, new in zip(call.input_tensors, arrays, strict=True)}
    yield with_tensors(call.arguments, instead)
    yield tuple(arrays), {}
    yield tuple(arrays[:1]), {}
