"""Functions of images, [N, H, W, C], and all other functions of channels_first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from ... import functional as last
from ..._layouts import FUNCTIONS, describe, has_images
from ...channels_first import functional as first
from ..axes import AXES, from_torch, to_torch

Function = Callable[..., Any]


def _by_rank(image: Function, other: Function) -> Function:
    def function(x: jax.Array, *args: Any, **options: Any) -> Any:
        return (image if x.ndim == AXES else other)(x, *args, **options)

    return function


def _in_torchs_layout(function: Function) -> Function:
    def turned(x: jax.Array, *args: Any, **options: Any) -> Any:
        return from_torch(function(to_torch(x), *args, **options))

    return turned


def _max_unpool2d(x: jax.Array, indices: jax.Array, *args: Any, **options: Any) -> jax.Array:
    return from_torch(first.max_unpool2d(to_torch(x), to_torch(indices), *args, **options))


def _named(name: str, function: Function, base: Function) -> Function:
    function = functools.wraps(getattr(first, name))(function)
    function.__module__ = __name__
    function.__doc__ = describe(name, base, "[N, H, W, C]")
    return function


# Windows, the input of fold and the output of unfold, have torch's layout here as well.
_IMAGES = {
    name: _by_rank(base, getattr(first, name)) for name, (base, _) in FUNCTIONS.items() if has_images(name)
}
_IMAGES.update(fold=_in_torchs_layout(first.fold), unfold=_in_torchs_layout(first.unfold))
_IMAGES["max_unpool2d"] = _max_unpool2d
_IMAGES["prelu"] = _by_rank(last.prelu, first.prelu)

for _name in first.__all__:
    _function = getattr(first, _name)
    if _name in _IMAGES:
        _base = FUNCTIONS[_name][0] if _name in FUNCTIONS else last.prelu
        _function = _named(_name, _IMAGES[_name], _base)
    globals()[_name] = _function
