"""Copy host arrays in any axis order at about memory bandwidth, and place them on devices.

Column by column, as NumPy copies a transposed matrix, every element is a cache miss. `aligned_copy` copies
each tile twice: along the rows into a small buffer with padded rows, and from there in the new order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

ALIGNMENT = 64  # On CPUs, JAX uses a buffer at a multiple of this many bytes without copying it
TILE = 128, 256  # rows and columns: a tile and its copy fit into the second-level cache
PADDING = 16
SMALL = 1 << 14  # Size in bytes below which tiling costs more than it saves

T = TypeVar("T")
R = TypeVar("R")


def placed_like(arrays: Mapping[str, np.ndarray], old: Mapping[str, Any]) -> dict[str, jax.Array]:
    # Copies, because on CPUs JAX would share memory with torch, whose optimizer would change JAX's array.
    copies = on_all_cores(aligned_copy, arrays.values())
    placed = {
        path: jax.device_put(copy, _sharding(old[path])) for path, copy in zip(arrays, copies, strict=True)
    }
    return jax.block_until_ready(placed)


def _sharding(old: Any) -> Any:
    committed = isinstance(old, jax.ShapeDtypeStruct) or getattr(old, "committed", False)
    return old.sharding if committed else None


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Return a copy in C order in newly allocated, aligned memory."""
    # NumPy does not guarantee this alignment, and JAX copies an unaligned buffer once more.
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    _fill(copy, array)
    return copy


def on_all_cores(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Map in threads; NumPy releases the GIL while it copies."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(function, items)


def _fill(copy: np.ndarray, array: np.ndarray) -> None:
    if array.dtype.isbuiltin != 1 and array.itemsize <= 8:
        # NumPy copies bfloat16 and similar types with a function call per element, unlike integers.
        bits = np.dtype(f"u{array.itemsize}")
        copy, array = copy.view(bits), array.view(bits)
    shape = _merged(array)
    if array.nbytes <= SMALL or len(shape) < 2 or array.flags.c_contiguous:
        np.copyto(copy, array)
        return
    copy, array = copy.reshape(shape), array.reshape(shape)
    # The longest stride first: `part` is then read in the order of memory.
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    back = sorted(range(array.ndim), key=order.__getitem__)
    rows, columns = TILE
    buffer = np.empty(0, array.dtype)
    for i in range(0, shape[-2], rows):
        for j in range(0, shape[-1], columns):
            tile = (..., slice(i, i + rows), slice(j, j + columns))
            part = array[tile].transpose(order)
            long = part.size // part.shape[0]
            if buffer.size < part.shape[0] * (long + PADDING):
                buffer = np.empty(part.shape[0] * (long + PADDING), array.dtype)
            padded = buffer[: part.shape[0] * (long + PADDING)].reshape(part.shape[0], -1)
            straight = padded[:, :long].reshape(part.shape)
            straight[...] = part
            copy[tile] = straight.transpose(back)


def _merged(array: np.ndarray) -> tuple[int, ...]:
    """Return the shape with adjacent axes merged wherever the reshaped array is still a view."""
    shape: list[int] = []
    last = 0
    for size, stride in zip(array.shape, array.strides, strict=True):
        if size == 1:
            continue
        if shape and last == size * stride:
            shape[-1] *= size
        else:
            shape.append(size)
        last = stride
    return tuple(shape)
