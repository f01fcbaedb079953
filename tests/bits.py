"""Numbers that must be the same to the last bit. Planted faults: test_random.py."""

from __future__ import annotations

import numpy as np


def assert_same_bits(name: str, got, want) -> int:
    """Compares a NumPy array with a torch tensor, bit by bit; returns how many numbers."""
    got, want = _bits(got), _bits(want)
    assert got.dtype == want.dtype, f"{name}: {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
    different = got != want
    assert not different.any(), (
        f"{name}: {np.count_nonzero(different)} of {got.size} numbers differ, "
        f"the first at {np.unravel_index(different.argmax(), got.shape)}"
    )
    return got.size


def _bits(numbers) -> np.ndarray:
    """Half-precision numbers become int16, because NumPy cannot read a torch.bfloat16."""
    if not isinstance(numbers, np.ndarray):
        import torch

        half = numbers.dtype in (torch.float16, torch.bfloat16)
        numbers = (numbers.view(torch.int16) if half else numbers).numpy()
    elif numbers.dtype.itemsize == 2:
        numbers = numbers.view(np.int16)
    integers = {"f": f"i{numbers.dtype.itemsize}"}.get(numbers.dtype.kind, numbers.dtype)
    return np.ascontiguousarray(numbers).view(integers)
