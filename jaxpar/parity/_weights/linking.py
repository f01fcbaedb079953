"""link: matching two models by name. Every tensor and every leaf is used exactly once, or it raises.

Layers come first, outer ones before what is in them: where a torch path and a Flax path are the same
(or the mapping says so) and the rulebook has a row for the layer, its parts claim torch names and
Flax leaves. What is left are arrays of the user's own modules, which are matched by their full name
and taken as they are. Shapes never decide anything; they only have to fit afterwards.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..._rulebook import Part, Rule, rule_for, same
from .links import Link, Links
from .mapping import Flattened, Transposed
from .names import Names
from .source import Source
from .tree import Tree, join, owner, real_path, torch_like

DEEP = re.compile(r"_l\d+(_reverse)?$")


@dataclasses.dataclass
class Linking:
    """What is matched so far.

    Attributes:
      ignored: leaves that nothing is to be loaded into.
      faults: sentences about pairs that belong together and do not fit.
    """

    tree: Tree
    source: Source
    names: Names
    ignored: frozenset[str] = frozenset()
    parts: dict[str, list[Part]] = dataclasses.field(default_factory=dict)
    partners: dict[str, str] = dataclasses.field(default_factory=dict)
    rules: dict[str, Rule | None] = dataclasses.field(default_factory=dict)
    repeats: list[Part] = dataclasses.field(default_factory=list)
    surplus: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    faults: list[str] = dataclasses.field(default_factory=list)
    tensors: set[str] = dataclasses.field(default_factory=set)
    leaves: set[str] = dataclasses.field(default_factory=set)

    def links(self) -> Links:
        ties = {name: tuple(o for o in group if o != name) for group in self.source.tied for name in group}
        order = {path: i for i, path in enumerate(self.tree.layers)}
        layers = [
            Link(self.names.raw.get(bare, bare), path, self.rules.get(path), tuple(self.parts.get(path, ())))
            for path, bare in self.partners.items()
        ]
        return Links(
            tuple(sorted(layers, key=lambda link: order.get(link.flax, len(order)))),
            self.tree.leaves,
            tuple(self.repeats),
            ties,
            self.surplus,
        )

    def left_in_torch(self) -> list[str]:
        """Names that nothing has used. Of a tensor with several names one is enough."""
        used = {other for group in self.source.tied if self.tensors & set(group) for other in group}
        return [n for n in self.source.tensors if n not in self.tensors | used | self.surplus.keys()]

    def left_in_flax(self) -> list[str]:
        return [leaf for leaf in self.tree.leaves if leaf not in self.leaves | self.ignored]

    def claim(self, path: str, bare: str, rule: Rule | None, part: Part) -> None:
        """Takes a part with full names, unless its shapes do not fit or someone else has its leaves."""
        fault = misfit(part, self.source, self.tree)
        if fault:
            self.faults.append(fault)
        elif set(part.flax) & self.leaves:
            self._repeat(part)
        else:
            self.parts.setdefault(path, []).append(part)
            self.partners.setdefault(path, bare)
            self.rules[path] = rule
        self.tensors |= set(part.torch)
        self.leaves |= set(part.flax)

    def _repeat(self, part: Part) -> None:
        """Two torch tensors for one leaf: fine if torch shares them as well."""
        groups = [set(group) for group in self.source.tied]
        known = [p for parts in self.parts.values() for p in parts if set(p.flax) & set(part.flax)]
        if not known:
            return  # the first one did not fit, and that is said already
        first = known[0]
        if first.flax != part.flax:
            self.faults.append(
                f"{', '.join(part.torch)} and {', '.join(first.torch)} both make "
                f"{', '.join(sorted(set(part.flax) & set(first.flax)))}"
            )
            return
        shared = all(any({a, b} <= g for g in groups) for a, b in zip(part.torch, first.torch, strict=False))
        if self.source.shares and not shared:
            self.faults.append(
                f"{', '.join(part.torch)} and {', '.join(first.torch)} are two tensors in torch and one "
                f"variable in Flax ({', '.join(part.flax)}): torch would train them apart"
            )
        self.repeats.append(part)


def link(tree: Tree, source: Source, mapping: Mapping[str, Any], ignored: Iterable[str] = ()) -> Linking:
    """Everything that can be matched; what cannot is left in `left_in_torch` and `left_in_flax`."""
    names = Names(source, tree, mapping)
    linking = Linking(tree, source, names, frozenset(ignored))
    _pair_modules(linking)
    _link_stacks(linking)
    for path in tree.layers:
        for bare in names.leading_to(path):
            _link_layer(linking, path, bare)
    for leaf in [*tree.leaves, *tree.aliases]:
        if tree.aliases.get(leaf, leaf) not in linking.ignored:
            _link_leaf(linking, leaf)
    _check_ties(linking)
    return linking


def _pair_modules(linking: Linking) -> None:
    """Modules of the same name, whether they hold weights of their own or not."""
    for path, layer in linking.tree.layers.items():
        found = [bare for bare in linking.names.leading_to(path) if bare in linking.names.kinds]
        if found:
            linking.partners[path] = found[0]
            linking.rules[path] = row(linking.tree, path, layer)


def row(tree: Tree, path: str, layer: Any) -> Rule | None:
    """The rulebook's row of a layer."""
    return rule_for(layer, tree.own_shapes(path))


def _link_layer(linking: Linking, path: str, bare: str) -> None:
    rule = row(linking.tree, path, linking.tree.layers[path])
    if rule is None:
        return
    names = linking.names
    there = {
        name[len(bare) :].lstrip("."): names.raw[name]
        for name in names.below[bare]
        if names.raw[name] not in linking.tensors and names.follows(name, bare)
    }
    found = names.entry(bare)
    place = found[1] if found and found[0] == bare else None
    used = False
    for part in rule.parts_of_torch(there):
        if not _kind_fits(linking, bare, rule, part, there):
            continue
        full = absolute(part, there, path, linking)
        if full and (isinstance(place, Flattened) and part.torch == ("weight",)):
            full = _through(place, full)
        if full:
            linking.claim(path, bare, rule, full)
            used = True
    if used:
        linking.surplus |= {there[name]: value for name, value in rule.surplus.items() if name in there}


def _kind_fits(linking: Linking, bare: str, rule: Rule, part: Part, there: Mapping[str, str]) -> bool:
    """Whether torch's class, where it is known, lays this part out as the row says."""
    kinds = linking.names.kinds.get(bare)
    if part.plain or kinds is None or set(kinds) & set(rule.kinds):
        return True
    names = ", ".join(there[name] for name in part.torch)
    linking.faults.append(
        f"{names} belongs to torch's {kinds[0]}, which is no {rule.torch}, so how its axes lie is not known; "
        'say it in the mapping: {"' + there[part.torch[0]] + '": parity.transposed(path, axes)}'
    )
    linking.tensors |= {there[name] for name in part.torch}
    return False


def absolute(part: Part, there: Mapping[str, str], path: str, linking: Linking) -> Part | None:
    """The part with full names; None if the Flax layer has no such leaves, or they are ignored."""
    tree = linking.tree
    leaves = [tree.aliases.get(leaf, leaf) for leaf in (join(path, leaf) for leaf in part.flax)]
    if not all(leaf in tree.leaves for leaf in leaves) or linking.ignored & set(leaves):
        return None
    return dataclasses.replace(part, torch=tuple(there[name] for name in part.torch), flax=tuple(leaves))


def _through(place: Flattened | Transposed, part: Part) -> Part:
    """The part, with the mapping's own rearrangement on torch's side."""
    return dataclasses.replace(
        part,
        to_flax=lambda w: part.to_flax(place.to_flax(w)),
        to_torch=lambda k: tuple(place.to_torch(w) for w in part.to_torch(k)),
    )


def _link_leaf(linking: Linking, leaf: str) -> None:
    """One array by its full name."""
    names, tree = linking.names, linking.tree
    path, real = owner(leaf), tree.aliases.get(leaf, leaf)
    free = [
        n
        for n in names.leading_to(leaf)
        if n in names.bare.values() and names.raw[n] in linking.source.tensors
    ]
    for bare in free:
        raw = names.raw[bare]
        found = names.entry(bare)
        explicit = found is not None and found[0] == bare
        if raw in linking.tensors or (real in linking.leaves and not explicit and leaf == real):
            continue
        part = leaf_part(tree, leaf, bare, found[1] if found and explicit else None)
        if part is None:
            kind = row(tree, path, tree.layers.get(path))
            linking.faults.append(
                f"{leaf} lies as a {kind.torch if kind else 'layer'}'s weights do in Flax, and how torch's "
                f'{raw} lies is not known; say it: mapping={{"{raw}": parity.transposed("{leaf}", axes)}}'
            )
            linking.tensors.add(raw)
            linking.leaves.add(real)
        else:
            full = dataclasses.replace(part, torch=(raw,), flax=(real,))
            linking.claim(path, owner(bare), row(tree, path, tree.layers.get(path)), full)


def leaf_part(tree: Tree, leaf: str, bare: str, place: Any) -> Part | None:
    """How one array is laid out: as the mapping says, else as the layer's row, else as it is.

    None where the layer has a row, and the torch name is not the row's.
    """
    if isinstance(place, Transposed):
        return Part((bare,), (leaf,), lambda w: (place.to_flax(w),), lambda k: (place.to_torch(k),))
    rule = row(tree, owner(leaf), tree.layers.get(owner(leaf)))
    name = leaf.rpartition(".")[2]
    for part in rule.parts if rule else ():
        if part.flax == (name,) and len(part.torch) == 1:
            if f".{bare}".endswith("." + part.torch[0]) or part.plain:
                return _through(place, part) if isinstance(place, Flattened) else part
            return None
    return same(bare, leaf)


def _link_stacks(linking: Linking) -> None:
    """torch's nn.LSTM of several layers and directions: one module there, several in Flax."""
    names = linking.names
    for bare, below in names.below.items():
        found = names.entry(bare)
        place = found[1] if found and found[0] == bare else None
        own = [name for name in below if owner(name) == bare and DEEP.search(name)]
        paths = place if isinstance(place, (tuple, list)) else _list_of(linking, bare) if own else None
        if paths:
            _link_stack(linking, bare, own, paths)


def _list_of(linking: Linking, bare: str) -> list[str] | None:
    """The items of the list of layers that has the stack's own name."""
    target, tree = linking.names.target(bare)[0], linking.tree
    items = [
        path
        for path in tree.layers
        if path.rpartition(".")[2].isdigit() and torch_like(owner(tree.names[path])) == target
    ]
    return items if items and all(cells(tree, path) for path in items) else None


def cells(tree: Tree, path: str) -> list[tuple[str, Rule]]:
    """The recurrent cells at a path, in torch's order: both of a Bidirectional."""
    layer = tree.layers.get(path)
    halves = [half for half in ("forward_rnn", "backward_rnn") if hasattr(layer, half)]
    if halves:
        return [cell for half in halves for cell in cells(tree, join(path, half))]
    if hasattr(layer, "cell") and join(path, "cell") in tree.layers:
        return cells(tree, join(path, "cell"))
    rule = row(tree, path, layer)
    return [(path, rule)] if rule and rule.torch.endswith("Cell") else []


def _link_stack(linking: Linking, bare: str, own: Sequence[str], paths: Sequence[str]) -> None:
    both = any(name.endswith("_reverse") for name in own)
    paths = [real_path(linking.tree, path) for path in paths]
    there = {name[len(bare) :].lstrip("."): linking.names.raw[name] for name in own}
    units = [cell for path in paths for cell in cells(linking.tree, path)]
    for i, (path, rule) in enumerate(units):
        depth, reverse = (i // 2, i % 2 == 1) if both else (i, False)
        deep = rule.at_depth(depth, reverse)
        for part in deep.parts_of_torch(there):
            full = absolute(part, there, path, linking)
            if full:
                linking.claim(path, bare, deep, full)


def misfit(part: Part, source: Source, tree: Tree) -> str | None:
    """What is wrong with the shapes, if anything."""
    shapes = source.shapes
    dummies = [np.broadcast_to(np.zeros((), np.bool_), shapes[name]) for name in part.torch]
    said = ", ".join(f"{name} {shapes[name]}" for name in part.torch)
    wanted = ", ".join(f"{leaf} is {tree.leaves[leaf].shape}" for leaf in part.flax)
    try:
        made = [array.shape for array in part.to_flax(*dummies)]
    except (ValueError, IndexError):
        return f"{said} cannot become what Flax has: {wanted}"
    if made == [tree.leaves[leaf].shape for leaf in part.flax]:
        return None
    became = ", ".join(map(str, made))
    return f"{said} becomes {became} in Flax's layout, and {wanted}"


def _check_ties(linking: Linking) -> None:
    """One tensor in torch and two variables in Flax would be trained apart."""
    made = {name: part for parts in linking.parts.values() for part in parts for name in part.torch}
    for group in linking.source.tied:
        places = {made[name].flax for name in group if name in made}
        said = any(linking.names.entry(linking.names.bare[name]) for name in group)
        if len(places) > 1 and not said:
            flax = " and ".join(", ".join(leaves) for leaves in sorted(places))
            linking.faults.append(
                f"{' and '.join(group)} are one tensor in torch, and {flax} are several variables in Flax: "
                "training would part them. Share one nnx.Variable, or name both in the mapping"
            )
