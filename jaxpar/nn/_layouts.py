"""Tables {name: (base, axes)} of layers and functions whose input has channels.

channels_first and channels_last are built from them. `base` computes on [N, *S, C]; `axes` is the number of
spatial axes, None for any.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._arguments import NonNegative
from . import _conv, _pool, _resize, functional
from ._batch_norm import BatchNorm, GroupNorm, InstanceNorm
from ._dropout import FeatureAlphaDropout, FeatureDropout
from ._layer_norm import LocalResponseNorm
from ._window import Ints

SHAPES = {1: "[N, C, L]", 2: "[N, C, H, W]", 3: "[N, C, D, H, W]", None: "[N, C, *S]"}


def conv(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> jax.Array:
    """`jaxpar.nn.functional.conv` with torch's weight, (O, I / groups, *k)."""
    return functional.conv(x, _kernel(weight), bias, stride, padding, dilation, groups, padding_mode)


def conv_transpose(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> jax.Array:
    """`jaxpar.nn.functional.conv_transpose` with torch's weight, (I, O / groups, *k)."""
    options = (stride, padding, output_padding, groups, dilation)
    return functional.conv_transpose(x, _kernel(weight), bias, *options)


def batch_norm(
    x: jax.Array,
    running_mean: jax.Array | None,
    running_var: jax.Array | None,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    training: bool = False,
    momentum: NonNegative = 0.1,
    eps: NonNegative = 1e-5,
) -> jax.Array:
    """`jaxpar.nn.functional.batch_norm` without the new running statistics."""
    return functional.batch_norm(x, running_mean, running_var, scale, bias, training, momentum, eps)[0]


def instance_norm(
    x: jax.Array,
    running_mean: jax.Array | None = None,
    running_var: jax.Array | None = None,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    use_input_stats: bool = True,
    momentum: NonNegative = 0.1,
    eps: NonNegative = 1e-5,
) -> jax.Array:
    """`jaxpar.nn.functional.instance_norm` without the new running statistics."""
    statistics = (running_mean, running_var)
    return functional.instance_norm(x, *statistics, scale, bias, use_input_stats, momentum, eps)[0]


def max_unpool(
    x: jax.Array,
    indices: jax.Array,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> jax.Array:
    """`jaxpar.nn.functional.max_unpool` with `indices`, and a complete `output_size`, in torch's layout."""
    indices = jnp.moveaxis(indices if indices.ndim == x.ndim else indices[None], 1, -1)
    space = None if output_size is None else tuple(output_size)[2 - x.ndim :]
    return functional.max_unpool(x, indices, kernel_size, stride, padding, space)


def _kernel(weight: jax.Array) -> jax.Array:
    return jnp.moveaxis(weight, (0, 1), (-1, -2))


Table = dict[str, tuple[Any, int | None]]


def _by_axes(*bases: Any) -> Table:
    return {f"{base.__name__}{axes}d": (base, axes) for base in bases for axes in (1, 2, 3)}


def _named(axes: int | None, *bases: Any) -> Table:
    return {base.__name__: (base, axes) for base in bases}


LAYERS = {
    **_by_axes(_conv.Conv, _conv.ConvTranspose, BatchNorm, InstanceNorm),
    **_by_axes(_pool.MaxPool, _pool.AvgPool, _pool.LPPool, _pool.AdaptiveAvgPool, _pool.AdaptiveMaxPool),
    **_by_axes(_pool.MaxUnpool),
    **_by_axes(_resize.ConstantPad, _resize.ZeroPad, _resize.ReflectionPad, _resize.ReplicationPad),
    **_by_axes(_resize.CircularPad),
    # torch reads [A, B, C] as a batch for Dropout2d, so an input without N is not recognised by its axes.
    **dict.fromkeys(("Dropout1d", "Dropout2d", "Dropout3d"), (FeatureDropout, None)),
    **_named(None, GroupNorm, LocalResponseNorm, _resize.Upsample, _resize.ChannelShuffle, _resize.Unfold),
    **_named(None, FeatureAlphaDropout),
    **_named(2, _resize.PixelShuffle, _resize.PixelUnshuffle),
    **_named(1, _resize.Fold),
}
FUNCTIONS = {
    **_by_axes(conv, conv_transpose, functional.max_pool, functional.avg_pool, functional.lp_pool),
    **_by_axes(functional.adaptive_avg_pool, functional.adaptive_max_pool, max_unpool),
    **_named(None, functional.interpolate, functional.channel_shuffle, functional.unfold),
    **_named(None, functional.group_norm, batch_norm, instance_norm, functional.local_response_norm),
    **_named(None, functional.grid_sample),
    **_named(2, functional.pixel_shuffle, functional.pixel_unshuffle),
    **_named(1, functional.fold),
}
RANK_ERRORS: dict[Any, type[Exception]] = {
    **dict.fromkeys((_pool.MaxPool, _pool.AvgPool, _pool.LPPool, _pool.AdaptiveMaxPool), RuntimeError),
    **dict.fromkeys((functional.max_pool, functional.avg_pool, functional.lp_pool), RuntimeError),
    functional.adaptive_max_pool: RuntimeError,
    **dict.fromkeys((_resize.ReflectionPad, _resize.ReplicationPad), NotImplementedError),
    _resize.CircularPad: ValueError,
}
"""torch's error for an input that is neither a batch nor one row."""
WEIGHTS = {
    "Conv": "`weight` (O, I / groups, *k) is `kernel` [*k, I / groups, O].",
    "ConvTranspose": "`weight` (I, O / groups, *k) is `kernel` [*k, O / groups, I].",
    "BatchNorm": "`weight` is `scale`, `running_mean` is `mean`, `running_var` is `var`.",
    "InstanceNorm": "`weight` is `scale`, `running_mean` is `mean`, `running_var` is `var`.",
    "GroupNorm": "`weight` is `scale`.",
    "conv": "`weight` is (O, I / groups, *k), as in torch.",
    "conv_transpose": "`weight` is (I, O / groups, *k), as in torch.",
}
"""How torch's parameters correspond to a base's."""


def has_images(name: str) -> bool:
    return not name.endswith(("1d", "3d"))


def build_layer(name: str, bases: tuple[type, ...], module: str, **attributes: Any) -> type:
    # `__module__` is what pickle looks the class up in.
    fields = {"__module__": module, **attributes}
    return types.new_class(name, bases, exec_body=lambda namespace: namespace.update(fields))


def describe(name: str, base: Any, shapes: str) -> str:
    """Return the docstring of a layer or function of a table."""
    room, torchs = ("nn", "torch.nn") if isinstance(base, type) else ("nn.functional", "F")
    lines = f"`jaxpar.{room}.{base.__name__}` for {shapes}; the arguments are the same."
    weights = WEIGHTS.get(base.__name__)
    return f"{lines}\n\n{weights + chr(10) * 2 if weights else ''}torch counterpart: `{torchs}.{name}`.\n"
