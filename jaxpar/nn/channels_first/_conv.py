"""Convolutions of [N, I, *S], and their transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from .. import _conv
from .._window import Ints
from .axes import ChannelsFirst


def sizes(kernel_size: Ints, axes: int) -> tuple[int, ...]:
    """A plain number is the kernel's size along all axes."""
    return tuple(kernel_size) if isinstance(kernel_size, Sequence) else (kernel_size,) * axes


class _Conv(ChannelsFirst, _conv.Conv):
    axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        *args: Any,
        **options: Any,
    ):
        k = sizes(kernel_size, self.axes)
        super().__init__(in_channels, out_channels, k, *args, **options)


class _ConvTranspose(ChannelsFirst, _conv.ConvTranspose):
    axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        *args: Any,
        **options: Any,
    ):
        k = sizes(kernel_size, self.axes)
        super().__init__(in_channels, out_channels, k, *args, **options)

    def __call__(self, x: jax.Array, output_size: Sequence[int] | None = None) -> jax.Array:
        """`output_size` is [*T], as long as the output's spatial axes, or a whole shape in torch's layout."""
        space = None if output_size is None else tuple(output_size)[-self.axes :]
        return super().__call__(x, space)


class Conv1d(_Conv):
    """[N, I, *S] to [N, O, *T] over one axis; `jaxpar.nn.Conv` has the arguments.

    torch counterpart: `torch.nn.Conv1d`; `weight` (O, I / groups, *k) is `kernel` [*k, I / groups, O].
    """

    axes = 1


class Conv2d(_Conv):
    """[N, I, *S] to [N, O, *T] over two axes; `jaxpar.nn.Conv` has the arguments.

    torch counterpart: `torch.nn.Conv2d`; `weight` (O, I / groups, *k) is `kernel` [*k, I / groups, O].
    """

    axes = 2


class Conv3d(_Conv):
    """[N, I, *S] to [N, O, *T] over three axes; `jaxpar.nn.Conv` has the arguments.

    torch counterpart: `torch.nn.Conv3d`; `weight` (O, I / groups, *k) is `kernel` [*k, I / groups, O].
    """

    axes = 3


class ConvTranspose1d(_ConvTranspose):
    """[N, I, *S] to [N, O, *T] over one axis; `jaxpar.nn.ConvTranspose` has the arguments.

    torch counterpart: `torch.nn.ConvTranspose1d`; `weight` is `kernel` [*k, O / groups, I].
    """

    axes = 1


class ConvTranspose2d(_ConvTranspose):
    """[N, I, *S] to [N, O, *T] over two axes; `jaxpar.nn.ConvTranspose` has the arguments.

    torch counterpart: `torch.nn.ConvTranspose2d`; `weight` is `kernel` [*k, O / groups, I].
    """

    axes = 2


class ConvTranspose3d(_ConvTranspose):
    """[N, I, *S] to [N, O, *T] over three axes; `jaxpar.nn.ConvTranspose` has the arguments.

    torch counterpart: `torch.nn.ConvTranspose3d`; `weight` is `kernel` [*k, O / groups, I].
    """

    axes = 3
