"""The k largest values in torch's order, also among equal ones.

Source: topk_impl_loop of ATen/native/TopKImpl.h, and nth_element, sort and partial_sort of libstdc++'s
bits/stl_algo.h and bits/stl_heap.h, none of which is stable.
"""

from __future__ import annotations

from collections.abc import MutableSequence

import numpy as np

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
