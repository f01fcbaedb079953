"""distance: compare two arrays chunk by chunk, in the memory of a few chunks."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

# Elements per chunk. In float64 a chunk fits a core's cache, and is below the 128 KiB above which the
# allocator requests fresh memory from the system for every temporary array.
CHUNK = 1 << 13

Array = np.ndarray[Any, Any]


@dataclasses.dataclass
class Distance:
    """The sums and maxima of one pass over c, r and an optional oracle o; see `Difference`."""

    largest: float = 0.0  # max|c - r|
    position: int = 0  # of the largest |c - r| in the flattened arrays
    rms: float = 0.0
    element_wise: float = 0.0  # max(|c - r| / |r|)
    ulp: int | None = None
    magnitude: float = 0.0  # max|r|
    compared: int = 0  # the number of elements that the numbers include
    disagreements: int = 0  # mismatched NaNs and infinities, or unequal integers
    first_disagreement: int = 0
    candidate_error: tuple[float, float] = (0.0, 0.0)  # RMS and maximum of c - o
    reference_error: tuple[float, float] = (0.0, 0.0)
    oracle_size: tuple[float, float] = (0.0, 0.0)


@functools.cache
def category(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "biufc":
        return {"b": "bool", "i": "integer", "u": "integer", "f": "float", "c": "complex"}[dtype.kind]
    for numbers, name in ((ml_dtypes.finfo, "float"), (ml_dtypes.iinfo, "integer")):
        try:
            numbers(dtype)
        except (ValueError, KeyError):
            continue
        return name
    return "other"


@functools.cache
def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """Half the step from 1 to the next number: 2^-53, 2^-24, float16 2^-11, bfloat16 2^-8."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


@functools.cache
def smallest_normal(dtype: np.dtype[Any]) -> float:
    """The smallest normal number; below it, representable numbers are equally spaced."""
    return float(ml_dtypes.finfo(dtype).smallest_normal)


def narrower(c: Array, r: Array) -> np.dtype[Any]:
    return c.dtype if unit_roundoff(c.dtype) >= unit_roundoff(r.dtype) else r.dtype


def distance(c: Array, r: Array, o: Array | None = None, left_out: Array | None = None) -> Distance:
    """Compare in float64 or complex128 all positions that are finite in every array and not in `left_out`."""
    measured = Distance(ulp=0)
    wide = np.complex128 if "c" in (c.dtype.kind, r.dtype.kind) else np.float64
    narrow = narrower(c, r)
    error, candidate, reference, oracle = (_Norm() for _ in range(4))
    with np.errstate(all="ignore"):
        for chunk in _chunks(c, r, o, left_out):
            a, b = chunk.c.astype(wide, copy=False), chunk.r.astype(wide, copy=False)
            t = None if chunk.o is None else chunk.o.astype(wide, copy=False)
            sizes = [np.abs(a - b), np.abs(b)]
            if t is not None:
                sizes += [np.abs(a - t), np.abs(b - t), np.abs(t)]
            tops = [float(x.max(initial=0)) for x in sizes]
            if chunk.keep is not None or not all(map(math.isfinite, tops)):  # rare, and slow
                _find_apart(measured, chunk, a, b)
                positions = _comparable(chunk, a, b, t)
                chunk, sizes = chunk[positions], [x[positions] for x in sizes]
                tops = [float(x.max(initial=0)) for x in sizes]
            for norm, x, top in zip((candidate, reference, oracle), sizes[2:], tops[2:], strict=False):
                norm.add(x, top)
            measured.magnitude = max(measured.magnitude, tops[1])
            e, scale = sizes[:2]
            if error.add(e, tops[0]):
                measured.position = chunk.at(int(e.argmax()))
            if tops[0] > 0:
                ratio = e / scale
                measured.element_wise = max(measured.element_wise, float(np.fmax.reduce(ratio)))
                near, far = _most_steps(chunk.c, chunk.r, ratio, scale)
                measured.ulp = max(measured.ulp or 0, ulp(near.astype(narrow), far.astype(narrow)))
    measured.candidate_error = candidate.rms, candidate.largest
    measured.reference_error = reference.rms, reference.largest
    measured.oracle_size = oracle.rms, oracle.largest
    measured.largest, measured.rms, measured.compared = error.largest, error.rms, error.count
    return measured


def integers(c: Array, r: Array, left_out: Array | None = None) -> Distance:
    """Compare integers or bools of one shape; exact even for int64 against uint64."""
    measured = Distance()
    error = _Norm()
    for chunk in _chunks(c, r, None, left_out):
        if chunk.keep is not None:
            chunk = chunk[np.flatnonzero(chunk.keep)]
        scale = np.abs(chunk.r.astype(np.float64))
        measured.magnitude = max(measured.magnitude, float(scale.max(initial=0)))
        differs = chunk.c != chunk.r
        if not differs.any():
            error.add(scale, 0.0)
            continue
        # The difference of two 64-bit integers fits 64 bits without a sign, and wraps around to it.
        a, b = (x.astype(np.uint64 if x.dtype == np.uint64 else np.int64) for x in (chunk.c, chunk.r))
        a, b = a.view(np.uint64), b.view(np.uint64)
        e = np.where(chunk.c > chunk.r, a - b, b - a).astype(np.float64)
        if error.add(e, float(e.max())):
            measured.position = chunk.at(int(e.argmax()))
        with np.errstate(all="ignore"):
            measured.element_wise = max(measured.element_wise, float(np.fmax.reduce(e / scale)))
        _count_apart(measured, differs, chunk)
    measured.largest, measured.rms, measured.compared = error.largest, error.rms, error.count
    return measured


def ulp(c: Array, r: Array) -> int:
    """Return the largest number of representable steps between finite numbers (or parts) of one dtype."""
    # The bits of a float without its sign, read as an integer, count the steps from zero, so two floats are
    # as far apart as two integers. -0 and 0 are zero steps apart.
    if c.dtype.kind == "c":
        c, r = (np.ascontiguousarray(x).view(x.real.dtype) for x in (c, r))
    bits = 8 * c.dtype.itemsize
    steps = [_steps(np.ascontiguousarray(x).view(f"i{bits // 8}"), bits) for x in (c, r)]
    # Unsigned, because the distance of two 64-bit integers needs all 64 bits.
    high, low = (x.view(f"u{bits // 8}") for x in (np.maximum(*steps), np.minimum(*steps)))
    return int((high - low).max(initial=0))


def _steps(pattern: Array, bits: int) -> Array:
    """Return the signed number of steps from zero: converts sign and magnitude to two's complement."""
    sign = pattern >> (bits - 1)
    return ((pattern & np.array((1 << (bits - 1)) - 1, pattern.dtype)) ^ sign) - sign


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """A part of the flattened arrays."""

    start: int
    c: Array
    r: Array
    o: Array | None
    keep: Array | None  # True for the elements to compare; None for all
    positions: Array | None = None  # in the part, if the chunk holds only some of its elements

    def __getitem__(self, positions: Array) -> _Chunk:
        return _Chunk(self.start, self.c[positions], self.r[positions], None, None, positions)

    def at(self, i: int) -> int:
        return self.start + (i if self.positions is None else int(self.positions[i]))


def _chunks(c: Array, r: Array, o: Array | None, left_out: Array | None) -> Iterator[_Chunk]:
    start = 0
    for near, far, *more in _parts([x for x in (c, r, o, left_out) if x is not None]):
        true = None if o is None else more[0]
        out = None if left_out is None else more[-1]
        keep = ~out if out is not None and out.any() else None
        yield _Chunk(start, near, far, true, keep)
        start += near.size


def _parts(arrays: list[Array]) -> Iterable[tuple[Array, ...]]:
    """Yield all elements in C order, a chunk of each array at a time, without copying an array."""
    if all(x.flags.c_contiguous for x in arrays):
        flat = [x.reshape(-1) for x in arrays]
        return (tuple(x[at : at + CHUNK] for x in flat) for at in range(0, flat[0].size, CHUNK))
    # The next chunk overwrites nditer's buffer, so a caller must not keep chunks.
    flags: Any = ("external_loop", "buffered", "zerosize_ok")
    return np.nditer(arrays, flags, order="C", buffersize=CHUNK)


def _find_apart(measured: Distance, chunk: _Chunk, a: Array, b: Array) -> None:
    disagreeing = ~((np.isfinite(a) & np.isfinite(b)) | (a == b) | (np.isnan(a) & np.isnan(b)))
    _count_apart(measured, disagreeing if chunk.keep is None else disagreeing & chunk.keep, chunk)


def _count_apart(measured: Distance, disagreeing: Array, chunk: _Chunk) -> None:
    if disagreeing.any() and not measured.disagreements:
        measured.first_disagreement = chunk.at(int(disagreeing.argmax()))
    measured.disagreements += int(disagreeing.sum())


def _comparable(chunk: _Chunk, a: Array, b: Array, t: Array | None) -> Array:
    finite = np.isfinite(a) & np.isfinite(b)
    if t is not None:
        finite &= np.isfinite(t)
    return np.flatnonzero(finite if chunk.keep is None else finite & chunk.keep)


def _most_steps(c: Array, r: Array, ratio: Array, scale: Array) -> tuple[Array, Array]:
    """Return the elements that may be the most steps apart: only a few if all are normal and close."""
    # Two normal numbers of one sign are ln(c / r)·2^p to twice that many steps apart. Where |c - r| / |r| is
    # below 1/2, the logarithm is 0.8 to 1.4 times it; so an element with less than a quarter of the largest
    # ratio cannot have the most steps.
    worst = np.fmax.reduce(ratio)
    if c.dtype != r.dtype or c.dtype.kind == "c" or worst >= 0.5:
        return c, r
    if not scale.min() >= 2 * smallest_normal(c.dtype):
        return c, r
    few = np.flatnonzero(ratio >= worst / 4)
    return c[few], r[few]


class _Norm:
    """Running maximum and root mean square of numbers >= 0, without overflow or underflow of the squares."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.count = 0
        self._scale = 1.0
        self._total = 0.0

    def add(self, x: Array, top: float) -> bool:
        """Add x, whose maximum is top; returns whether the maximum has grown."""
        grown, self.largest = top > self.largest, max(top, self.largest)
        self.count += x.size
        if top == 0 or self.largest == math.inf:  # only the count changes
            return grown
        scale, total = 1.0, float(x @ x)
        # Squares overflow above 1e154 and underflow below 1e-154. Scaling first avoids that at the cost of
        # another pass, so it is done only for chunks that need it.
        if not 1e-280 < total < math.inf:
            scale, scaled = top, x / top
            total = float(scaled @ scaled)
        if not self._total:
            self._scale = scale
        common = max(scale, self._scale)
        self._total = self._total * (self._scale / common) ** 2 + total * (scale / common) ** 2
        self._scale = common
        return grown

    @property
    def rms(self) -> float:
        if not self.count or self.largest == math.inf:
            return self.largest
        return self._scale * math.sqrt(self._total / self.count)
