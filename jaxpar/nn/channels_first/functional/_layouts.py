"""Functions of [N, C, *S], built from the table in `jaxpar.nn._layouts`; editors read `_layouts.pyi`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from ..._layouts import FUNCTIONS, RANK_ERRORS, SHAPES, describe
from ..axes import turned


def _channels_first(name: str, function: Callable[..., Any], axes: int | None) -> Callable[..., Any]:
    error = RANK_ERRORS.get(function)

    # `wraps` also gives the signature, through `__wrapped__`.
    @functools.wraps(function)
    def in_torchs_layout(x: jax.Array, *args: Any, **options: Any) -> Any:
        return turned(lambda rows: function(rows, *args, **options), x, name, axes, error)

    in_torchs_layout.__name__ = in_torchs_layout.__qualname__ = name
    in_torchs_layout.__module__ = __name__
    in_torchs_layout.__doc__ = describe(name, function, SHAPES[axes])
    return in_torchs_layout


# Module globals, because pickle finds a function by its module and name.
for _name, (_base, _axes) in FUNCTIONS.items():
    globals()[_name] = _channels_first(_name, _base, _axes)
