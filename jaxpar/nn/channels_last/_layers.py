"""Layers of images, [N, H, W, C], and all other layers of channels_first; editors read `_layers.pyi`."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from .. import _activation
from .. import channels_first as first
from .._layouts import LAYERS, build_layer, describe, has_images
from .axes import AXES, Images, from_torch, to_torch


class ConvTranspose2d(Images, first.ConvTranspose2d):
    __doc__ = describe("ConvTranspose2d", *LAYERS["ConvTranspose2d"][:1], "[N, H, W, C]")

    def __call__(self, x: jax.Array, output_size: Sequence[int] | None = None) -> jax.Array:
        """`output_size` is [T, U], or a complete shape in torch's layout."""
        if output_size is not None and x.ndim == AXES:
            output_size = tuple(output_size)[-self.axes :]
        return super().__call__(x, output_size)


class PReLU(first.PReLU):
    """`jaxpar.nn.PReLU` for [N, H, W, C] or [N, C, ...]; the arguments are the same.

    torch counterpart: `torch.nn.PReLU`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return _activation.PReLU.__call__(self, x) if x.ndim == AXES else super().__call__(x)


class Unfold(first.Unfold):
    """Windows of [N, H, W, C] as [N, C K, L], torch's layout; the arguments are `jaxpar.nn.Unfold`'s.

    torch counterpart: `torch.nn.Unfold`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(to_torch(x))


class Fold(first.Fold):
    """Windows [N, C K, L], torch's layout, added up to [N, H, W, C]; the arguments are `jaxpar.nn.Fold`'s.

    torch counterpart: `torch.nn.Fold`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return from_torch(super().__call__(x))


class Flatten(first.Flatten):
    """Merge the axes from start_dim to end_dim into one; both count torch's axes, and the order is torch's.

    torch counterpart: `torch.nn.Flatten`. A Linear that follows has torch's weights.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return from_torch(super().__call__(to_torch(x)))


class Unflatten(first.Unflatten):
    """Split an axis, counted as in torch, into several; an image among the results is [N, H, W, C].

    torch counterpart: `torch.nn.Unflatten`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return from_torch(super().__call__(to_torch(x)))


class Softmax2d(first.Softmax2d):
    """Softmax over the channels of [N, H, W, C] or [C, H, W]. torch counterpart: `torch.nn.Softmax2d`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return from_torch(super().__call__(to_torch(x)))


class MaxUnpool2d(first.MaxUnpool2d):
    """`jaxpar.nn.MaxUnpool` for [N, H, W, C]; the arguments are the same.

    torch counterpart: `torch.nn.MaxUnpool2d`.
    """

    def __call__(
        self, x: jax.Array, indices: jax.Array, output_size: Sequence[int] | None = None
    ) -> jax.Array:
        """`output_size` is [T, U], or a complete shape in torch's layout."""
        return from_torch(super().__call__(to_torch(x), to_torch(indices), output_size))


# Layers with calls of their own: windows, rows and complete shapes have torch's layout.
_OWN = {"ConvTranspose2d", "MaxUnpool2d", "Softmax2d", "PReLU", "Unfold", "Fold", "Flatten", "Unflatten"}

for _name in set(first.__all__) - _OWN - {"functional"}:
    _layer = getattr(first, _name)
    if (_name in LAYERS and has_images(_name)) or _name.startswith("Upsampling"):
        _doc = describe(_name, LAYERS.get(_name, LAYERS["Upsample"])[0], "[N, H, W, C]")
        _layer = build_layer(_name, (Images, _layer), __name__, __doc__=_doc)
    globals()[_name] = _layer
