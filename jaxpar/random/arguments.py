"""Checks of generators and of weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._dtypes import is_floating, name
from ._generator import Generator

_REFUSED = "invalid multinomial distribution "


def checked_generator(function: str, generator: Any) -> Generator:
    if not isinstance(generator, Generator):
        raise TypeError(
            f"{function}: generator must be a jaxpar.random.Generator, not {type(generator).__name__}. "
            "For a torch generator g: jaxpar.random.Generator(0).set_state(g.get_state().numpy())."
        )
    return generator


def check_weights(weights: np.ndarray, k: int, replacement: bool) -> None:
    """Raise torch's error for weights of which k cannot be drawn."""
    if weights.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not is_floating(weights.dtype):
        raise RuntimeError(
            f"multinomial only supports floating-point dtypes for input, got: {name(weights.dtype)}"
        )
    if weights.dtype.itemsize == 2:
        raise NotImplementedError(f"multinomial: weights of {weights.dtype}; convert them to float32.")
    if k <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if k > weights.shape[-1] and not replacement:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if (not replacement or k == 1) and not ((weights >= 0) & (weights < math.inf)).all():
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if not (weights >= 0).all():
        raise RuntimeError(_REFUSED + "(encountering probability entry < 0)")
    if not np.isfinite(weights).all():
        raise RuntimeError(_REFUSED + "(encountering probability entry = infinity or NaN)")
    positive = np.count_nonzero(weights, -1)
    if not positive.all():
        raise RuntimeError(_REFUSED + "(sum of probabilities <= 0)")
    if not replacement and (k > positive).any():
        raise RuntimeError(
            f"{_REFUSED}(with replacement=False, {k} of {weights.shape[-1]} columns cannot be drawn from "
            f"{positive.min()} positive weights)"
        )
