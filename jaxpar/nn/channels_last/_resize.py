"""Images that become larger, smaller, rows of windows, or rows of numbers in torch's order."""

from __future__ import annotations

import jax

from .. import channels_first as first
from .axes import Images, from_torch, to_torch


class Upsample(Images, first.Upsample):
    """[N, H, W, C] to [N, T, U, C], or [N, C, ...]; `jaxpar.nn.Upsample` has the arguments.

    torch counterpart: `torch.nn.Upsample`.
    """


class PixelShuffle(Images, first.PixelShuffle):
    """[N, H, W, C r^2] to [N, H r, W r, C]; `jaxpar.nn.PixelShuffle` has the arguments.

    torch counterpart: `torch.nn.PixelShuffle`.
    """


class PixelUnshuffle(Images, first.PixelUnshuffle):
    """[N, H r, W r, C] to [N, H, W, C r^2]; `jaxpar.nn.PixelUnshuffle` has the arguments.

    torch counterpart: `torch.nn.PixelUnshuffle`.
    """


class ChannelShuffle(Images, first.ChannelShuffle):
    """[N, H, W, C], or [N, C, ...]; `jaxpar.nn.ChannelShuffle` has the arguments.

    torch counterpart: `torch.nn.ChannelShuffle`.
    """


class Unfold(first.Unfold):
    """[N, H, W, C] to [N, C K, L], as in torch; `jaxpar.nn.Unfold` has the arguments.

    torch counterpart: `torch.nn.Unfold`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(to_torch(x))


class Fold(first.Fold):
    """[N, C K, L], as in torch, to [N, H, W, C]; `jaxpar.nn.Fold` has the arguments.

    torch counterpart: `torch.nn.Fold`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return from_torch(super().__call__(x))


class Flatten(first.Flatten):
    """The axes from start_dim to end_dim as one, all of them as torch counts them and in torch's order.

    torch counterpart: `torch.nn.Flatten`. The Linear behind it has torch's weights.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return from_torch(super().__call__(to_torch(x)))


class Unflatten(first.Unflatten):
    """One axis as several, as torch counts them; images that come of it have their channels last.

    torch counterpart: `torch.nn.Unflatten`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return from_torch(super().__call__(to_torch(x)))
