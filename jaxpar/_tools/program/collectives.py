"""What instructions that exchange numbers between devices prove: one rule for each kind."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Hashable

import numpy as np

from .rules import NoRuleError
from .slices import collected_in_order, cut_again, equal_in, numbered
from .values import UNIFORM, Dependence, Fact, Labels, Shares, Waypoint, join, labels_of, numbers

Groups = tuple[tuple[int, ...], ...]
MESH = re.compile(
    r"mesh\[((?:'[^']*'=\d+,?)+)\](?:, device_ids=\(((?:\[[\d,]+\](?:T\([\d,]+\))?)|[\d,]+)\))?"
    r" \{((?:'[^']*'(?::\(\d+\)\d+)?(?:, ?)?)+)\}(?:, |$)"
)
"""Groups as axes of a mesh: the sizes of its axes, the order of its devices, and the axes."""


@dataclasses.dataclass(frozen=True)
class Exchanged:
    """A collective as the program has it; `group_axes` names the loops and branches around it."""

    operation: str
    groups: Groups
    kinds: tuple[str, ...]
    bytes: int
    context: tuple[str, ...]


@functools.cache
def device_groups(attributes: str, devices: int) -> Groups:
    """Read `replica_groups` in each form in which XLA prints it.

    >>> device_groups("replica_groups={{0,1},{2,3}}, x", 4)
    ((0, 1), (2, 3))
    >>> device_groups("replica_groups=[2,2]<=[2,2]T(1,0), x", 4)
    ((0, 2), (1, 3))
    >>> device_groups("replica_groups=mesh['a'=2,'b'=2] {'a'}, x", 4)
    ((0, 2), (1, 3))
    >>> device_groups("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}, x", 4)
    ((0, 1), (2, 3))
    >>> device_groups("replica_groups=mesh['a'=4] {'a':(1)2}, x", 4)
    ((0, 2), (1, 3))
    """
    match = re.search(r"replica_groups=", attributes)
    text = attributes[match.end() :] if match else "{}"
    if text.startswith("{{"):
        inner = text[1 : text.index("}}") + 1]
        groups = tuple(tuple(map(int, x.split(","))) for x in re.findall(r"\{([\d,]+)\}", inner))
    elif text.startswith("{}"):
        groups = (tuple(range(devices)),)
    elif iota := re.match(r"\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?(?:,|$|\s)", text):
        count, size, shape, order = iota.groups()
        ids = np.arange(devices).reshape([int(n) for n in shape.split(",")])
        ids = ids.transpose([int(n) for n in order.split(",")]) if order else ids
        groups = tuple(map(tuple, ids.reshape(int(count), int(size)).tolist()))
    elif mesh := MESH.match(text):
        groups = _mesh_groups(np.arange(devices), *mesh.groups())
    else:
        raise NoRuleError(f"replica_groups={text[:40]}")
    members = sorted(d for group in groups for d in group)
    if members != list(range(devices)):
        raise NoRuleError(f"its groups hold {len(members)} of {devices} devices")
    return groups


def _mesh_groups(ids: np.ndarray, sizes: str, order: str | None, chosen: str) -> Groups:
    """Return the devices that differ in the chosen axes alone.

    `'a':(2)3` is the part with 3 places of axis a, after a part with 2; `order` arranges the devices.
    """
    if order is not None and order.startswith("["):
        shape, _, permutation = order.partition("T")
        ids = ids.reshape([int(n) for n in shape[1:-1].split(",")])
        ids = ids.transpose([int(n) for n in permutation[1:-1].split(",")]) if permutation else ids
    elif order is not None:
        ids = np.array([int(n) for n in order.split(",")])
    axes = {name: int(n) for name, n in re.findall(r"'([^']*)'=(\d+)", sizes)}
    parts = re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", chosen)
    cuts: dict[str, set[int]] = {name: {1, size} for name, size in axes.items()}
    for name, before, size in parts:
        cuts[name] |= {int(before), int(before) * int(size)} if size else set()
    # Each axis is cut into its parts, named by where they begin and end.
    pieces = [(name, *pair) for name, ends in cuts.items() for pair in itertools.pairwise(sorted(ends))]
    ids = ids.reshape([end // start for _, start, end in pieces])
    ranges = [
        (name, int(before or 1), int(before or 1) * int(size or axes[name])) for name, before, size in parts
    ]
    varying = [
        i for name, start, end in ranges for i, x in enumerate(pieces) if x[0] == name and start <= x[1] < end
    ]
    fixed = [i for i in range(len(pieces)) if i not in varying]
    count = int(np.prod([ids.shape[i] for i in varying]))
    return tuple(map(tuple, ids.transpose(fixed + varying).reshape(-1, count).tolist()))


def _spread(groups: Groups, size: int, key: object) -> list[Hashable]:
    """Evaluate `key(group, position)` for each device."""
    keys: list[Hashable] = [None] * size
    for group in groups:
        for position, device in enumerate(group):
            keys[device] = key(group, position)  # type: ignore[operator]
    return keys


def _labels(groups: Groups, labels: Labels, ordered: bool, placed: bool) -> Labels:
    """Label each device by its group's labels, and by its position in the group if the result is."""
    numbered = numbers(labels)
    sequences = {
        g: tuple(numbered[d] for d in g) if ordered else tuple(sorted(numbered[d] for d in g)) for g in groups
    }
    return labels_of(_spread(groups, len(numbered), lambda g, i: (sequences[g], i if placed else 0)))


def _rows(shares: Shares, groups: Groups, rows: tuple[int, ...]) -> tuple[int, ...]:
    unions = {g: functools.reduce(int.__or__, (rows[d] for d in g)) for g in groups}
    return shares.interned(_spread(groups, len(rows), lambda g, _: unions[g]))  # type: ignore[arg-type]


def reduction(shares: Shares, at: str, value: Fact, groups: Groups, operation: str, is_float: bool) -> Fact:
    """An all-reduce of one array; `operation` is add, maximum, minimum, and, or, multiply."""
    if value.constant is not None and operation == "add":
        sums = {g: sum(value.constant.on(d) for d in g) for g in groups}
        return shares.of_known(_spread(groups, shares.size, lambda g, _: sums[g]))
    # Zero is neutral to a sum: a device that adds zeros does not take part.
    heard = (
        {g: tuple(d for d in g if d not in value.zeros) for g in groups}
        if operation == "add"
        else {g: g for g in groups}
    )
    same = _labels(groups, value.same, ordered=False, placed=False)
    form = _labels(groups, value.form, ordered=False, placed=False)
    rows = _rows(shares, groups, value.rows)
    state, why = state_of_sum(shares, value, heard, rows)
    if operation != "add" and state != Dependence.FREE and value.state != state and is_float:
        state, why = Dependence.UNKNOWN, f"{operation} over devices, which is no sum"
    marks = set(value.marks)
    if rows != value.rows:
        marks.add(Waypoint("sum" if operation == "add" else "extreme", at, operation))
    if state == Dependence.UNKNOWN and value.state != Dependence.UNKNOWN:
        marks.add(Waypoint("unknown", at, why))
    if state == Dependence.COMPLETE:
        rows = shares.whole
    if operation == "add" and value.state != Dependence.FREE:
        marks |= _again(shares, at, value, heard)
    # Functions of slices, such as their squares, are added over one axis of a mesh after the other.
    is_total = value.total or value.state != Dependence.COMPLETE or same == shares.alike
    total = operation == "add" and state == Dependence.COMPLETE and is_total
    slices = equal_in(value.slices, groups)
    return Fact(same, form, rows, state, frozenset(marks), fresh=at, total=total, slices=slices)


def _again(
    shares: Shares, at: str, value: Fact, heard: dict[tuple[int, ...], tuple[int, ...]]
) -> set[Waypoint]:
    """Mark a sum of equal numbers, and one over the batch of what has a sum over the batch as a term."""
    across = any(len({shares.of_device[d] for d in group}) > 1 for group in heard.values())
    if value.total and across:
        return {Waypoint("again", at, str(max(map(len, heard.values()))))}
    repeated = _repeated(value.same, heard)
    if not repeated:
        return set()
    # Devices with the same rows may be meant to add equal numbers: a sum over another axis of the mesh is its
    # own transpose, and the factor is in the loss.
    return {Waypoint("again" if value.state == Dependence.COMPLETE else "copies", at, str(repeated))}


def state_of_sum(
    shares: Shares, value: Fact, heard: dict[tuple[int, ...], tuple[int, ...]], rows: tuple[int, ...]
) -> tuple[Dependence, str]:
    """Return how a sum over groups depends on the batch, and why nothing is proven."""
    if value.state in (Dependence.FREE, Dependence.COMPLETE, Dependence.UNKNOWN):
        return value.state, ""
    forms, several = numbers(value.form), False
    for group in heard.values():
        terms: dict[int, list[int]] = {}
        for d in group:
            terms.setdefault(value.rows[d], []).append(forms[d])
        terms.pop(0, None)
        union = 0
        for share in terms:
            if union & share:
                return Dependence.UNKNOWN, "some rows are in more than one term of this sum"
            union |= share
        kinds = [tuple(sorted(f)) for f in terms.values()]
        if len(set(kinds)) > 1:
            return (
                Dependence.UNKNOWN,
                "the devices add different functions of their rows, such as other weights",
            )
        if (
            any(share.bit_count() > 1 and len(set(f)) > 1 for share, f in terms.items())
            and value.state == Dependence.LOCAL
        ):
            return Dependence.UNKNOWN, "each device adds another function of the same rows"
        several = several or len(terms) > 1
    if not several:
        return value.state, ""
    return (Dependence.COMPLETE if all(r == shares.everything for r in rows) else Dependence.PARTIAL), ""


def _repeated(same: Labels, heard: dict[tuple[int, ...], tuple[int, ...]]) -> int:
    """Return how many devices add one and the same number, if several do."""
    numbered = numbers(same)
    most = [max(Counter(numbered[d] for d in group).values()) for group in heard.values() if group]
    return max((n for n in most if n > 1), default=0)


def _passed_on(shares: Shares, at: str, value: Fact, groups: Groups) -> set[Waypoint]:
    """Mark a complete sum that devices of a group with different rows hold: it may be added to itself."""
    if value.state != Dependence.COMPLETE or not value.total:
        return set()
    labels = numbers(value.same)
    holders: dict[tuple[int, int], set[int]] = {}
    for number, group in enumerate(groups):
        for device in group:
            if device not in value.zeros:
                holders.setdefault((number, labels[device]), set()).add(shares.of_device[device])
    return {Waypoint("passed", at)} if any(len(x) > 1 for x in holders.values()) else set()


def gathered(
    shares: Shares, at: str, value: Fact, groups: Groups, placed: bool = False, single: bool = False
) -> Fact:
    """An all-gather; an all-to-all if the result depends on the position in the group.

    `single`: each device has one entry, such as a layer of many, which may be normalised by itself.
    """
    same = _labels(groups, value.same, ordered=True, placed=placed)
    form = _labels(groups, value.form, ordered=True, placed=placed)
    rows = _rows(shares, groups, value.rows)
    state, marks = value.state, set(value.marks)
    if state == Dependence.PARTIAL and rows != value.rows:
        state = Dependence.UNKNOWN
        marks.add(Waypoint("unknown", at, "sums over parts of the devices are collected"))
    marks |= _passed_on(shares, at, value, groups)
    if value.state == Dependence.COMPLETE and not placed and not single:
        marks |= _put_together(at, value, groups)
    if rows != value.rows and not placed:
        marks.add(Waypoint("gathered", at, "batch" if value.batch else ""))
    if not placed and not collected_in_order(value.slices, groups):
        marks.add(Waypoint("order", at))
    return Fact(same, form, rows, state, frozenset(marks), slices=equal_in(value.slices, groups))


def _put_together(at: str, value: Fact, groups: Groups) -> set[Waypoint]:
    """Mark slices that the batch changes alike, or that are scaled by a number of each."""
    kinds = set()
    same, influence, scalars = (numbers(x or UNIFORM) for x in (value.same, value.influence, value.scalars))
    for group in groups:
        if influence and len({influence[d] for d in group}) < len({(influence[d], same[d]) for d in group}):
            kinds.add("alike")
        if scalars and len({scalars[d] for d in group}) > 1:
            kinds.add("scaled")
    return {Waypoint("slices", at, kind) for kind in kinds}


def scattered(shares: Shares, value: Fact, groups: Groups) -> Fact:
    """The slices of a sum that the devices keep: the second half of a reduce-scatter."""
    positions = _spread(groups, shares.size, lambda _, i: i)
    slices = cut_again(value.slices, numbered(positions, 1))  # type: ignore[arg-type]
    return dataclasses.replace(cut(value, labels_of(positions)), slices=slices)


def cut(value: Fact, positions: Labels) -> Fact:
    same, form = join(value.same, positions), join(value.form, positions)
    return dataclasses.replace(value, same=same, form=form, influence=None, scalars=UNIFORM)


def sources_of(attributes: str, size: int) -> list[int | None]:
    """Return the device from which each device receives in a collective-permute."""
    pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
    if not pairs:
        raise NoRuleError("source_target_pairs")
    sources: list[int | None] = [None] * size
    for source, target in re.findall(r"\{(\d+),(\d+)\}", pairs.group(1)):
        sources[int(target)] = int(source)
    return sources


def permuted(shares: Shares, at: str, value: Fact, attributes: str) -> Fact:
    """A collective-permute; a device that receives nothing holds zeros."""
    sources = sources_of(attributes, shares.size)
    same, form = (
        labels_of([-1 if s is None else numbered[s] for s in sources])
        for numbered in (numbers(value.same), numbers(value.form))
    )
    rows = shares.interned(0 if s is None else value.rows[s] for s in sources)
    zeros = frozenset(d for d, s in enumerate(sources) if s is None or s in value.zeros)
    marks = value.marks | _passed_on(shares, at, value, (tuple(range(shares.size)),))
    if value.state == Dependence.COMPLETE and value.total:
        marks |= {Waypoint("moved", at)}
    # Sums move before they are complete, and weights, in rings whose turns have slices of their own.
    moved = value.slices if value.state == Dependence.COMPLETE else ()
    slices = frozenset(tuple(-2 - d if s is None else x[s] for d, s in enumerate(sources)) for x in moved)
    return Fact(same, form, rows, value.state, marks, zeros=zeros, total=value.total, slices=slices)
