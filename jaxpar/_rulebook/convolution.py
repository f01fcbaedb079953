"""Convolutions and their transposes."""

from __future__ import annotations

import numpy as np

from .rule import Layer, Part, Rule, Shapes, kernel, same


def convolution(layer: Layer, shapes: Shapes | None) -> Rule:
    """(O, I/groups, *k) to (*k, I/groups, O)."""
    n = _axes(layer)
    return Rule(f"Conv{n}d", (kernel(), same("bias")), "last", also=(f"LazyConv{n}d",))


def transposed(layer: Layer, shapes: Shapes | None) -> Rule:
    """(I, O/groups, *k) to (*k, O/groups, I); flipped in all axes *k unless transpose_kernel=True."""
    n = _axes(layer)
    parts = (kernel() if getattr(layer, "transpose_kernel", True) else flipped(n), same("bias"))
    return Rule(f"ConvTranspose{n}d", parts, "last", also=(f"LazyConvTranspose{n}d",))


def flipped(n: int) -> Part:
    """Convert (I, O, *k) to (*k, I, O) with every spatial axis reversed."""
    # Flax computes a transposed convolution as a convolution, whose kernel is the flip of torch's.
    axes = tuple(range(n))

    def forth(weight: np.ndarray) -> tuple[np.ndarray]:
        return (np.flip(weight.transpose(*range(2, n + 2), 0, 1), axes),)

    def back(kernel: np.ndarray) -> tuple[np.ndarray]:
        return (np.flip(kernel, axes).transpose(n, n + 1, *axes),)

    return Part(("weight",), ("kernel",), forth, back)


def _axes(layer: Layer) -> int:
    return 1 if isinstance(layer.kernel_size, int) else len(layer.kernel_size)


ROWS = {
    **dict.fromkeys(("nnx.Conv", "linen.Conv", "jaxpar.nn.Conv"), convolution),
    **dict.fromkeys(("nnx.ConvTranspose", "linen.ConvTranspose", "jaxpar.nn.ConvTranspose"), transposed),
}
