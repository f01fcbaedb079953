"""Convolutions of images, [N, H, W, I]."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from .. import channels_first as first
from .axes import AXES, Images


class Conv2d(Images, first.Conv2d):
    """[N, H, W, I] to [N, T, U, O]; `jaxpar.nn.Conv` has the arguments.

    torch counterpart: `torch.nn.Conv2d`.
    """


class ConvTranspose2d(Images, first.ConvTranspose2d):
    """[N, H, W, I] to [N, T, U, O]; `jaxpar.nn.ConvTranspose` has the arguments.

    torch counterpart: `torch.nn.ConvTranspose2d`.
    """

    def __call__(self, x: jax.Array, output_size: Sequence[int] | None = None) -> jax.Array:
        """`output_size` is [T, U], or a whole shape in torch's layout."""
        if output_size is not None and x.ndim == AXES:
            output_size = tuple(output_size)[-self.axes :]
        return super().__call__(x, output_size)
