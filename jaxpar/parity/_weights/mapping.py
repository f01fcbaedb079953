"""Mapping: Flax paths by torch names, for the names that differ. The longest key that fits a name applies.

{"encoder.layers": "blocks",                          # and all names nested under it
 "rnn": ("rnns.0", "rnns.1"),                         # a stack of two layers in torch
 "qkv": parity.split(0, ("query", "key", "value")),   # one layer in torch, three in Flax
 ("gate", "up"): parity.concatenated(0, "gate_up"),   # two in torch, one in Flax
 "h.*.mlp.c_fc": "h_*.mlp.fc"}                        # each * is the same on both sides
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from ..._typing import Shape
from .reversible import ReorderColumns, TransposeAxes
from .tree import inside, prefixes


@dataclasses.dataclass(frozen=True)
class Flattened:
    path: str
    shape: Shape

    def __repr__(self) -> str:
        return f"parity.flattened({self.path!r}, {self.shape})"

    @property
    def rearrangement(self) -> ReorderColumns:
        return ReorderColumns(self.shape)


@dataclasses.dataclass(frozen=True)
class Transposed:
    path: str
    axes: tuple[int, ...]

    def __repr__(self) -> str:
        return f"parity.transposed({self.path!r}, {self.axes})"

    @property
    def rearrangement(self) -> TransposeAxes:
        return TransposeAxes(self.axes)


@dataclasses.dataclass(frozen=True)
class Split:
    axis: int
    targets: tuple[Target, ...]
    sizes: tuple[int, ...] | None = None
    groups: int = 1

    def __repr__(self) -> str:
        return f"parity.split({self.axis}, {self.targets}{_options(self)})"


@dataclasses.dataclass(frozen=True)
class Concatenated:
    axis: int
    target: Target
    sizes: tuple[int, ...] | None = None
    groups: int = 1

    def __repr__(self) -> str:
        return f"parity.concatenated({self.axis}, {self.target!r}{_options(self)})"


@dataclasses.dataclass(frozen=True)
class Stacked:
    path: str
    axis: int = 0

    def __repr__(self) -> str:
        return f"parity.stacked({self.path!r}" + (f", {self.axis})" if self.axis else ")")


def _options(cut: Split | Concatenated) -> str:
    sizes = f", sizes={cut.sizes}" if cut.sizes else ""
    return sizes + (f", groups={cut.groups}" if cut.groups > 1 else "")


def flattened(path: str, shape: collections.abc.Sequence[int]) -> Flattened:
    """Return a mapping value: the Flax path of a Linear that follows a flatten of `shape`, (C, *S) in torch.

    torch flattens (C, H, W), Flax (H, W, C), so the columns of the weight are in different orders, which the
    shapes do not reveal.

    Raises:
      ValueError: `shape` has fewer than two sizes, or a size below 1.

    >>> from jaxpar import parity
    >>> {"fc": parity.flattened("head", (512, 7, 7))}
    {'fc': parity.flattened('head', (512, 7, 7))}
    """
    sizes = tuple(int(size) for size in shape)
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"flattened: {sizes} is no (C, *S); say what is flattened, as (512, 7, 7).")
    return Flattened(path, sizes)


def transposed(path: str, axes: collections.abc.Sequence[int]) -> Transposed:
    """Return a mapping value: the Flax path of one array with an explicit axis order.

    The Flax array is `numpy.transpose(torch_array, axes)`; `(0, 1)` loads a matrix unchanged.

    Raises:
      ValueError: `axes` is not a permutation.

    >>> from jaxpar import parity
    >>> parity.transposed("proj", (1, 0))
    parity.transposed('proj', (1, 0))
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
    """Return a mapping value: several Flax layers for one torch layer or array, such as a fused q, k, v.

    Args:
      axis: the axis of torch's arrays that is split. 0 is a Linear's output features.
      names: Flax paths of the pieces, in torch's order.
      sizes: lengths of the pieces along `axis`; by default the Flax layers' lengths, or equal ones.
      groups: number of equal blocks of the axis that are each split; the number of heads, where torch stores
        each head's q, k and v contiguously.

    Raises:
      ValueError: fewer than two names, or impossible sizes or groups.

    torch counterpart: `weight.split(sizes, dim=axis)`.

    >>> from jaxpar import parity
    >>> {"qkv": parity.split(0, ("query", "key", "value"), groups=4)}
    {'qkv': parity.split(0, ('query', 'key', 'value'), groups=4)}
    """
    targets = (names,) if isinstance(names, str) else tuple(names)
    if len(targets) < 2:
        raise ValueError(f"split: {names!r} is one place; give two or more, or the plain path.")
    return Split(int(axis), targets, _sizes("split", sizes, len(targets), groups), int(groups))


def concatenated(
    axis: int, name: Target, *, sizes: collections.abc.Sequence[int] | None = None, groups: int = 1
) -> Concatenated:
    """Return a mapping value: one Flax layer for several torch layers or arrays, whose key is a tuple.

    Args:
      axis, groups: as for `split`.
      name: the Flax path of the concatenated layer.
      sizes: lengths of unequal pieces, needed only by `to_torch` without `like`.

    Raises:
      ValueError: impossible sizes or groups.

    torch counterpart: `torch.cat(weights, dim=axis)`.

    >>> from jaxpar import parity
    >>> {("gate", "up"): parity.concatenated(0, "gate_up")}
    {('gate', 'up'): parity.concatenated(0, 'gate_up')}
    """
    return Concatenated(int(axis), name, _sizes("concatenated", sizes, None, groups), int(groups))


def stacked(path: str, axis: int = 0) -> Stacked:
    """Return a mapping value: a Flax layer for `scan`, with all layers of a torch list stacked along `axis`.

    The key is the path of torch's list, or a tuple of the layers' paths.

    torch counterpart: `torch.stack([layer.weight for layer in layers], axis)`.

    >>> from jaxpar import parity
    >>> {"layers": parity.stacked("blocks")}
    {'layers': parity.stacked('blocks')}
    """
    return Stacked(path, int(axis))


def _sizes(
    function: str, sizes: collections.abc.Sequence[int] | None, count: int | None, groups: int
) -> tuple[int, ...] | None:
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
Entries = collections.abc.Mapping[Any, Target]  # by torch names, or tuples for `concatenated` and `stacked`
Plain = collections.abc.Mapping[str, Target]  # Entries without patterns and fusions, as `pairing` uses them


def path_of(target: Target) -> str | None:
    """Return the Flax path of an entry; None for a tuple, which has several."""
    path = target.path if isinstance(target, (Flattened, Transposed)) else target
    return path if isinstance(path, str) else None


class Mapping(collections.abc.Mapping):
    """The result of `match`: a mapping to inspect, edit and pass to `load_torch`.

    It behaves like a dict and prints as one, with unmatched names as comments at the end.

    Attributes:
      entries: Flax paths by torch prefixes.
      reasons: the reason for each key.
      unmatched: lines about the unmatched names of both sides.
      notes: lines about the outcome of trying the guesses, ambiguous ones in particular.
    """

    def __init__(
        self,
        entries: Entries,
        reasons: collections.abc.Mapping[Any, str] | None = None,
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


def ignored(names: Iterable[str], patterns: Iterable[str], option: str) -> tuple[set[str], list[str]]:
    """Return the names that equal the patterns or are nested under them, and faults of the patterns."""
    if isinstance(patterns, str):
        return set(), [f"{option} is a list of names; write [{patterns!r}]"]
    matched: set[str] = set()
    faults = []
    for pattern in patterns:
        hit = {name for name in names if inside(name, pattern) is not None and pattern}
        if not hit:
            near = like(pattern, {path for name in names for path in prefixes(name)})
            faults.append(f"{option}: there is no {pattern!r}{near}")
        matched |= hit
    return matched, faults


def like(name: str, candidates: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, [n for n in candidates if n], 2, 0.6)
    return f"; near are {', '.join(near)}" if near else ""
