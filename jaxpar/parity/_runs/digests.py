"""Statistics and digests of arrays that do not change when axes are transposed, in NumPy alone."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

SAMPLES = 16
COLUMNS = ("norm", "mean", "least", "largest", "bits")
"""The first columns of a row of statistics; the sampled elements follow. `bits` sums the elements' bits."""

SMALL = 1 << 16
"""Arrays of fewer elements are reduced together: a call for each would take longer than its arithmetic."""

Shape = tuple[int, ...]


def layout_free(shape: Sequence[int]) -> Shape:
    """Return what transposing and axes of length 1 do not change of a shape."""
    return tuple(sorted(n for n in shape if n != 1))


@functools.lru_cache(maxsize=4096)
def sample_indices(shape: Shape, seed: int) -> tuple[np.ndarray, ...]:
    """Return the indices of the sampled elements, one array for each axis.

    The indices of an axis are drawn from its length alone, so a transposed array has the same sample.
    """
    return tuple(np.random.default_rng([seed, n]).integers(n, size=SAMPLES) for n in shape)


@functools.lru_cache(maxsize=1024)
def _flat_indices(shapes: tuple[Shape, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where arrays begin in their concatenation, and where their sampled elements are."""
    starts = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])[:-1]
    indices = [
        start
        + (np.ravel_multi_index(sample_indices(shape, seed), shape) if shape else np.zeros(SAMPLES, int))
        for start, shape in zip(starts, shapes, strict=True)
    ]
    return starts, np.asarray(indices, int)


def statistics(arrays: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """Return a row for each array: `COLUMNS` and the sampled elements, in float64."""
    rows = np.zeros((len(arrays), len(COLUMNS) + SAMPLES))
    with np.errstate(all="ignore"):
        for group in _groups([x.size for x in arrays]):
            rows[group] = _together([arrays[i] for i in group], seed)
        for i, x in enumerate(arrays):
            if x.size >= SMALL:
                rows[i] = _alone(x, seed)
    return rows


def _groups(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of small arrays in groups that stay in the processor's cache."""
    group: list[int] = []
    total = 0
    for i, size in enumerate(sizes):
        if not 0 < size < SMALL:
            continue
        if group and total + size > SMALL:
            yield group
            group, total = [], 0
        group.append(i)
        total += size
    if group:
        yield group


def _together(arrays: Sequence[np.ndarray], seed: int) -> np.ndarray:
    starts, indices = _flat_indices(tuple(x.shape for x in arrays), seed)
    x = np.concatenate([np.ravel(array) for array in arrays], dtype=np.float64, casting="unsafe")
    counts = np.diff([*starts, len(x)])
    columns = [
        np.sqrt(np.add.reduceat(x * x, starts)),
        np.add.reduceat(x, starts) / counts,
        np.minimum.reduceat(x, starts),
        np.maximum.reduceat(x, starts),
        np.add.reduceat(x.view(np.uint64), starts) % (1 << 53),
    ]
    return np.concatenate([np.stack(columns, 1), x[indices]], 1)


def _alone(x: np.ndarray, seed: int) -> np.ndarray:
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float32 if x.dtype.itemsize <= 2 else np.float64)
    flat = np.ravel(x, order="K")
    # Products of short rows keep float32 sums as exact as their elements.
    end = len(flat) // 4096 * 4096
    squares = np.einsum("ij,ij->i", *[flat[:end].reshape(-1, 4096)] * 2).sum(dtype=np.float64)
    squares += float(np.dot(flat[end:], flat[end:]))
    bits = flat.view(np.uint32 if x.dtype == np.float32 else np.uint64).sum(dtype=np.uint64)
    # NumPy adds in pairs, which is exact enough, and several times faster than with dtype=float64.
    columns = [np.sqrt(squares), flat.sum() / x.size, flat.min(), flat.max(), int(bits) % (1 << 53)]
    return np.concatenate([columns, x[sample_indices(x.shape, seed)]], dtype=np.float64)


# ------------------------------------------------------------------------------------------- rows of a batch


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return well-distributed numbers for distinct ones (the finalizer of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@functools.lru_cache(maxsize=64)
def _position_weights(shape: Shape) -> np.ndarray:
    """Return an odd number for each position. Transposing the shape transposes them.

    Numbers of axes of one length differ by the order of the axes, which channels first and last keep.
    """
    total = np.zeros(shape, np.uint64)
    for axis, n in enumerate(shape):
        earlier = shape[:axis].count(n)
        numbers = _mixed(np.arange(n, dtype=np.uint64) + np.uint64((earlier << 48) + (n << 32) + 1))
        total = total + numbers.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return _mixed(total).reshape(-1) | np.uint64(1)


def row_digests(x: np.ndarray) -> np.ndarray:
    """Return two digests for each row, [2, rows]: of the values in their positions, and in any order.

    Values are rounded to float32, so that types that hold the same values agree. Transposing the axes of the
    rows, such as channels first and last, changes neither digest; flipping changes the first, and so does the
    exchange of two axes of one length.
    """
    rows = x.reshape(1) if x.ndim == 0 else x
    # Adding 0 makes -0.0 and 0.0 one value.
    with np.errstate(all="ignore"):
        bits = (np.ascontiguousarray(rows, np.float32) + np.float32(0)).view(np.uint32)
    shape = tuple(n for n in rows.shape[1:] if n != 1)
    values = _mixed(bits.reshape(len(rows), -1).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    digests = np.empty((2, len(rows)), np.uint64)
    np.sum(values * _position_weights(shape), axis=1, out=digests[0])
    np.sum(values, axis=1, out=digests[1])
    return digests
