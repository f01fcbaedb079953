"""Fusion: layers that are one here and several there: fused projections, sharded tables, scanned blocks.

Pairing pairs a torch layer with a Flax layer. So `split`, `concatenated` and `stacked` are not its business:
before it, what they name is replaced by what the other side has (`view`), and afterwards the parts that were
found are put together to parts of the arrays that are really there (`PairingView.links`).

    torch qkv.weight  ──►  qkv[0].weight, qkv[1].weight, qkv[2].weight  ──►  pairing
    torch gate.weight, up.weight  ──►  gate+up.weight                   ──►  pairing
    Flax  layers.fc.kernel (L, I, O)  ──►  layers.0.fc.kernel (I, O), layers.1.fc.kernel, ...  ──►  pairing
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..._rulebook import Part
from ..._typing import Shape
from .cuts import Cut, Fusion, joined
from .mapping import Concatenated, Entries, Split, Stacked, Target, path_of
from .names import unwrapped
from .pairing import Link, Links, leaf_part
from .paths import inside, join, last, owner
from .patterns import Key, expanded
from .source import Source
from .tree import Outline, Tree
from .unstacked import unstacked


class PairingView:
    """What pairing sees of two models.

    Attributes:
      tree, source, entries: for `pair`.
      torch, flax: what was replaced on either side.
      faults: sentences about entries that cannot be done.
    """

    def __init__(self, here: Tree, there: Source, mapping: Entries):
        self.here, self.there = here, there
        self.tree: Outline = here
        self.entries: dict[str, Target] = {}
        self.torch: list[Fusion] = []
        self.flax: list[Fusion] = []
        self.faults: list[str] = []
        self._bare = unwrapped(there.tensors, there.kinds)
        self._torch_paths: dict[str, str] = {}
        self._flax_paths: dict[str, str] = {}
        self._kinds, self._modules = dict(there.kinds), dict(there.modules)
        names = [*self._bare.values(), *self._bare]
        entries = list(expanded(mapping, names, [*here.names, *here.leaves]))
        # Flax first: how long torch's pieces are is read off the layers that they become.
        for key, place in entries:
            if isinstance(place, Stacked):
                self._stack(key, place)
        for key, place in entries:
            if isinstance(place, Split):
                self._split(key, place)
            elif isinstance(place, Concatenated):
                self._concatenate(key, place)
            elif isinstance(key, str) and not isinstance(place, Stacked):
                self.entries[key] = place
            elif not isinstance(place, Stacked):
                self.faults.append(f"mapping: {key!r}: several names become one by concatenated or stacked")
        self.source = self._seen_source()

    # ------------------------------------------------------------------------------------- before

    def _stack(self, key: Key, place: Stacked) -> None:
        path = self.tree.real_path(place.path)
        try:
            self.tree, fusions, paths = unstacked(self.tree, path, place.axis)
        except ValueError as error:
            self.faults.append(f"mapping: {key!r}: {place!r}: {error}")
            return
        self.flax += fusions
        self._flax_paths |= paths
        if isinstance(key, str):
            self.entries[key] = place.path
        else:
            self.entries |= {each: join(path, str(i)) for i, each in enumerate(key)}

    def _split(self, key: Key, place: Split) -> None:
        if not isinstance(key, str):
            self.faults.append(f"mapping: {key!r}: split is of one torch name; concatenated is of several")
            return
        found = self._below(key)
        if not found:
            self.faults.append(f"mapping: torch has no {key!r}")
        for raw, rest in found.items():
            seen = piece_names(raw.removesuffix(rest).rstrip(".") if rest else raw, rest, len(place.targets))
            sizes = place.sizes or self._sizes(self.there.shapes[raw], place, rest or last(seen[0]))
            self._add(Fusion((raw,), seen, Cut(place.axis, sizes, place.groups), True), key)
            for i, each in enumerate(place.targets):
                self._name_path(seen[i], raw, rest)
                self.entries[seen[i] if not rest else seen[i].removesuffix("." + rest)] = each

    def _concatenate(self, key: Key, place: Concatenated) -> None:
        if isinstance(key, str):
            self.faults.append(f"mapping: {key!r}: concatenated is of several torch names; write a tuple")
            return
        below = [{rest: raw for raw, rest in self._below(each).items()} for each in key]
        absent = [each for each, found in zip(key, below, strict=True) if not found]
        if absent:
            self.faults.append(f"mapping: torch has no {', '.join(map(repr, absent))}")
        for rest in below[0]:
            if not all(rest in found for found in below):
                continue  # left over, and said so
            real = tuple(found[rest] for found in below)
            seen = whole_name([raw.removesuffix(rest).rstrip(".") if rest else raw for raw in real], rest)
            shapes = [self.there.shapes[raw] for raw in real]
            axis = place.axis
            if not all(-len(shape) <= axis < len(shape) for shape in shapes):
                self.faults.append(
                    f"mapping: {', '.join(real)} {shapes} have no axis {axis} to be joined along"
                )
                continue
            sizes = tuple(shape[axis] for shape in shapes)
            if place.sizes and place.sizes != sizes:
                self.faults.append(f"mapping: {', '.join(real)} are {sizes} long, and not {place.sizes}")
            self._add(Fusion(real, (seen,), Cut(axis, sizes, place.groups), False), key[0])
            self._name_path(seen, real[0], rest)
            self.entries[seen if not rest else seen.removesuffix("." + rest)] = place.target

    def _below(self, key: str) -> dict[str, str]:
        """torch's names at or below a key, which may have wrappers' words, each with its rest."""
        found = {}
        for raw in self.there.tensors:
            bare = self._bare[raw]
            rests = [rest for rest in (inside(bare, key), inside(raw, key)) if rest is not None]
            if rests and self.there.shapes[raw]:
                found[raw] = rests[0]
        return found

    def _sizes(self, shape: Shape, place: Split, rest: str) -> tuple[int, ...]:
        """As the Flax layers have them; equal where they have no rule."""
        count = len(place.targets)
        try:
            wanted = [self._wanted(each, rest) for each in place.targets]
        except ValueError:
            wanted = [None]  # leaves that are not as the layer's own class makes them
        axis = place.axis
        shapes_of = [each for each in wanted if each is not None and -len(each) <= axis < len(each)]
        # The other way around for a weight (in, out), as transformers' Conv1D has it.
        for sizes in ([s[axis] for s in shapes_of], [s[::-1][axis] for s in shapes_of]):
            if len(sizes) == count and sum(sizes) == shape[axis]:
                return tuple(sizes)
        return (shape[axis] // count if -len(shape) <= axis < len(shape) else 0,) * count

    def _wanted(self, place: Target, rest: str) -> Shape | None:
        """The shape that torch would have of what a Flax place holds under a name."""
        path = path_of(place)
        if path is None:
            return None
        real = self.tree.real_path(path)
        if real in self.tree.leaves:
            part = leaf_part(self.tree, real, rest, place)
            if part is None:
                return None
            return part.back([_empty(self.tree.leaves[real].shape)])[0].shape
        layer = self.tree.real_path(join(real, owner(rest)))
        rule = self.tree.rule(layer)
        shapes = {n: leaf.shape for p, leaf in self.tree.leaves.items() if (n := inside(p, layer) or "")}
        return rule.torch_shapes(shapes).get(last(rest)) if rule else None

    def _add(self, fusion: Fusion, key: str) -> None:
        whole, shapes = (fusion.real if fusion.splits else fusion.seen)[0], self.there.shapes
        if fusion.splits:
            assert isinstance(fusion.cut, Cut)
            fault = fusion.cut.fault(shapes[whole])
            if fault:
                self.faults.append(f"mapping: {key!r}: {whole} {shapes[whole]} cannot be split: {fault}")
                return
        else:
            try:
                fusion.to_seen({name: _empty(shapes[name]) for name in fusion.real})
            except ValueError as error:
                self.faults.append(f"mapping: {', '.join(fusion.real)} cannot be joined: {error}")
                return
        self.torch.append(fusion)

    def _name_path(self, seen: str, raw: str, rest: str) -> None:
        """The classes of modules under the name that pairing sees, and the way back to the real one."""
        ours, theirs = (name.removesuffix("." + rest) if rest else owner(name) for name in (seen, raw))
        self._torch_paths[ours] = theirs
        if last(raw).startswith("in_proj_"):
            return  # not a module of its own, and MultiheadAttention's class says nothing of a piece
        for path, kinds in self.there.kinds.items():
            below = inside(path, theirs)
            if below is not None:
                self._kinds[join(ours, below)] = kinds
                self._modules[join(ours, below)] = self.there.modules[path]

    def _seen_source(self) -> Source:
        if not self.torch:
            return self.there
        by_first = {fusion.real[0]: fusion for fusion in self.torch}
        used = {name for fusion in self.torch for name in fusion.real}
        tensors: dict[str, object] = {}
        for name, tensor in self.there.tensors.items():
            if name in by_first:
                fusion = by_first[name]
                empty = {real: _empty(self.there.shapes[real]) for real in fusion.real}
                tensors |= {seen: _empty(x.shape) for seen, x in fusion.to_seen(empty).items()}
            elif name not in used:
                tensors[name] = tensor
        return dataclasses.replace(
            self.there,
            tensors=tensors,
            kinds=self._kinds,
            modules=self._modules,
            tied=tuple(self._ties(tensors)),
        )

    def _ties(self, tensors: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
        """Groups of names that are one tensor, or the same pieces of one."""
        first = {name: group[0] for group in self.there.tied for name in group}
        groups: dict[object, list[str]] = {}
        for fusion in self.torch:
            for i, name in enumerate(fusion.seen):
                same = (i, fusion.cut, tuple(first.get(real, real) for real in fusion.real))
                groups.setdefault(same, []).append(name)
        seen = {name for fusion in self.torch for name in fusion.seen}
        for name in tensors.keys() - seen:
            groups.setdefault(first.get(name, name), []).append(name)
        order = {name: i for i, name in enumerate(tensors)}
        return (tuple(sorted(group, key=order.__getitem__)) for group in groups.values() if len(group) > 1)

    # -------------------------------------------------------------------------------------- after

    def seen_leaves(self, leaves: Iterable[str]) -> set[str]:
        """What pairing sees of these leaves."""
        seen = {fusion.real[0]: fusion.seen for fusion in self.flax}
        return {name for leaf in leaves for name in seen.get(leaf, (leaf,))}

    def links(self, found: Links) -> Links:
        """The links between what is really there."""
        if not self.torch and not self.flax:
            return found
        joint = {id(part): new for group, new in self._joined(found.parts) for part in group}
        layers: dict[str, Link] = {}
        done: set[int] = set()
        for link in found.layers:
            parts = []
            for part in link.parts:
                new = joint.get(id(part), part)
                if id(new) not in done:
                    parts.append(new)
                    done.add(id(new))
            real = self._real(link.flax, self._flax_paths), self._real(link.torch, self._torch_paths)
            # Nobody can be given one layer's inputs in place of several layers': they are not replayed.
            fused = real != (link.flax, link.torch) or any(id(part) in joint for part in link.parts)
            known = layers.get(real[0]) or Link(real[1], real[0], None if fused else link.rule)
            layers[real[0]] = dataclasses.replace(known, parts=(*known.parts, *parts))
        ties = {name: tuple(o for o in group if o != name) for group in self.there.tied for name in group}
        repeats = tuple(new for _, new in self._joined(found.repeats))
        untouched = tuple(p for p in found.repeats if not self._fusions([p]))
        return dataclasses.replace(
            found,
            layers=tuple(layers.values()),
            leaves=self.here.leaves,
            repeats=(*untouched, *repeats),
            tied=ties,
        )

    def _joined(self, parts: Iterable[Part]) -> Iterator[tuple[list[Part], Part]]:
        """Groups of parts that share a fusion, each with the one part that it really is."""
        groups: list[tuple[list[Part], set[str]]] = []
        for part in parts:
            names = {name for fusion in self._fusions([part]) for name in fusion.seen}
            if not names:
                continue
            meeting = [group for group in groups if group[1] & names]
            groups = [group for group in groups if not group[1] & names]
            members = [member for group in meeting for member in group[0]]
            groups.append(([*members, part], names.union(*(group[1] for group in meeting))))
        for members, _ in groups:
            torch, flax = (
                [f for f in self._fusions(members) if f in side] for side in (self.torch, self.flax)
            )
            yield members, joined(members, torch, flax)

    def _fusions(self, parts: Sequence[Part]) -> list[Fusion]:
        names = {name for part in parts for name in (*part.torch, *part.flax)}
        return [fusion for fusion in (*self.torch, *self.flax) if names & set(fusion.seen)]

    @staticmethod
    def _real(path: str, paths: Mapping[str, str]) -> str:
        for seen, real in paths.items():
            rest = inside(path, seen)
            if rest is not None:
                return join(real, rest)
        return path


def piece_names(path: str, rest: str, count: int) -> tuple[str, ...]:
    """What the pieces of a torch array are called.

    Without `rest` the path is the array's own: `qkv.weight` becomes `qkv[0].weight`, whose layout is that of
    a weight, and MultiheadAttention's `in_proj_weight` becomes `in_proj[0].weight`.
    """
    if not rest:
        path, rest = owner(path), last(path)
        if rest.startswith("in_proj_"):
            path, rest = join(path, "in_proj"), rest.removeprefix("in_proj_")
    return tuple(f"{path}[{i}].{rest}" for i in range(count))


def whole_name(paths: Sequence[str], rest: str) -> str:
    """What several torch arrays (or layers) are called as one: `mlp.gate+up.weight`."""
    if not rest and len({last(path) for path in paths}) == 1 and all(map(owner, paths)):
        rest, paths = last(paths[0]), [owner(path) for path in paths]
    return join(owner(paths[0]), "+".join(last(path) for path in paths), rest)


def _empty(shape: Shape) -> np.ndarray:
    return np.broadcast_to(np.zeros((), np.bool_), shape)
