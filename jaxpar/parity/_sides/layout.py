"""Layout: where the channels are. torch has them at axis 1, Flax at the end; a token has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Move = Callable[[np.ndarray], np.ndarray]


def same(x: np.ndarray) -> np.ndarray:
    return x


def to_channels_last(x: np.ndarray) -> np.ndarray:
    """[N, C, *S] to [N, *S, C]; integers and arrays of fewer than three axes stay as they are."""
    return np.moveaxis(x, 1, -1) if _has_channels(x) else x


def to_channels_first(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, -1, 1) if _has_channels(x) else x


def _has_channels(x: np.ndarray) -> bool:
    return x.ndim > 2 and x.dtype.kind not in "biu"


NAMES: dict[str, tuple[Move, Move]] = {
    "same": (same, same),
    "channels_last": (to_channels_last, to_channels_first),
}


@dataclass(frozen=True)
class Layout:
    """How arrays travel: `inputs` (and targets) to Flax, `outputs` to Flax and back.

    All are functions of one NumPy array that only permute its elements.
    """

    inputs: Move = same
    outputs: Move = same
    outputs_back: Move = same

    @classmethod
    def parse(cls, layout: str | tuple[str, str] | Layout) -> Layout:
        """From "same", "channels_last", a pair of them for inputs and outputs, or a Layout."""
        if isinstance(layout, Layout):
            return layout
        pair = (layout, layout) if isinstance(layout, str) else tuple(layout)
        if len(pair) != 2 or not set(pair) <= set(NAMES):
            raise ValueError(
                f"layout is {layout!r}; it is one of {', '.join(map(repr, NAMES))}, a pair of them "
                "(inputs, outputs), or a parity.Layout."
            )
        inputs, outputs = pair
        return cls(NAMES[inputs][0], *NAMES[outputs])
