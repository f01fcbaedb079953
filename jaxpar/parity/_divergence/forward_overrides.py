"""Overridden forwards: a torch layer that makes its own inputs, as a table of positions that counts a mask.

Its Flax layer is the plain one, called with what the torch layer makes inside. Given torch's inputs it would
return something else, and nothing would be wrong.
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
    """What the forward of the torch class that the rule is about returns for such a call.

    One result for each way to call it; None if the layer has no other forward. Of a class that is no subclass
    of it, and no table, nothing is known, and it is None, too.
    """
    plain = _plain_forward(layer, rule)
    if plain is None or not call.outputs:
        return None
    results = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]), in_float64():
        for args, kwargs in _ways_to_call(call):
            try:
                again = tensors(plain(layer, *args, **kwargs))
            except Exception:
                continue  # the plain forward has other arguments, or refuses what it is given
            results += [to_numpy(x) for x in again[:1]]
    return results


def _plain_forward(layer: torch.nn.Module, rule: Rule) -> Callable[..., Any] | None:
    """None if the layer has no other forward."""
    for kind in rule.kinds:
        base = getattr(torch.nn, kind, None)
        if base is not None and isinstance(layer, base):
            layer_forward = getattr(layer.forward, "__func__", None)
            return None if layer_forward is base.forward else base.forward
    return _looked_up if "Embedding" in rule.kinds else None


def _looked_up(layer: torch.nn.Module, index: torch.Tensor) -> torch.Tensor:
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return F.embedding(index, weight)


def _ways_to_call(call: LayerCall) -> Iterator[tuple[tuple, dict[str, Any]]]:
    """As it was called, with the arrays alone, and with the first array alone."""
    arrays = [tensor_of(x.copy()) for x in call.inputs]
    instead = {id(old): new for old, new in zip(call.input_tensors, arrays, strict=True)}
    yield with_tensors(call.arguments, instead)
    yield tuple(arrays), {}
    yield tuple(arrays[:1]), {}
