"""The search for a cause: torch with one call made wrongly, until it gives what Flax gave.

A cause is named only if torch's own answer proves it. Nothing is assumed about Flax's code.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from .._result import Cause
from .._sides.task import Named
from .catalogue import Variation, variations
from .torch_trace import Change, Op

Watch = Callable[[dict[int, Change]], Named]
"""Runs torch with these calls changed; returns the arrays that Flax's are held against."""

EQUAL = 1e-10
MOST = 400
"""Runs of the model at most; a window of many calls has many variations."""


def causes(ops: Iterable[Op], watch: Watch, flax: Named) -> tuple[Cause, ...]:
    """The changes of one call that make torch equal to Flax, the best first."""
    found: list[Cause] = []
    for index, variation in list(itertools.islice(_all(ops), MOST)):
        try:
            # The user did not make the wrong call, and is not to be warned of it. Python's filters and
            # torch's generator belong to the process; both are restored after every run.
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
                changed = watch({index: variation.change})
        except (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError):
            continue  # a wrong way that torch refuses is not what Flax did
        errors = [relative_error(changed[name], x) for name, x in flax.items() if name in changed]
        relative = max(errors, default=math.inf)
        if relative <= EQUAL:
            found.append(Cause(variation.text, relative))
    # The same mistake in several calls is one cause; the call that explains most stands for it.
    best = {cause.text: cause for cause in sorted(found, key=lambda cause: -cause.relative)}
    return tuple(sorted(best.values(), key=lambda cause: cause.relative))


def _all(ops: Iterable[Op]) -> Iterator[tuple[int, Variation]]:
    for op in ops:
        try:
            yield from ((op.index, variation) for variation in variations(op))
        except (TypeError, KeyError, IndexError, AttributeError, ValueError, RuntimeError):
            continue  # called in a way that the catalogue does not know


def relative_error(c: np.ndarray, r: np.ndarray) -> float:
    """max|c - r| / max|r|, infinite where the shapes or the NaNs differ."""
    # NaN in one and not in the other is no small difference, and neither is another shape.
    if c.shape != r.shape or not np.array_equal(np.isfinite(c), np.isfinite(r)):
        return math.inf
    finite = np.isfinite(r)
    if not finite.any():
        return 0.0
    error = float(np.abs(c.astype(np.float64) - r.astype(np.float64))[finite].max())
    size = float(np.abs(r.astype(np.float64))[finite].max())
    return error / size if size else (math.inf if error else 0.0)
