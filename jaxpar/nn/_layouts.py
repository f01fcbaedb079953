"""Tables {name: (base, axes)} of layers and functions whose input has channels.

channels_first and channels_last are built from them. `base` computes on [N, *S, C]; `axes` is the number of
spatial axes, None for any.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._arguments import NonNegative
from . import _conv, _pool, _resize, functional
from ._batch_norm import BatchNorm, GroupNorm, InstanceNorm
from ._dropout import FeatureDropout
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


def _kernel(weight: jax.Array) -> jax.Array:
    return jnp.moveaxis(weight, (0, 1), (-1, -2))


def _by_axes(bases: dict[str, Any]) -> dict[str, tuple[Any, int | None]]:
    return {f"{name}{axes}d": (base, axes) for name, base in bases.items() for axes in (1, 2, 3)}


LAYERS: dict[str, tuple[type, int | None]] = {
    **_by_axes(
        {
            "Conv": _conv.Conv,
            "ConvTranspose": _conv.ConvTranspose,
            "BatchNorm": BatchNorm,
            "InstanceNorm": InstanceNorm,
            "MaxPool": _pool.MaxPool,
            "AvgPool": _pool.AvgPool,
            "LPPool": _pool.LPPool,
            "AdaptiveAvgPool": _pool.AdaptiveAvgPool,
            "AdaptiveMaxPool": _pool.AdaptiveMaxPool,
            "ConstantPad": _resize.ConstantPad,
            "ZeroPad": _resize.ZeroPad,
            "ReflectionPad": _resize.ReflectionPad,
            "ReplicationPad": _resize.ReplicationPad,
            "CircularPad": _resize.CircularPad,
        }
    ),
    # torch reads [A, B, C] as a batch for Dropout2d, so an input without N is not recognised by its axes.
    "Dropout1d": (FeatureDropout, None),
    "Dropout2d": (FeatureDropout, None),
    "Dropout3d": (FeatureDropout, None),
    "GroupNorm": (GroupNorm, None),
    "LocalResponseNorm": (LocalResponseNorm, None),
    "Upsample": (_resize.Upsample, None),
    "PixelShuffle": (_resize.PixelShuffle, 2),
    "PixelUnshuffle": (_resize.PixelUnshuffle, 2),
    "ChannelShuffle": (_resize.ChannelShuffle, None),
    "Unfold": (_resize.Unfold, None),
    "Fold": (_resize.Fold, 1),
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], int | None]] = {
    **_by_axes(
        {
            "conv": conv,
            "conv_transpose": conv_transpose,
            "max_pool": functional.max_pool,
            "avg_pool": functional.avg_pool,
            "lp_pool": functional.lp_pool,
            "adaptive_avg_pool": functional.adaptive_avg_pool,
            "adaptive_max_pool": functional.adaptive_max_pool,
        }
    ),
    "interpolate": (functional.interpolate, None),
    "pixel_shuffle": (functional.pixel_shuffle, 2),
    "pixel_unshuffle": (functional.pixel_unshuffle, 2),
    "channel_shuffle": (functional.channel_shuffle, None),
    "unfold": (functional.unfold, None),
    "fold": (functional.fold, 1),
    "group_norm": (functional.group_norm, None),
    "instance_norm": (instance_norm, None),
    "local_response_norm": (functional.local_response_norm, None),
    "grid_sample": (functional.grid_sample, None),
}
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
