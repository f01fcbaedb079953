"""Draws by weight, as torch.multinomial on a CPU.

Sources: ATen/native/Distributions.cpp and ATen/native/cpu/MultinomialKernel.cpp.
"""

from __future__ import annotations

import math
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from .._arguments import whole
from ._generator import Generator
from ._topk import largest
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
