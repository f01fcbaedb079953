"""WeightNorm and SpectralNorm: the arrays that torch computes a weight from, under torch's names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from .rule import Layer, Part, Rule, Shape, same


def weight_norm(layer: Layer, inner: Rule) -> Rule | None:
    """Convert original0 (or weight_g) (O, 1, ...) to scale (O,), original1 (or weight_v) to the kernel."""
    part, other_parts = _split(layer, inner)
    if part is None:
        return None
    shape = _kernel_shape(layer)
    axis = None if layer.dim is None else layer.dim % len(shape)
    line = tuple(shape[a] if a == axis else 1 for a in range(len(shape)))
    name = part.torch[0]
    originals = f"parametrizations.{name}.original"
    forth, back = part.to_flax, part.to_torch

    # The magnitude has the weight's axes with length 1 except one, so the weight's own conversion permutes
    # the magnitude's axes correctly in every layer.
    def scale_forth(g: np.ndarray) -> tuple[np.ndarray]:
        return (g if axis is None else forth(g)[0].reshape(-1),)

    def scale_back(scale: np.ndarray) -> tuple[np.ndarray]:
        return (scale if axis is None else back(scale.reshape(line))[0],)

    scale = Part((originals + "0",), ("scale",), scale_forth, scale_back)
    direction = dataclasses.replace(part, torch=(originals + "1",), flax=(f"layer.{layer.name}",))
    parts = (scale, direction, _older(scale, f"{name}_g"), _older(direction, f"{name}_v"))
    rule = _around(inner, other_parts, parts)
    # The older form of weight_norm keeps the layer's class.
    return dataclasses.replace(rule, also=(*rule.also, *inner.kinds))


def spectral_norm(layer: Layer, inner: Rule) -> Rule | None:
    """Convert original to the layer's kernel, _u to u, and _v, flat in the weight's torch order, to v.

    With `first="v"` it writes the names of torch.nn.utils.spectral_norm.
    """
    part, other_parts = _split(layer, inner)
    if part is None:
        return None
    shape = _kernel_shape(layer)
    axis = layer.dim % len(shape)
    torch_shape, torch_axis = _in_torch(part.to_torch, shape, axis)
    others = tuple(n for a, n in enumerate(torch_shape) if a != torch_axis)
    forth, back = part.to_flax, part.to_torch

    # _v has one element per column of the weight as a matrix, in torch's axis order. Reshaped to the weight's
    # axes, it is permuted by the weight's own conversion.
    def v_forth(v: np.ndarray) -> tuple[np.ndarray]:
        return (forth(np.expand_dims(v.reshape(others), torch_axis))[0].squeeze(axis),)

    def v_back(v: np.ndarray) -> tuple[np.ndarray]:
        return (back(np.expand_dims(v, axis))[0].reshape(-1),)

    weight = part.torch[0]
    names = [f"parametrizations.{weight}.{name}" for name in ("original", "0._u", "0._v")]
    if layer.first == "v":
        names = [f"{weight}_{name}" for name in ("orig", "u", "v")]
    original, u, v = names
    kernel = dataclasses.replace(part, torch=(original,), flax=(f"layer.{layer.name}",))
    rule = _around(inner, other_parts, (kernel, same(u, "u"), Part((v,), ("v",), v_forth, v_back)))
    # The older function keeps the layer's class.
    return rule if layer.first == "u" else dataclasses.replace(rule, torch=inner.torch, also=inner.also)


def of_users(module: Layer) -> Rule | None:
    """Return the rule of a user's module without a row: its own arrays have equal names on both sides."""
    if type(module).__module__.partition(".")[0] in ("flax", "jaxpar"):
        return None
    names = [name for name, value in vars(module).items() if hasattr(value, "set_value")]
    return Rule(type(module).__name__, tuple(map(same, names)))


def _older(part: Part, name: str) -> Part:
    """Return the part under `torch.nn.utils.weight_norm`'s older name, which is read but never written."""
    return dataclasses.replace(part, torch=(name,), when=lambda shapes: False)


def _split(layer: Layer, inner: Rule) -> tuple[Part | None, tuple[Part, ...]]:
    """Return the part of the inner layer's rule that holds the kernel, and the other parts."""
    kernel_parts = [part for part in inner.parts if layer.name in part.flax]
    if len(kernel_parts) != 1 or len(kernel_parts[0].torch) != 1 or len(kernel_parts[0].flax) != 1:
        return None, ()
    return kernel_parts[0], tuple(part for part in inner.parts if part is not kernel_parts[0])


def _around(inner: Rule, other_parts: tuple[Part, ...], parts: tuple[Part, ...]) -> Rule:
    kinds = tuple(f"Parametrized{kind}" for kind in inner.kinds)
    inner_parts = dataclasses.replace(inner, parts=other_parts).inside("layer").parts
    return dataclasses.replace(inner, torch=kinds[0], also=kinds[1:], parts=(*parts, *inner_parts))


def _kernel_shape(layer: Layer) -> Shape:
    return tuple(getattr(layer.layer, layer.name).shape)


def _in_torch(back: Callable[..., tuple[np.ndarray, ...]], shape: Shape, axis: int) -> tuple[Shape, int]:
    """Return a kernel's shape in torch, and the index in that shape of the kernel's `axis`."""
    # `back` may permute the axes in any way. The sought one has the axis's length in `line`, where all others
    # have length 1, and length 1 in `without_axis`.
    numbers = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    (line,) = back(numbers)
    (full,) = back(np.broadcast_to(np.zeros((), np.bool_), shape))
    ones = [n if a != axis else 1 for a, n in enumerate(shape)]
    (without_axis,) = back(np.broadcast_to(np.zeros((), np.bool_), ones))
    candidates = [a for a in range(len(shape)) if line.shape[a] == shape[axis] and without_axis.shape[a] == 1]
    return full.shape, candidates[0]
