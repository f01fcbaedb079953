"""Layouts: the rulebook's parts for torch layers with weight norm, and for weights in other axes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..._rulebook import Part, Rule
from ..._typing import Shape
from .reversible import Reshape, TransposeAxes, empty, preceded
from .source import WeightSource
from .tree import Outline, join, last, owner

CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d")
DIRECTIONS = {
    "parametrizations.weight.original1": "parametrizations.weight.original0",
    "weight_v": "weight_g",
}
"""Names of a weight's magnitude by the direction's, in torch's current and older weight_norm."""


def normed(parts: Iterable[Part], torch_names: Mapping[str, str], tree: Outline, path: str) -> list[Part]:
    """Return the parts of a layer with weight norm in torch and Linen's WeightNorm in Flax."""
    direction = next((name for name in DIRECTIONS if name in torch_names), None)
    weight = next((part for part in parts if part.torch == ("weight",)), None)
    scale = scale_of(tree, path)
    if direction is None or weight is None or scale is None:
        return []
    magnitude = Part(
        (DIRECTIONS[direction],), (scale,), _one_axis, lambda g: (_many_axes(g, weight, tree, path),)
    )
    return [dataclasses.replace(weight, torch=(direction,)), magnitude]


def scale_of(tree: Outline, path: str) -> str | None:
    """Return the path of a Linen WeightNorm's magnitude; the wrapper is a sibling or parent of the layer."""
    end = f"{last(path)}/kernel/scale"
    leaves = (leaf for leaf in tree.leaves if last(leaf) == end)
    return next((leaf for leaf in leaves if owner(path) in (owner(leaf), owner(owner(leaf)))), None)


def _one_axis(magnitude: np.ndarray) -> tuple[np.ndarray]:
    if magnitude.shape[1:] != (1,) * (magnitude.ndim - 1) or not magnitude.ndim:
        raise ValueError("torch normalises over another axis than the first")
    return (magnitude.reshape(-1),)


def _many_axes(scale: np.ndarray, weight: Part, tree: Outline, path: str) -> np.ndarray:
    dimensions = len(tree.leaves[join(path, weight.flax[0])].shape)
    return scale.reshape(-1, *(1,) * (dimensions - 1))


def is_pointwise(shape: Shape) -> bool:
    """Whether it is the shape of a convolution's weight (O, I, 1, ...) with a kernel of one element."""
    return len(shape) > 2 and set(shape[2:]) == {1}


def as_pointwise(
    part: Part, rule: Rule, kinds: Sequence[str] | None, shape: Shape, leaf: Shape
) -> Part | None:
    """Return a weight's part where one side has a convolution of one element and the other a linear layer.

    `kinds` are torch's classes, None for a state_dict, `shape` is torch's, `leaf` Flax's. Return None for all
    other layers.
    """
    if rule.torch == "Linear" and is_pointwise(shape) and (kinds is None or set(kinds) & set(CONVOLUTIONS)):
        return preceded(part, Reshape(shape, shape[:2]))
    if rule.torch in CONVOLUTIONS and len(shape) == 2 and (kinds is None or "Linear" in kinds):
        return preceded(part, Reshape(shape, (*shape, *(1,) * (len(leaf) - 2))))
    return None


def implied_rule(rule: Rule, tree: Outline, path: str) -> Rule:
    today = next(iter(DIRECTIONS))
    parts = normed(rule.parts, {today: today}, tree, path)
    other_parts = tuple(part for part in rule.parts if part.torch != ("weight",))
    return dataclasses.replace(rule, parts=(*other_parts, *parts)) if parts else rule


def turned(part: Part) -> Part:
    """Return the part of an (out, in) weight adapted to torch weights of shape (in, out)."""
    return preceded(part, TransposeAxes((1, 0)))


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


def misfit(part: Part, source: WeightSource, tree: Outline) -> str | None:
    """Return why torch's arrays of a part do not have the shapes of Flax's; None if they have."""
    shapes = source.shapes
    # Run the conversion on broadcast arrays of one byte: exact shapes, no memory.
    dummies = [empty(shapes[name]) for name in part.torch]
    sources = ", ".join(f"{name} {shapes[name]}" for name in part.torch)
    expected = ", ".join(f"{leaf} is {tree.leaves[leaf].shape}" for leaf in part.flax)
    try:
        converted = [array.shape for array in part.to_flax(*dummies)]
    except (ValueError, IndexError):
        return f"{sources} cannot become what Flax has: {expected}"
    if converted == [tree.leaves[leaf].shape for leaf in part.flax]:
        return None
    became = ", ".join(map(str, converted))
    return f"{sources} becomes {became} in Flax's layout, and {expected}"
