"""Mapping: which torch name is which Flax path, where the two disagree.

    {"encoder.layers": "blocks",                          # all below it, at whole words
     "head": "classifier",
     "fc": parity.flattened("fc", (512, 7, 7)),           # a Linear after a flatten of (C, H, W)
     "rnn": ("rnns.0", "rnns.1"),                         # a stack of two layers in torch
     "proj": parity.transposed("proj", (1, 0)),           # one array, its axes given by hand
     "qkv": parity.split(0, ("query", "key", "value")),   # one layer in torch, three in Flax
     ("gate", "up"): parity.concatenated(0, "gate_up"),   # two in torch, one in Flax
     "layers": parity.stacked("layers"),                  # a list in torch, one scanned layer in Flax
     "h.*.mlp.c_fc": "h_*.mlp.fc"}                        # each * is the same on both sides

The longest key that fits a name decides.
"""

from __future__ import annotations

import collections.abc
import dataclasses
from collections.abc import Iterator
from typing import Any

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


@dataclasses.dataclass(frozen=True)
class Split:
    """See `split`."""

    axis: int
    targets: tuple[Target, ...]
    sizes: tuple[int, ...] | None = None
    groups: int = 1

    def __repr__(self) -> str:
        return f"parity.split({self.axis}, {self.targets}{_options(self)})"


@dataclasses.dataclass(frozen=True)
class Concatenated:
    """See `concatenated`."""

    axis: int
    target: Target
    sizes: tuple[int, ...] | None = None
    groups: int = 1

    def __repr__(self) -> str:
        return f"parity.concatenated({self.axis}, {self.target!r}{_options(self)})"


@dataclasses.dataclass(frozen=True)
class Stacked:
    """See `stacked`."""

    path: str
    axis: int = 0

    def __repr__(self) -> str:
        return f"parity.stacked({self.path!r}" + (f", {self.axis})" if self.axis else ")")


def _options(cut: Split | Concatenated) -> str:
    sizes = f", sizes={cut.sizes}" if cut.sizes else ""
    return sizes + (f", groups={cut.groups}" if cut.groups > 1 else "")


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


def split(
    axis: int,
    names: collections.abc.Sequence[Target],
    *,
    sizes: collections.abc.Sequence[int] | None = None,
    groups: int = 1,
) -> Split:
    """In a mapping, several Flax places of what is one layer (or one array) in torch: a fused q, k, v.

    Args:
      axis: of torch's arrays, along which they are cut. 0 is a Linear's output features.
      names: the Flax places of the pieces, in the order in which torch has them.
      sizes: how long the pieces are along `axis`; if left out, as Flax's layers have them, or equal.
      groups: into how many blocks the axis falls before each of them is cut; the number of heads, where
        torch has each head's q, k and v side by side.

    Raises:
      ValueError: fewer than two names, or sizes or groups that fit nothing.

    torch counterpart: `weight.split(sizes, dim=axis)`.
    """
    targets = (names,) if isinstance(names, str) else tuple(names)
    if len(targets) < 2:
        raise ValueError(f"split: {names!r} is one place; give two or more, or the plain path.")
    return Split(int(axis), targets, _sizes("split", sizes, len(targets), groups), int(groups))


def concatenated(
    axis: int, name: Target, *, sizes: collections.abc.Sequence[int] | None = None, groups: int = 1
) -> Concatenated:
    """In a mapping, the one Flax place of several torch layers (or arrays), whose key is a tuple.

    Args:
      axis: of torch's arrays, along which they are put together. 0 is a Linear's output features.
      name: the Flax place of the whole.
      sizes: only for `to_torch` without `like`, where the pieces are not equal.
      groups: into how many blocks the axis falls, each with a part of every piece; as for `split`.

    Raises:
      ValueError: sizes or groups that fit nothing.

    torch counterpart: `torch.cat(weights, dim=axis)`.
    """
    return Concatenated(int(axis), name, _sizes("concatenated", sizes, None, groups), int(groups))


def stacked(path: str, axis: int = 0) -> Stacked:
    """In a mapping, the Flax layer whose arrays hold all layers of a torch list, as `scan` wants them.

    The key is the path of torch's list, or a tuple of the paths of its layers.

    Args:
      path: of the Flax layer that is scanned.
      axis: of Flax's arrays, along which the layers are stacked.

    torch counterpart: `torch.stack([layer.weight for layer in layers], axis)`.
    """
    return Stacked(path, int(axis))


def _sizes(
    function: str, sizes: collections.abc.Sequence[int] | None, count: int | None, groups: int
) -> tuple[int, ...] | None:
    """Checked."""
    lengths = None if sizes is None else tuple(int(size) for size in sizes)
    if groups < 1:
        raise ValueError(f"{function}: groups={groups} is below 1.")
    if lengths is None:
        return None
    if min(lengths, default=0) < 1 or any(size % groups for size in lengths):
        raise ValueError(f"{function}: sizes={lengths} are to be above 0, and multiples of groups={groups}.")
    if count is not None and len(lengths) != count:
        raise ValueError(f"{function}: sizes={lengths} are {len(lengths)}, and there are {count} places.")
    return lengths


Target = str | Flattened | Transposed | collections.abc.Sequence[str] | Split | Concatenated | Stacked
"""A value of a mapping."""
Entries = collections.abc.Mapping[Any, Target]
"""By torch names; by tuples of them for `concatenated` and `stacked`."""
Plain = collections.abc.Mapping[str, Target]
"""Entries without patterns and fusions: what pairing reads."""


def path_of(target: Target) -> str | None:
    """The Flax path that an entry leads to; None for a stack, which leads to several."""
    path = target.path if isinstance(target, (Flattened, Transposed)) else target
    return path if isinstance(path, str) else None


class Mapping(collections.abc.Mapping):
    """What `match` returns: a mapping to look at, edit and pass to `load_torch`.

    It behaves like a dict and prints as one, with what is unmatched as comments below.

    Attributes:
      entries: torch prefix to Flax path.
      reasons: for each key, why it is there.
      unmatched: lines about what is left over on either side.
      notes: lines about what became of the guesses when they were tried, the ambiguous ones above all.
    """

    def __init__(
        self,
        entries: Entries,
        reasons: collections.abc.Mapping[str, str] | None = None,
        unmatched: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
    ):
        self.entries, self.reasons = dict(entries), dict(reasons or {})
        self.unmatched, self.notes = unmatched, notes

    def __getitem__(self, name: str | tuple[str, ...]) -> Target:
        return self.entries[name]

    def __iter__(self) -> Iterator[str | tuple[str, ...]]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        lines = [
            f"    {key!r}: {target!r}," + (f"  # {self.reasons[key]}" if key in self.reasons else "")
            for key, target in self.entries.items()
        ]
        comments = [f"    # {line}" for line in (*self.unmatched, *self.notes)]
        return "\n".join(["{", *lines, *comments, "}"]) if lines or comments else "{}"
