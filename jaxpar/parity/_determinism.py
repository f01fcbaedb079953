"""Whether a side gives the same result twice, and which draws of its own do not change it."""

from __future__ import annotations

import numpy as np

from ..errors import MaskError, NotDeterministicError
from ._sides.step_data import Observation
from ._tensors import widened


def require_own_draws_without_effect(first: Observation, other: Observation) -> None:
    """Raise MaskError if the Flax module draws random numbers besides dropout masks, which are torch's."""
    for part in ("outputs", "loss", "state", "gradients"):
        for name, x in getattr(first, part).items():
            if x.tobytes() != getattr(other, part)[name].tobytes():
                raise MaskError(
                    f"parity.compare: {f'{part} {name}'.strip()} of the Flax module depends on random "
                    "numbers that it draws itself, outside of Dropout layers (make_rng, a key, an attention "
                    "of its own), where torch's masks do not reach. Compare with training=False, set that "
                    "rate to 0, or drop with a Dropout layer."
                )


def require_equal(what: str, first: Observation, second: Observation) -> None:
    """Raise NotDeterministicError if two runs of a side on the same batch differ."""
    for part in ("outputs", "state", "gradients"):
        for name, x in getattr(first, part).items():
            y = getattr(second, part)[name]
            # Bytes, because a NaN does not equal itself.
            if x.tobytes() != y.tobytes():
                spread = np.nanmax(np.abs(widened(x) - widened(y)))
                label = f"{part} {name}".strip()
                raise NotDeterministicError(
                    f"parity.compare: {what} gives two results for the same batch, {label}: {spread:.2g} "
                    "apart. Compare in evaluation mode, or take out what draws random numbers (masks of "
                    "torch's dropout are passed on by themselves)."
                )
