"""The loss where the user gives none: a fixed random projection of everything the model returns.

Every element of every output gets a factor of its own, so no error can cancel: a plain sum would hide a
permutation, and the gradient of a mean after BatchNorm is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

Shapes = Mapping[str, tuple[int, ...]]


def factors(shapes: Shapes, seed: int) -> dict[str, np.ndarray]:
    """float64 factors for each output, of a size that keeps the loss near 1; the same on both sides.

    Args:
      shapes: of the floating outputs, in torch's layout.
    """
    # A stream of its own: inputs drawn from RandomState(seed) would be projected on themselves, and the
    # input gradient of a norm is nothing but rounding then.
    random = np.random.RandomState([seed % 2**32, *b"projection"])
    return {
        name: random.standard_normal(shape) / max(1, math.prod(shape)) ** 0.5
        for name, shape in shapes.items()
    }
