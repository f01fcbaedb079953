"""Convolutions, their transposes, and what else moves channels: data is (N, C, *S) in torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from .rule import Part, Rule, Shapes, kernel, same


def convolution(layer: Any, shapes: Shapes | None) -> Rule:
    """(O, I/groups, *k) to (*k, I/groups, O)."""
    del shapes
    n = _axes(layer)
    return Rule(f"Conv{n}d", (kernel(), same("bias")), "last", also=(f"LazyConv{n}d",))


def transposed(layer: Any, shapes: Shapes | None) -> Rule:
    """(I, O, *k), which Flax keeps as (*k, O, I), or flipped as (*k, I, O) without transpose_kernel."""
    del shapes
    n = _axes(layer)
    parts = (kernel() if layer.transpose_kernel else flipped(n), same("bias"))
    return Rule(f"ConvTranspose{n}d", parts, "last", also=(f"LazyConvTranspose{n}d",))


def torch_form(layer: Any, shapes: Shapes | None) -> Rule:
    """jaxpar.nn.ConvTranspose: (I, O/groups, *k) to (*k, O/groups, I)."""
    del shapes
    n = _axes(layer)
    return Rule(f"ConvTranspose{n}d", (kernel(), same("bias")), "last", also=(f"LazyConvTranspose{n}d",))


def flipped(n: int) -> Part:
    """(I, O, *k) to (*k, I, O), every spatial axis from its end."""
    axes = tuple(range(n))

    def forth(weight: np.ndarray) -> tuple[np.ndarray]:
        return (np.flip(weight.transpose(*range(2, n + 2), 0, 1), axes),)

    def back(kernel: np.ndarray) -> tuple[np.ndarray]:
        return (np.flip(kernel, axes).transpose(n, n + 1, *axes),)

    return Part(("weight",), ("kernel",), forth, back)


def _axes(layer: Any) -> int:
    return 1 if isinstance(layer.kernel_size, int) else len(layer.kernel_size)


ROWS = {
    "nnx.Conv": convolution,
    "linen.Conv": convolution,
    "nnx.ConvTranspose": transposed,
    "linen.ConvTranspose": transposed,
    "jaxpar.nn.Conv": convolution,
    "jaxpar.nn.ConvTranspose": torch_form,
}
