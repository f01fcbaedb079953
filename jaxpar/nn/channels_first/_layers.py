"""Layers of [N, C, *S], built from the table in `jaxpar.nn._layouts`; editors read `_layers.pyi`."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from .. import _activation
from .._batch_norm import BatchNorm, InstanceNorm
from .._conv import ConvTranspose
from .._layouts import LAYERS, RANK_ERRORS, SHAPES, build_layer, describe, max_unpool
from .._pool import MaxUnpool
from .._resize import Upsample as _Upsample
from .._window import Ints, Scale
from .._window import sizes as sizes
from .axes import ChannelsFirst, turned


class _ConvTranspose(ChannelsFirst, ConvTranspose):
    axes: int

    def __call__(self, x: jax.Array, output_size: Sequence[int] | None = None) -> jax.Array:
        """`output_size` is [*T], one number for each spatial axis, or a complete shape in torch's layout."""
        space = None if output_size is None else tuple(output_size)[-self.axes :]
        return super().__call__(x, space)


class _MaxUnpool(ChannelsFirst, MaxUnpool):
    axes: int

    def __call__(
        self, x: jax.Array, indices: jax.Array, output_size: Sequence[int] | None = None
    ) -> jax.Array:
        """`output_size` is [*S], one number for each spatial axis, or a complete shape in torch's layout."""
        if indices.shape != x.shape:
            raise ValueError(f"MaxUnpool: x has shape {x.shape}, and its indices {indices.shape}.")
        options = (indices, self.kernel_size, self.stride, self.padding, output_size)
        return turned(lambda rows: max_unpool(rows, *options), x, type(self).__name__, self.axes, ValueError)


class UpsamplingNearest2d(ChannelsFirst, _Upsample):
    """`Upsample` of [N, C, H, W] with mode="nearest". torch counterpart: `torch.nn.UpsamplingNearest2d`."""

    def __init__(self, size: Ints | None = None, scale_factor: Scale | Sequence[Scale] | None = None):
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(ChannelsFirst, _Upsample):
    """`Upsample` of [N, C, H, W] with mode="bilinear" and align_corners=True.

    torch counterpart: `torch.nn.UpsamplingBilinear2d`.
    """

    def __init__(self, size: Ints | None = None, scale_factor: Scale | Sequence[Scale] | None = None):
        super().__init__(size, scale_factor, "bilinear", align_corners=True)


class _BatchNorm(ChannelsFirst, BatchNorm):
    axes: int

    def __call__(self, x: jax.Array) -> jax.Array:
        # BatchNorm1d reads two axes as [N, C], never as one row [C, L].
        _check_rank(self, x, (2, 3) if self.axes == 1 else (self.axes + 2,))
        return turned(super(ChannelsFirst, self).__call__, x, type(self).__name__)


class _InstanceNorm(ChannelsFirst, InstanceNorm):
    axes: int

    def __call__(self, x: jax.Array) -> jax.Array:
        _check_rank(self, x, (self.axes + 1, self.axes + 2))
        return super().__call__(x)


def _check_rank(layer: _BatchNorm | _InstanceNorm, x: jax.Array, ranks: tuple[int, ...]) -> None:
    if x.ndim not in ranks:
        expected = " or ".join(f"{rank}D" for rank in ranks)
        raise ValueError(f"{type(layer).__name__}: expected {expected} input (got {x.ndim}D input)")


class PReLU(_activation.PReLU):
    """`jaxpar.nn.PReLU` for [N, C, *S]; the arguments are the same. torch counterpart: `torch.nn.PReLU`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return turned(super().__call__, x, "PReLU") if x.ndim > 1 else super().__call__(x)


# Bases whose calls check the number of axes or accept a size in torch's layout.
_OWN = {
    ConvTranspose: _ConvTranspose,
    MaxUnpool: _MaxUnpool,
    BatchNorm: _BatchNorm,
    InstanceNorm: _InstanceNorm,
}

# Module globals, because pickle finds a class by its module and name.
for _name, (_base, _axes) in LAYERS.items():
    _bases = (_OWN[_base],) if _base in _OWN else (ChannelsFirst, _base)
    _doc = describe(_name, _base, SHAPES[_axes])
    _error = RANK_ERRORS.get(_base)
    globals()[_name] = build_layer(_name, _bases, __name__, axes=_axes, rank_error=_error, __doc__=_doc)
