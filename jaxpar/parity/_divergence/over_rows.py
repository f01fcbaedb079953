"""Apply a function to arrays with all rows of a batch, inside of any number of `vmap`s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..._upstream import get_opaque_trace_state

Arrays = Sequence[Any]


def over_rows(
    function: Callable[[list[Any]], Arrays | None], arrays: Arrays, outside: Any
) -> list[Any] | None:
    """Return the arrays that `function` returns for arrays in the trace `outside`.

    Arrays inside of a `vmap` are single rows there, and have the axis of all rows first for `function`. None
    if it returns None or is not called: `scan`, `jit` and `remat` trace separate programs, whose arrays are
    not of `outside`.
    """
    # JAX has no public way to ask whether a call is inside a nested transformation.
    if get_opaque_trace_state(convention="nnx") == outside:
        results = function(list(arrays))
        return None if results is None else list(results)
    is_open, changed = True, None

    @jax.custom_batching.custom_vmap
    def same(*rows: Any) -> tuple[Any, ...]:
        return rows

    @same.def_vmap
    def of_all_rows(size: int, batched: list[bool], *rows: Any) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
        nonlocal changed
        batches = [
            x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(rows, batched, strict=True)
        ]
        # A program that was traced before may be batched afterwards.
        results = over_rows(function, batches, outside) if is_open else None
        if results is not None:
            changed = results
        return tuple(batches if results is None else results), (True,) * len(batches)

    rows = same(*arrays)
    is_open = False
    return None if changed is None else list(rows)
