"""Comparing arrays: it raises, says where, and never skips a leaf. Planted faults: test_comparing.py."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

SEMANTIC = 1e-10
"""Relative, both sides in float64. Healthy pairs are near 1e-15; a difference in meaning is not."""


def assert_equal_numbers(name: str, got, want, tolerance: float = SEMANTIC) -> float:
    """The largest difference relative to the largest magnitude of `want`; raises above `tolerance`."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"{name}: dtype {got.dtype}, expected {want.dtype}"
    if want.dtype.kind not in "fc":
        assert np.array_equal(got, want), f"{name}: {got} is not {want}"
        return 0.0
    assert np.array_equal(np.isfinite(got), np.isfinite(want)), f"{name}: not finite in different places"
    finite = np.isfinite(want)
    if not finite.any():
        return 0.0
    error = np.abs(got[finite] - want[finite]).max()
    scale = np.abs(want)[finite].max()
    relative = float(error / scale) if scale else float(error)
    assert relative <= tolerance, f"{name}: relative difference {relative:.3g} is above {tolerance:.3g}"
    return relative


def assert_equal_trees(name: str, got: Mapping, want: Mapping, tolerance: float = SEMANTIC) -> float:
    """Both sides are flat dicts of arrays and must have the same keys."""
    assert got.keys() == want.keys(), (
        f"{name}: only here {got.keys() - want.keys()}, only there {want.keys() - got.keys()}"
    )
    return max(
        (assert_equal_numbers(f"{name} {key}", got[key], want[key], tolerance) for key in want), default=0.0
    )


def named(value: object) -> str:
    """A test id that is the same in every process: functions by their names, not where they lie."""
    return re.sub(r"<function ([\w.<>]+) at 0x\w+>", r"\1", str(value))
