"""Draws by weight, as torch.multinomial on a CPU.

Sources: ATen/native/Distributions.cpp and ATen/native/cpu/MultinomialKernel.cpp.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from .._arguments import whole
from ._generator import Generator
from .arguments import check_weights, checked_generator


def multinomial(
    input: ArrayLike, num_samples: SupportsIndex, replacement: bool = False, *, generator: Generator
) -> np.ndarray:
    """Draw columns of each row of weights: torch's, bit for bit.

    With replacement a uniform number is looked up in the summed weights. Without, or for one draw, the
    largest quotients of weights and exponential numbers win.

    Args:
      input: [n] or [rows, n] weights in float32 or float64, which need not add up to one.
      num_samples: how many of each row.
      replacement: whether a column may come twice in a row.
      generator: a `jaxpar.random.Generator`.

    Returns: [num_samples] or [rows, num_samples] int64.

    Raises: RuntimeError: as torch, for weights that are negative, not finite or not floating point, rows
      without a positive one, more than two axes, no draws, and more draws than columns without replacement;
      also for more than the positive ones, where torch draws columns of weight zero. NotImplementedError:
      float16 and bfloat16. TypeError: a wrong type.

    >>> from jaxpar import random
    >>> random.multinomial([0.0, 10, 3, 0], 2, generator=random.Generator(0)).tolist()
    [1, 2]

    torch counterpart: `torch.multinomial`.
    """
    weights = np.asarray(input)
    k = whole("multinomial", "num_samples", num_samples)
    if not isinstance(replacement, bool):
        raise TypeError(f"multinomial: replacement is {replacement!r}; it must be True or False.")
    checked_generator("multinomial", generator)
    check_weights(weights, k, replacement)
    # For one draw torch always takes the method without replacement, whose draws differ.
    draw = _with_replacement if replacement and k > 1 else _without_replacement
    return draw(np.atleast_2d(weights), k, generator).reshape(*weights.shape[:-1], k)


def _with_replacement(weights: np.ndarray, k: int, g: Generator) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):  # a sum beyond the dtype gives columns in torch, too
        totals = np.cumsum(weights, -1)  # in torch's order and precision, so that the same columns are found
        totals /= totals[:, -1:]
    # As in torch. It is 1 already, unless the sum overflowed: then it is NaN.
    totals[:, -1] = 1
    uniform = g.rand(len(weights), k, dtype=np.float64)
    pairs = zip(totals, uniform, strict=True)
    return np.array([np.searchsorted(*pair) for pair in pairs], np.int64).reshape(-1, k)


def _without_replacement(weights: np.ndarray, k: int, g: Generator) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        quotients = weights / exponential(weights.size, g).astype(weights.dtype).reshape(weights.shape)
    return np.array([largest(row, k) for row in quotients], np.int64).reshape(-1, k)


def exponential(n: int, g: Generator) -> np.ndarray:
    """Return [n] exponential numbers: `torch.empty(n, dtype=torch.float64).exponential_(generator=g)`."""
    # math.log1p is the C library's; NumPy may use a vectorised one that differs in the last bit.
    return np.array([-math.log1p(-u) for u in g.rand(n, dtype=np.float64).tolist()])


Pairs = MutableSequence[tuple[float, int]]
"""(-value, index); only the values are compared."""


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """[k] indices of a vector without NaN, the largest value first: `torch.topk(values, k).indices`."""
    order = np.argsort(-values, kind="stable")
    ranked = values[order[: k + 1]]
    if (ranked[1:] < ranked[:-1]).all():
        return order[:k]
    pairs = [(-value, i) for i, value in enumerate(values.tolist())]
    if k * 64 <= len(pairs):
        _partial_sort(pairs, k)
    else:
        _nth_element(pairs, k - 1)
        pairs[: k - 1] = _sorted(pairs[: k - 1])
    return np.array([i for _, i in pairs[:k]], np.int64)


def _nth_element(pairs: Pairs, nth: int) -> None:
    first, last = 0, len(pairs)
    while last - first > 3:
        cut = _partition(pairs, first, last)
        first, last = (cut, last) if cut <= nth else (first, cut)
    pairs[first:last] = sorted(pairs[first:last], key=_value)


def _sorted(pairs: Pairs) -> Pairs:
    ranges = [(0, len(pairs))]
    for first, last in ranges:  # which grows
        while last - first > 16:
            cut = _partition(pairs, first, last)
            ranges.append((cut, last))
            last = cut
    return sorted(pairs, key=_value)  # as libstdc++'s insertion sort of what is nearly sorted, stable


def _value(pair: tuple[float, int]) -> float:
    return pair[0]


def _partition(pairs: Pairs, first: int, last: int) -> int:
    one, other, end = first + 1, first + (last - first) // 2, last - 1
    less, more = (one, other) if pairs[one][0] < pairs[other][0] else (other, one)
    if pairs[more][0] < pairs[end][0]:
        median = more
    elif pairs[less][0] < pairs[end][0]:
        median = end
    else:
        median = less
    pairs[first], pairs[median] = pairs[median], pairs[first]
    pivot, low, high = pairs[first][0], first + 1, last
    while True:
        while pairs[low][0] < pivot:
            low += 1
        high -= 1
        while pivot < pairs[high][0]:
            high -= 1
        if low >= high:
            return low
        pairs[low], pairs[high] = pairs[high], pairs[low]
        low += 1


def _partial_sort(pairs: Pairs, k: int) -> None:
    for parent in range((k - 2) // 2, -1, -1):
        _sift(pairs, parent, k, pairs[parent])
    for i in range(k, len(pairs)):
        if pairs[i][0] < pairs[0][0]:
            pair, pairs[i] = pairs[i], pairs[0]
            _sift(pairs, 0, k, pair)
    for last in range(k - 1, 0, -1):
        pair, pairs[last] = pairs[last], pairs[0]
        _sift(pairs, 0, last, pair)


def _sift(heap: Pairs, hole: int, n: int, pair: tuple[float, int]) -> None:
    """Move the hole to the bottom along the larger children, and the pair up from there."""
    top, child = hole, hole
    while child < (n - 1) // 2:
        child = 2 * (child + 1)
        if heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole], hole = heap[child], child
    if n % 2 == 0 and child == (n - 2) // 2:
        child = 2 * child + 1
        heap[hole], hole = heap[child], child
    while hole > top and heap[(hole - 1) // 2][0] < pair[0]:
        heap[hole], hole = heap[(hole - 1) // 2], (hole - 1) // 2
    heap[hole] = pair
