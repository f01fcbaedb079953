"""Arrays of the host."""

from __future__ import annotations

import numpy as np

LINE = 64
"""Bytes. JAX uses the memory of an array that begins at a multiple as it is, and copies any other."""


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Float64 that a CPU device would share with the host, were it sent as it is."""
    n = 8 * int(np.prod(shape))
    memory = np.zeros(n + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + n].view(np.float64).reshape(shape)
