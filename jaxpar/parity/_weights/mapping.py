"""Mapping: which torch name is which Flax path, where the two disagree.

    {"encoder.layers": "blocks",                          # all below it, at whole words
     "head": "classifier",
     "fc": parity.flattened("fc", (512, 7, 7)),           # a Linear after a flatten of (C, H, W)
     "rnn": ("rnns.0", "rnns.1"),                         # a stack of two layers in torch
     "proj": parity.transposed("proj", (1, 0))}           # one array, its axes given by hand

The longest key that fits a name decides.
"""

from __future__ import annotations

import collections.abc
import dataclasses
from collections.abc import Iterator

import numpy as np

from ..._typing import Shape


@dataclasses.dataclass(frozen=True)
class Flattened:
    """See `flattened`."""

    path: str
    shape: Shape

    def __repr__(self) -> str:
        return f"parity.flattened({self.path!r}, {self.shape})"

    def to_flax(self, weight: np.ndarray) -> np.ndarray:
        """(O, C*H*W) with its columns in Flax's order (H, W, C)."""
        columns = weight.reshape(-1, *self.shape)
        return np.moveaxis(columns, 1, -1).reshape(weight.shape)

    def to_torch(self, weight: np.ndarray) -> np.ndarray:
        C, *space = self.shape
        return np.moveaxis(weight.reshape(-1, *space, C), -1, 1).reshape(weight.shape)


@dataclasses.dataclass(frozen=True)
class Transposed:
    """See `transposed`."""

    path: str
    axes: tuple[int, ...]

    def __repr__(self) -> str:
        return f"parity.transposed({self.path!r}, {self.axes})"

    def to_flax(self, array: np.ndarray) -> np.ndarray:
        return array.transpose(self.axes)

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        return array.transpose(np.argsort(self.axes))


def flattened(path: str, shape: collections.abc.Sequence[int]) -> Flattened:
    """In a mapping, the Flax path of a Linear that follows a flatten.

    torch flattens (C, H, W), Flax (H, W, C), so the columns of the weight have another order, which no
    shape shows.

    Args:
      path: of the Flax layer, or of its kernel.
      shape: (C, *S), what is flattened, without the batch.

    Raises:
      ValueError: `shape` has no C, or a size below 1.
    """
    sizes = tuple(int(size) for size in shape)
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"flattened: {sizes} is no (C, *S); say what is flattened, as (512, 7, 7).")
    return Flattened(path, sizes)


def transposed(path: str, axes: collections.abc.Sequence[int]) -> Transposed:
    """In a mapping, the Flax path of one array whose axes are given by hand.

    The Flax array is `numpy.transpose(torch_array, axes)`; `(0, 1)` takes a matrix as it is.

    Raises:
      ValueError: `axes` is no permutation.
    """
    order = tuple(int(axis) for axis in axes)
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"transposed: {order} is no permutation of {tuple(range(len(order)))}.")
    return Transposed(path, order)


Place = str | Flattened | Transposed | collections.abc.Sequence[str]
"""A value of a mapping."""
Entries = collections.abc.Mapping[str, Place]


def path_of(place: Place) -> str | None:
    """The Flax path that an entry leads to; None for a stack, which leads to several."""
    path = place.path if isinstance(place, (Flattened, Transposed)) else place
    return path if isinstance(path, str) else None


class Mapping(collections.abc.Mapping):
    """What `match` returns: a mapping to look at, edit and pass to `load_torch`.

    It behaves like a dict and prints as one, with what is unmatched as comments below.

    Attributes:
      entries: torch prefix to Flax path.
      reasons: for each key, why it is there.
      unmatched: lines about what is left over on either side.
    """

    def __init__(
        self,
        entries: Entries,
        reasons: collections.abc.Mapping[str, str] | None = None,
        unmatched: tuple[str, ...] = (),
    ):
        self.entries, self.reasons, self.unmatched = dict(entries), dict(reasons or {}), unmatched

    def __getitem__(self, name: str) -> Place:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        lines = [
            f"    {key!r}: {place!r}," + (f"  # {self.reasons[key]}" if key in self.reasons else "")
            for key, place in self.entries.items()
        ]
        left = [f"    # {line}" for line in self.unmatched]
        return "\n".join(["{", *lines, *left, "}"]) if lines or left else "{}"
