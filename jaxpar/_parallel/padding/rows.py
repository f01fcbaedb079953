"""rows: where an array has its rows.

An axis of rows has b entries for each of `outer` blocks, and each entry has `inner` elements: a reshape of
[3, 5] to [15] leaves rows of 5 elements. An axis is one of rows where its length differs between the
programs for different numbers of rows; nothing is concluded from a length that happens to be b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._typing import Shape


class DependentError(Exception):
    """A row may depend on a different row in a way that no mask undoes. Never leaves this package."""


class Rows(NamedTuple):
    """The axis of rows of an array [..., outer * b * inner, ...]."""

    axis: int
    outer: int = 1
    inner: int = 1
    constant: bool = False  # all entries of the axis are equal, so that they fit any order of rows


def axis_of(shapes: Sequence[Shape], sizes: Sequence[int]) -> tuple[int, int] | None:
    """Return the axis that differs between programs for these numbers of rows, and its elements per row."""
    if len({len(shape) for shape in shapes}) != 1:
        raise DependentError("axes")
    differ = [i for i, lengths in enumerate(zip(*shapes, strict=True)) if len(set(lengths)) > 1]
    if not differ:
        return None
    axis = differ[0]
    lengths = [shape[axis] for shape in shapes]
    times = lengths[0] // sizes[0]
    if len(differ) > 1 or times == 0 or lengths != [times * b for b in sizes]:
        raise DependentError("sizes")
    return axis, times


def unified(operand_rows: Sequence[Rows | None]) -> Rows | None:
    """Return the common order of rows of operands of one shape."""
    present = [rows for rows in operand_rows if rows is not None]
    ordered = {rows for rows in present if not rows.constant}
    if len({rows.axis for rows in present}) > 1 or len(ordered) > 1:
        raise DependentError("operands")
    return next(iter(ordered or present), None)


def reshaped(rows: Rows, old: Shape, new: Shape, axis: int) -> Rows:
    """Return the rows of the same elements in a new shape, whose axis of rows is `axis`."""
    outer = math.prod(old[: rows.axis]) * rows.outer
    inner = rows.inner * math.prod(old[rows.axis + 1 :])
    before, after = math.prod(new[:axis]), math.prod(new[axis + 1 :])
    if outer % before or inner % after:
        raise DependentError("reshape")
    return Rows(axis, outer // before, inner // after)


def valid(shape: Shape, rows: Rows, b: int, n: jax.Array) -> jax.Array:
    """Return which elements of the padded axis are in the first n of b rows, in a shape that broadcasts."""
    along = tuple(length if i == rows.axis else 1 for i, length in enumerate(shape))
    index = jax.lax.broadcasted_iota(jnp.int32, along, rows.axis)
    if rows.outer == 1:
        return index < n * rows.inner
    return index // rows.inner % b < n


def masked(x: Any, rows: Rows, b: int, n: jax.Array, neutral: Any) -> jax.Array:
    """Return `x` with its padding replaced by `neutral`."""
    keep = jnp.broadcast_to(valid(x.shape, rows, b, n), x.shape)
    return jax.lax.select(keep, x, jnp.full(x.shape, neutral, x.dtype))


def repeated(x: Any, rows: Rows, b: int, n: jax.Array) -> jax.Array:
    """Return `x` [..., b * inner, ...] with its first row in place of every row of padding."""
    # A row of this replica has a value and a derivative wherever its other rows have one; zeros have none
    # under a logarithm, and 0 times infinity would reach the gradients.
    first = jax.lax.slice_in_dim(x, 0, rows.inner, axis=rows.axis)
    copies = [b if i == rows.axis else 1 for i in range(x.ndim)]
    keep = jnp.broadcast_to(valid(x.shape, rows, b, n), x.shape)
    return jax.lax.select(keep, x, jnp.tile(first, copies))
