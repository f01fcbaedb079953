"""Sketches: a few random projections of an array, by which arrays are compared without being stored."""

from __future__ import annotations

import functools
import math
import zlib

import numpy as np

PROJECTIONS = 6
COLUMNS = PROJECTIONS + 3  # after the digests of shape and of non-finite positions, and max|x|


@functools.lru_cache(maxsize=8)
def _directions(size: int) -> np.ndarray:
    return np.random.RandomState([size % 2**32, *b"sketch"]).standard_normal((PROJECTIONS, size))


def sketch(x: np.ndarray) -> np.ndarray:
    """Return the array's sketch: arrays that differ by d in an element have sketches about d apart."""
    flat = np.ravel(x)
    flat = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat.astype(np.float64)
    finite = np.isfinite(flat)
    digests = [float(zlib.crc32(data)) for data in (repr(x.shape).encode(), np.packbits(finite).tobytes())]
    flat = np.where(finite, flat, 0.0)
    largest = float(np.abs(flat).max(initial=0))
    # Scaled first, so that a mask's 1e308 does not overflow in a sum.
    projections = largest * (_directions(flat.size) @ (flat / largest)) if largest else np.zeros(PROJECTIONS)
    return np.array([*digests, largest, *projections])


def apart(candidate: np.ndarray, reference: np.ndarray) -> float:
    """Return the distance of two sketches relative to max|reference|; infinite if shapes differ."""
    if not np.array_equal(candidate[:2], reference[:2]):
        return math.inf
    error, size = float(np.abs(candidate[2:] - reference[2:]).max()), float(reference[2])
    return error / size if size else (math.inf if error else 0.0)
