"""Fisher and Yates's shuffle, exactly, without a step of Python for every element.

torch swaps position i with i + r % (n - i), r being the next 32-bit number. That is a chain of n - 1 steps,
but two of them depend on each other only if they share a position, as do about 2 k^2 / (n - i) among k
consecutive steps. So the steps are taken in groups of 3 sqrt(n - i): first, one by one, the few that share a
position with another step of their group; then all others of the group at once.

Source: ATen/native/TensorFactories.cpp (`randperm_cpu`).
"""

from __future__ import annotations

import math

import numpy as np

from ._uniform import BLOCK, Words

LIMIT = (2**32 - 1) // 20
"""From this n on torch draws 64-bit numbers and builds the permutation from the other end."""

_GROUP = 3
"""The size of a group, in units of the root; measured: anything between 2 and 6 is as fast."""
_ALONE = 64
"""The last elements, too few for a group."""


def shuffled(draw: Words, n: int) -> np.ndarray:
    """Return the numbers 0 to n - 1 in torch's order, int32. Draws n - 1 32-bit numbers; n < LIMIT."""
    order = np.arange(n, dtype=np.int32)  # half the memory, which counts where access is random
    partner = _partners(draw, n)
    # Scalars of a memoryview are ten times as quick as an array's.
    contents, partners = order.data, partner.data
    owner = np.empty(n, np.uint16)  # whose position it is: a step of the group, counted from its start
    names = np.arange(_GROUP * (math.isqrt(n) + 1), dtype=np.uint16)
    start = 0
    while n - start > _ALONE:
        end = min(start + _GROUP * math.isqrt(n - start), n - 1)
        group, steps = partner[start:end], names[: end - start]
        owner[group] = steps
        owner[start:end] = steps
        owners = owner.take(group)
        shared = (owners != steps).nonzero()[0]
        for step in sorted({*shared.tolist(), *owners[shared].tolist()}):
            i = start + step
            j = partners[i]
            contents[i], contents[j] = contents[j], contents[i]
            partners[i] = i  # so that the vectorised swap skips this step
        swapped = order.take(group)
        order[group] = order[start:end]
        order[start:end] = swapped
        start = end
    for i in range(start, n - 1):
        j = partners[i]
        contents[i], contents[j] = contents[j], contents[i]
    return order


def _partners(draw: Words, n: int) -> np.ndarray:
    """Return the position that each step i swaps with i, i + r % (n - i) for the 32-bit number r."""
    partner = np.empty(max(n - 1, 0), np.int64)
    for start in range(0, n - 1, BLOCK):
        end = min(start + BLOCK, n - 1)
        offset = draw(end - start).astype(np.uint32)
        offset %= np.arange(n - start, n - end, -1, dtype=np.uint32)
        np.add(offset, np.arange(start, end), out=partner[start:end])
    return partner
