"""Functions of channels_first, for images with their channels last."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from ... import functional as last
from ...channels_first import functional as first
from ..axes import AXES, from_torch, to_torch

Function = Callable[..., Any]


def _of(image: Function, other: Function) -> Function:
    """A function of images, and of arrays with another number of axes."""

    @functools.wraps(other)
    def function(x: jax.Array, *args: Any, **options: Any) -> Any:
        return (image if x.ndim == AXES else other)(x, *args, **options)

    return function


def _turned(function: Function) -> Function:
    """A function whose images are turned for it: its weights, or its other results, have torch's axes."""

    @functools.wraps(function)
    def turned(x: jax.Array, *args: Any, **options: Any) -> Any:
        return from_torch(function(to_torch(x), *args, **options))

    return turned


conv2d, conv_transpose2d = _turned(first.conv2d), _turned(first.conv_transpose2d)
max_pool2d = _of(last.max_pool, first.max_pool2d)
avg_pool2d = _of(last.avg_pool, first.avg_pool2d)
lp_pool2d = _of(last.lp_pool, first.lp_pool2d)
adaptive_avg_pool2d = _of(last.adaptive_avg_pool, first.adaptive_avg_pool2d)
adaptive_max_pool2d = _of(last.adaptive_max_pool, first.adaptive_max_pool2d)
interpolate = _of(last.interpolate, first.interpolate)
pixel_shuffle = _of(last.pixel_shuffle, first.pixel_shuffle)
pixel_unshuffle = _of(last.pixel_unshuffle, first.pixel_unshuffle)
channel_shuffle = _of(last.channel_shuffle, first.channel_shuffle)
group_norm = _of(last.group_norm, first.group_norm)
local_response_norm = _of(last.local_response_norm, first.local_response_norm)
grid_sample = _of(last.grid_sample, first.grid_sample)
prelu = _of(last.prelu, first.prelu)
instance_norm = _turned(first.instance_norm)
fold, unfold = _turned(first.fold), _turned(first.unfold)
