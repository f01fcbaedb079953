"""Fusion: layers that are one in torch and several in Flax or vice versa, such as fused projections.

Before `pairing`, which pairs single layers, their arrays are replaced by the other side's. Afterwards the
parts are joined to parts between the models' own arrays.

    torch qkv.weight  ──►  qkv[0].weight, qkv[1].weight, qkv[2].weight  ──►  pairing
    torch gate.weight, up.weight  ──►  gate+up.weight                   ──►  pairing
    Flax  layers.fc.kernel (L, I, O)  ──►  layers.0.fc.kernel (I, O), layers.1.fc.kernel, ...  ──►  pairing
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..._rulebook import Part
from ..._typing import Shape
from .mapping import Concatenated, Entries, Split, Stacked, Target, path_of
from .pairing import Link, Links, leaf_part
from .reversible import Inverted, Move, Moves, SplitAxis, empty, joined
from .source import WeightSource, unwrapped
from .tree import Outline, inside, join, last, owner
from .unstacked import Key, expanded, unstacked


class PairingView:
    """Two models as `pairing` sees them, with fusions and stacks resolved.

    `torch` moves torch's arrays to the paired ones, `flax` the paired leaves to the Flax model's.
    """

    def __init__(self, tree: Outline, source: WeightSource, mapping: Entries):
        self.model, self.original = tree, source
        self.tree: Outline = tree
        self.entries: dict[str, Target] = {}
        self.torch: list[Move] = []
        self.flax: list[Move] = []
        self.faults: list[str] = []
        self._bare = unwrapped(source.tensors, source.kinds)
        self._torch_paths: dict[str, str] = {}
        self._flax_paths: dict[str, str] = {}
        self._kinds, self._modules = dict(source.kinds), dict(source.modules)
        names = [*self._bare.values(), *self._bare]
        entries = list(expanded(mapping, names, [*tree.names, *tree.leaves]))
        # Stacks first: the sizes of torch's pieces are derived from the unstacked Flax layers.
        for key, target in entries:
            if isinstance(target, Stacked):
                self._stack(key, target)
        for key, target in entries:
            if isinstance(target, Split):
                self._split(key, target)
            elif isinstance(target, Concatenated):
                self._concatenate(key, target)
            elif isinstance(key, str) and not isinstance(target, Stacked):
                self.entries[key] = target
            elif not isinstance(target, Stacked):
                self.faults.append(f"mapping: {key!r}: several names become one by concatenated or stacked")
        self.source = self._paired_source()

    # ------------------------------------------------------------------------------ before pairing

    def _stack(self, key: Key, target: Stacked) -> None:
        path = self.tree.real_path(target.path)
        try:
            self.tree, moves, paths = unstacked(self.tree, path, target.axis)
        except ValueError as error:
            self.faults.append(f"mapping: {key!r}: {target!r}: {error}")
            return
        self.flax += moves
        self._flax_paths |= paths
        if isinstance(key, str):
            self.entries[key] = target.path
        else:
            self.entries |= {layer: join(path, str(i)) for i, layer in enumerate(key)}

    def _split(self, key: Key, target: Split) -> None:
        if not isinstance(key, str):
            self.faults.append(f"mapping: {key!r}: split is of one torch name; concatenated is of several")
            return
        suffixes = self._suffixes(key)
        if not suffixes:
            self.faults.append(f"mapping: torch has no {key!r}")
        for raw, suffix in suffixes.items():
            pieces = piece_names(_without(raw, suffix), suffix, len(target.targets))
            sizes = target.sizes or self._sizes(self.original.shapes[raw], target, suffix or last(pieces[0]))
            self._add(Move((raw,), pieces, SplitAxis(target.axis, sizes, target.groups)), key)
            for i, piece_target in enumerate(target.targets):
                self._name_path(pieces[i], raw, suffix)
                self.entries[pieces[i].removesuffix("." + suffix) if suffix else pieces[i]] = piece_target

    def _concatenate(self, key: Key, target: Concatenated) -> None:
        if isinstance(key, str):
            self.faults.append(f"mapping: {key!r}: concatenated is of several torch names; write a tuple")
            return
        raw_names = [{suffix: raw for raw, suffix in self._suffixes(name).items()} for name in key]
        absent = [name for name, by_suffix in zip(key, raw_names, strict=True) if not by_suffix]
        if absent:
            self.faults.append(f"mapping: torch has no {', '.join(map(repr, absent))}")
        for suffix in raw_names[0]:
            if not all(suffix in by_suffix for by_suffix in raw_names):
                continue  # remains unpaired, which is reported
            pieces = tuple(by_suffix[suffix] for by_suffix in raw_names)
            name = whole_name([_without(raw, suffix) for raw in pieces], suffix)
            shapes = [self.original.shapes[raw] for raw in pieces]
            axis = target.axis
            if not all(-len(shape) <= axis < len(shape) for shape in shapes):
                self.faults.append(
                    f"mapping: {', '.join(pieces)} {shapes} have no axis {axis} to be joined along"
                )
                continue
            sizes = tuple(shape[axis] for shape in shapes)
            if target.sizes and target.sizes != sizes:
                self.faults.append(f"mapping: {', '.join(pieces)} are {sizes} long, and not {target.sizes}")
            self._add(Move(pieces, (name,), Inverted(SplitAxis(axis, sizes, target.groups))), key[0])
            self._name_path(name, pieces[0], suffix)
            self.entries[name.removesuffix("." + suffix) if suffix else name] = target.target

    def _suffixes(self, key: str) -> dict[str, str]:
        """Return relative paths by the torch names under a key, given with or without wrappers."""
        suffixes = {}
        for raw in self.original.tensors:
            relative = [s for s in (inside(self._bare[raw], key), inside(raw, key)) if s is not None]
            if relative and self.original.shapes[raw]:
                suffixes[raw] = relative[0]
        return suffixes

    def _sizes(self, shape: Shape, target: Split, suffix: str) -> tuple[int, ...]:
        """Return the pieces' lengths: the Flax layers', or equal ones if the layers have no rule."""
        count = len(target.targets)
        try:
            expected = [self._torch_shape(piece_target, suffix) for piece_target in target.targets]
        except ValueError:
            expected = [None]  # the leaves' shapes differ from the layer class's own
        axis = target.axis
        shapes = [s for s in expected if s is not None and -len(s) <= axis < len(s)]
        # Reversed for an (in, out) weight such as transformers' Conv1D.
        for sizes in ([s[axis] for s in shapes], [s[::-1][axis] for s in shapes]):
            if len(sizes) == count and sum(sizes) == shape[axis]:
                return tuple(sizes)
        return (shape[axis] // count if -len(shape) <= axis < len(shape) else 0,) * count

    def _torch_shape(self, target: Target, suffix: str) -> Shape | None:
        path = path_of(target)
        if path is None:
            return None
        real = self.tree.real_path(path)
        if real in self.tree.leaves:
            part = leaf_part(self.tree, real, suffix, target)
            return part.back([empty(self.tree.leaves[real].shape)])[0].shape if part else None
        layer = self.tree.real_path(join(real, owner(suffix)))
        rule = self.tree.rule(layer)
        shapes = {n: leaf.shape for p, leaf in self.tree.leaves.items() if (n := inside(p, layer) or "")}
        return rule.torch_shapes(shapes).get(last(suffix)) if rule else None

    def _add(self, move: Move, key: str) -> None:
        shapes = self.original.shapes
        if isinstance(move.rearrangement, SplitAxis):
            (name,) = move.torch
            if fault := move.rearrangement.fault(shapes[name]):
                self.faults.append(f"mapping: {key!r}: {name} {shapes[name]} cannot be split: {fault}")
                return
        try:
            Moves(([move],)).forward_shapes({name: empty(shapes[name]) for name in move.torch})
        except ValueError as error:
            self.faults.append(f"mapping: {', '.join(move.torch)} cannot be joined: {error}")
            return
        self.torch.append(move)

    def _name_path(self, name: str, raw: str, suffix: str) -> None:
        path, torch_path = (n.removesuffix("." + suffix) if suffix else owner(n) for n in (name, raw))
        self._torch_paths[path] = torch_path
        if last(raw).startswith("in_proj_"):
            return  # an array of a MultiheadAttention, whose class does not describe a piece
        for module_path, kinds in self.original.kinds.items():
            relative = inside(module_path, torch_path)
            if relative is not None:
                self._kinds[join(path, relative)] = kinds
                self._modules[join(path, relative)] = self.original.modules[module_path]

    def _paired_source(self) -> WeightSource:
        if not self.torch:
            return self.original
        originals = self.original.tensors
        shapes = {name: empty(shape) for name, shape in self.original.shapes.items()}
        moved = Moves((self.torch,)).forward_shapes(shapes)
        tensors = {name: originals.get(name, array) for name, array in moved.items()}
        ties = tuple(self._ties(tensors))
        return dataclasses.replace(
            self.original, tensors=tensors, kinds=self._kinds, modules=self._modules, tied=ties
        )

    def _ties(self, tensors: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
        # Pieces are equal if the same rearrangement applies to the same tensors, whatever their names: a
        # table that is tied to the output layer and sharded in both places has tied shards.
        first = {name: group[0] for group in self.original.tied for name in group}
        groups: dict[object, list[str]] = {}
        for move in self.torch:
            for i, name in enumerate(move.flax):
                identity = (i, move.rearrangement, tuple(first.get(raw, raw) for raw in move.torch))
                groups.setdefault(identity, []).append(name)
        for name in tensors.keys() - {name for move in self.torch for name in move.flax}:
            groups.setdefault(first.get(name, name), []).append(name)
        order = {name: i for i, name in enumerate(tensors)}
        return (tuple(sorted(group, key=order.__getitem__)) for group in groups.values() if len(group) > 1)

    # ------------------------------------------------------------------------------- after pairing

    def paired_leaves(self, leaves: Iterable[str]) -> set[str]:
        unstacked_leaves = {move.flax[0]: move.torch for move in self.flax}
        return {name for leaf in leaves for name in unstacked_leaves.get(leaf, (leaf,))}

    def links(self, paired: Links) -> Links:
        if not self.torch and not self.flax:
            return paired
        # By identity: equal parts of different layers are separate conversions.
        joint = {id(part): new for group, new in self._joined(paired.parts) for part in group}
        layers: dict[str, Link] = {}
        done: set[int] = set()
        for link in paired.layers:
            parts = []
            for part in link.parts:
                new = joint.get(id(part), part)
                if id(new) not in done:
                    parts.append(new)
                    done.add(id(new))
            real = _real(link.flax, self._flax_paths), _real(link.torch, self._torch_paths)
            # No rule for fused layers: one layer cannot be replayed with several layers' inputs.
            fused = real != (link.flax, link.torch) or any(id(part) in joint for part in link.parts)
            merged = layers.get(real[0]) or Link(real[1], real[0], None if fused else link.rule)
            layers[real[0]] = dataclasses.replace(merged, parts=(*merged.parts, *parts))
        ties = {name: tuple(o for o in group if o != name) for group in self.original.tied for name in group}
        repeats = tuple(new for _, new in self._joined(paired.repeats))
        untouched = tuple(part for part in paired.repeats if not self._names_of_moves(part))
        return dataclasses.replace(
            paired,
            layers=tuple(layers.values()),
            leaves=self.model.leaves,
            repeats=(*untouched, *repeats),
            tied=ties,
        )

    def _joined(self, parts: Iterable[Part]) -> Iterator[tuple[list[Part], Part]]:
        """Yield groups of parts that share a move, each with the part that they are joined to."""
        # Union by shared names: a fused qkv that is also stacked over layers joins all parts of all layers.
        groups: list[tuple[list[Part], set[str]]] = []
        for part in parts:
            names = self._names_of_moves(part)
            if not names:
                continue
            meeting = [group for group in groups if group[1] & names]
            groups = [group for group in groups if not group[1] & names]
            members = [member for group in meeting for member in group[0]]
            groups.append(([*members, part], names.union(*(group[1] for group in meeting))))
        for members, names in groups:
            torch = [move for move in self.torch if names & set(move.flax)]
            flax = [move for move in self.flax if names & set(move.torch)]
            yield members, joined(members, torch, flax)

    def _names_of_moves(self, part: Part) -> set[str]:
        pairs = [(part.torch, move.flax) for move in self.torch]
        pairs += [(part.flax, move.torch) for move in self.flax]
        return {name for own_names, names in pairs if set(own_names) & set(names) for name in names}


def _real(path: str, paths: Mapping[str, str]) -> str:
    for paired_path, real in paths.items():
        suffix = inside(path, paired_path)
        if suffix is not None:
            return join(real, suffix)
    return path


def _without(raw: str, suffix: str) -> str:
    return raw.removesuffix(suffix).rstrip(".") if suffix else raw


def piece_names(path: str, suffix: str, count: int) -> tuple[str, ...]:
    """`qkv[0].weight` for `qkv.weight`."""
    # The last part stays `weight`, so that a piece is laid out as a weight. Without `suffix`, the path is the
    # array's own, such as MultiheadAttention's `in_proj_weight`, which becomes `in_proj[0].weight`.
    if not suffix:
        path, suffix = owner(path), last(path)
        if suffix.startswith("in_proj_"):
            path, suffix = join(path, "in_proj"), suffix.removeprefix("in_proj_")
    return tuple(f"{path}[{i}].{suffix}" for i in range(count))


def whole_name(paths: Sequence[str], suffix: str) -> str:
    """`mlp.gate+up.weight`."""
    if not suffix and len({last(path) for path in paths}) == 1 and all(map(owner, paths)):
        suffix, paths = last(paths[0]), [owner(path) for path in paths]
    return join(owner(paths[0]), "+".join(last(path) for path in paths), suffix)
