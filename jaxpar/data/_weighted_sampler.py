"""WeightedRandomSampler: rows by weight, torch.multinomial to the last one.

With replacement a uniform number is looked up in the summed weights. Without, or for one row, the
weights are divided by exponential numbers and the largest quotients win; the logarithm in these is
the C library's, as in torch, so that no bit differs where both use the same library.

Sources: ATen/native/Distributions.cpp, ATen/native/cpu/MultinomialKernel.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..random import Generator
from ._samplers import Drawing

Array = np.ndarray[Any, np.dtype[Any]]

_REFUSED = "invalid multinomial distribution "


class WeightedRandomSampler(Drawing):
    """Rows drawn with the given weights.

    Args:
      weights: [n] numbers that need not add up to one.
      num_samples: how many rows in an epoch.
      replacement: whether a row may come twice.
      generator, seed: as for `RandomSampler`.

    Raises:
      ValueError: as torch, for `num_samples`, `replacement` and weights with more axes.
      RuntimeError: in the epoch, as torch, for weights that are negative or not finite, for no
        positive one, and for fewer than `num_samples` without replacement; where weights of zero would
        have to be drawn, torch draws them in an order of its own.

    torch counterpart: `torch.utils.data.WeightedRandomSampler`, the same rows.
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
        *,
        seed: int | Generator | None = None,
    ):
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        self.weights = np.asarray(weights, np.float64)
        if self.weights.ndim != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {self.weights.shape}"
            )
        self.num_samples, self.replacement = num_samples, replacement
        self._take(generator, seed)

    def __iter__(self) -> Iterator[int]:
        if self.replacement and self.num_samples > 1:
            yield from _with_replacement(self.weights, self.num_samples, self._source)
        else:
            yield from _without(self.weights, self.num_samples, self._source)

    def __len__(self) -> int:
        return self.num_samples


def _with_replacement(weights: Array, k: int, g: Generator) -> list[int]:
    if not (weights >= 0).all():
        raise RuntimeError(_REFUSED + "(encountering probability entry < 0)")
    if not np.isfinite(weights).all():
        raise RuntimeError(_REFUSED + "(encountering probability entry = infinity or NaN)")
    if not weights.any():
        raise RuntimeError(_REFUSED + "(sum of probabilities <= 0)")
    total = np.cumsum(weights)
    total /= total[-1]
    total[-1] = 1
    return np.searchsorted(total, g.rand(k, dtype=np.float64)).tolist()


def _without(weights: Array, k: int, g: Generator) -> list[int]:
    if k > len(weights):
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if not ((weights >= 0) & (weights < math.inf)).all():
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    positive = np.count_nonzero(weights)
    if not positive:
        raise RuntimeError(_REFUSED + "(sum of probabilities <= 0)")
    if k > positive:
        raise RuntimeError(
            f"{_REFUSED}(with replacement=False, {k} of {len(weights)} rows cannot be drawn from {positive} "
            "positive weights)"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        quotients = weights / exponential(len(weights), g)
    return np.argsort(-quotients, kind="stable")[:k].tolist()


def exponential(n: int, g: Generator) -> Array:
    """[n] exponential numbers: `torch.empty(n, dtype=torch.float64).exponential_(generator=g)`."""
    return np.array([-math.log1p(-u) for u in g.rand(n, dtype=np.float64).tolist()])
