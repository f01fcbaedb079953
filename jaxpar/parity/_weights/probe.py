"""Determine the weight layout of a torch layer of an unknown class by running a copy."""

from __future__ import annotations

import copy
from typing import Any


def linear_layout(layer: Any) -> str | None:
    """Return "out, in" if the module computes x @ weight.T + bias, "in, out" for x @ weight + bias."""
    import torch

    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        return None
    try:
        layer_copy = copy.deepcopy(layer).to("cpu", torch.float64).eval()
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            # Random weights, because an identity matrix or zeros would fit both layouts.
            for tensor in layer_copy.parameters():
                tensor.copy_(torch.rand(tensor.shape, generator=random, dtype=torch.float64) + 0.5)
            rows, columns = weight.shape
            forms = {"in, out": (rows, layer_copy.weight), "out, in": (columns, layer_copy.weight.T)}
            fitting = [name for name, form in forms.items() if _is(layer_copy, *form, random)]
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError):
        return None
    return fitting[0] if len(fitting) == 1 else None


def _is(layer: Any, width: int, matrix: Any, random: Any) -> bool:
    import torch

    x = torch.randn((2, 3, width), generator=random, dtype=torch.float64)
    bias = getattr(layer, "bias", None)
    try:
        expected, got = x @ matrix + (bias if isinstance(bias, torch.Tensor) else 0), layer(x)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError):
        return False
    same_shape = isinstance(got, torch.Tensor) and got.shape == expected.shape
    return same_shape and torch.allclose(got, expected, 1e-9, 1e-9)
