"""Borders around images: ZeroPad, ConstantPad, ReflectionPad, ReplicationPad, CircularPad."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from . import functional
from ._layer import Layer
from ._window import Ints


class _Pad(Layer):
    mode = "constant"
    value: float | None = None

    def __init__(self, padding: Ints):
        if isinstance(padding, Sequence) and len(padding) % 2:
            raise ValueError(f"Padding length must be divisible by 2, but got {tuple(padding)}")
        self.padding = padding

    def __call__(self, x: jax.Array) -> jax.Array:
        padding = self.padding
        if not isinstance(padding, Sequence):
            padding = (padding,) * (2 * (x.ndim - 2))
        return functional.pad(x, padding, self.mode, self.value)


class ConstantPad(_Pad):
    """A border of `value`.

    Args:
      padding: a number for both ends of every spatial axis of [N, *S, C], or pairs (before, after), the last
        spatial axis first, as in torch. Negative numbers cut.
      value: fills the border.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.ConstantPad(1, 0.5)(jnp.ones((1, 4, 4, 3))).shape
    (1, 6, 6, 3)

    torch counterpart: `torch.nn.ConstantPad1d/2d/3d`.
    """

    def __init__(self, padding: Ints, value: float):
        super().__init__(padding)
        self.value = value


class ZeroPad(_Pad):
    """A border of zeros; `padding` as in `ConstantPad`. torch counterpart: `torch.nn.ZeroPad1d/2d/3d`."""


class ReflectionPad(_Pad):
    """A border that mirrors x without repeating the edge; `padding` as in `ConstantPad`, below each size.

    torch counterpart: `torch.nn.ReflectionPad1d/2d/3d`.
    """

    mode = "reflect"


class ReplicationPad(_Pad):
    """A border that repeats the edge; `padding` as in `ConstantPad`.

    torch counterpart: `torch.nn.ReplicationPad1d/2d/3d`.
    """

    mode = "replicate"


class CircularPad(_Pad):
    """A border that continues from the other end; `padding` as in `ConstantPad`, at most each size.

    torch counterpart: `torch.nn.CircularPad1d/2d/3d`.
    """

    mode = "circular"
