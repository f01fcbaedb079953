"""Pair torch tensors with Flax leaves by name; the result is `Links`.

Layers are paired first, parents before children: the parts of a layer's rule claim torch names and Flax
leaves. The remaining arrays, of the user's own modules, are paired by their full names and converted
unchanged. Shapes never determine a pair: a model has many layers of equal shape, and two of them swapped
would load without an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from ..._rulebook import Part, Rule, same
from . import layouts, stacks
from .mapping import Flattened, Plain, Target, Transposed
from .reversible import Arrays, Reshape, preceded
from .source import Names, WeightSource
from .tree import LeafSpec, Outline, inside, join, last, owner


@dataclasses.dataclass(frozen=True)
class Link:
    """A torch layer and the corresponding Flax layer."""

    torch: str  # as in `named_modules()`
    flax: str
    rule: Rule | None  # None for containers and user-defined modules
    parts: tuple[Part, ...] = ()  # by full names, without its children's


@dataclasses.dataclass(frozen=True)
class Links:
    """The paired layers of two models, and the conversion of their arrays, by state_dict name or leaf path.

    Missing arrays are skipped, so gradients of the parameters alone, or the tensors of one layer, can be
    converted too.
    """

    layers: tuple[Link, ...]  # in the Flax model's order; containers before their children
    leaves: Mapping[str, LeafSpec]
    repeats: tuple[Part, ...] = ()  # their leaves are produced by an earlier part already (tied weights)
    tied: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    surplus: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # values for torch
    ignored: frozenset[str] = frozenset()
    ignored_torch: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()  # of a tree, in which nothing marks what is trained

    @property
    def parts(self) -> Iterator[Part]:
        return (part for link in self.layers for part in link.parts)

    def to_flax(self, tensors: Mapping[str, np.ndarray], gradient: bool = False) -> Arrays:
        """Convert torch arrays to Flax leaves, as views where no copy is needed.

        With `gradient`, a merged bias gets the gradient of one of torch's two biases instead of their sum.
        """
        converted: Arrays = {}
        for part in self.parts:
            names = [(name, *self.tied.get(name, ())) for name in part.torch]
            arrays = [next((tensors[n] for n in tied if n in tensors), None) for tied in names]
            # A part needs all of its tensors: query, key and value form a single kernel.
            if all(array is not None for array in arrays):
                converted.update(zip(part.flax, part.forth(arrays, gradient), strict=True))  # type: ignore[arg-type]
        return converted

    def to_torch(self, leaves: Mapping[str, np.ndarray], gradient: bool = False) -> Arrays:
        """Convert Flax leaves to torch arrays, with all names of tied tensors and without `surplus`."""
        converted: Arrays = {}
        for part in (*self.parts, *self.repeats):
            if leaves.keys() >= set(part.flax):
                arrays = part.back((leaves[leaf] for leaf in part.flax), gradient)
                converted.update(zip(part.torch, arrays, strict=True))
        # torch's state_dict lists a tied tensor under each of its names, and load_state_dict(strict=True)
        # raises for a missing one.
        for name in list(converted):
            for other in self.tied.get(name, ()):
                converted.setdefault(other, converted[name])
        return converted

    def outermost(self, called: Collection[str] = ()) -> dict[str, Link]:
        """Return the outermost layers with a row in the rulebook, and others in `called`, by torch path."""
        links: dict[str, Link] = {}
        for link in self.layers:
            # A layer inside a known layer, as in attention, has no counterpart that could be called alone.
            is_nested = any(link.flax.startswith(f"{other.flax}.") for other in links.values())
            if link.rule and not is_nested:
                links[link.torch] = link
            elif link.flax in called:
                links.setdefault(link.torch, link)  # a layer's parameters come before its state
        return links

    def left_out(self) -> list[str]:
        flax = [leaf for leaf in self.leaves if leaf in self.ignored]
        both = ("torch's", self.ignored_torch), ("Flax's", flax)
        notes = [f"left out, and not compared: {side} {', '.join(names)}" for side, names in both if names]
        more = f" and {len(self.buffers) - 3} more" if len(self.buffers) > 3 else ""
        buffers = f"buffers, as they are in torch: {', '.join(self.buffers[:3])}{more}; do not train them"
        return [*notes, buffers] if self.buffers else notes

    def parameters(self, tensors: Mapping[str, np.ndarray]) -> Arrays:
        return {path: x for path, x in self.to_flax(tensors).items() if self.leaves[path].parameter}

    def gradients(self, tensors: Mapping[str, np.ndarray]) -> Arrays:
        """Convert gradients, except the zeros of weights that torch has frozen and Flax as constants."""
        frozen = {path for path, x in self.state(tensors).items() if not x.any()}
        return {path: x for path, x in self.to_flax(tensors, gradient=True).items() if path not in frozen}

    def state(self, tensors: Mapping[str, np.ndarray]) -> Arrays:
        return {path: x for path, x in self.to_flax(tensors).items() if not self.leaves[path].parameter}


@dataclasses.dataclass
class Pairing:
    """The state of pairing two models; `tensors` and `leaves` are the claimed ones."""

    tree: Outline
    source: WeightSource
    names: Names
    ignored: frozenset[str] = frozenset()  # leaves that keep their values
    layers: dict[str, Link] = dataclasses.field(default_factory=dict)  # by Flax path
    repeats: list[Part] = dataclasses.field(default_factory=list)
    surplus: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    faults: list[str] = dataclasses.field(default_factory=list)
    misfits: set[str] = dataclasses.field(default_factory=set)  # torch layers paired by name, of other shapes
    tensors: set[str] = dataclasses.field(default_factory=set)
    leaves: set[str] = dataclasses.field(default_factory=set)
    probed: dict[str, str | None] = dataclasses.field(default_factory=dict)  # results of `linear_layout`

    def links(self) -> Links:
        ties = {name: tuple(o for o in group if o != name) for group in self.source.tied for name in group}
        order = {path: i for i, path in enumerate(self.tree.layers)}
        layers = sorted(self.layers.values(), key=lambda link: order.get(link.flax, len(order)))
        return Links(tuple(layers), self.tree.leaves, tuple(self.repeats), ties, self.surplus)

    def left_in_torch(self) -> list[str]:
        # One name of a tied tensor is enough, because the Flax model may hold it once.
        used = {other for group in self.source.tied if self.tensors & set(group) for other in group}
        return [n for n in self.source.tensors if n not in self.tensors | used | self.surplus.keys()]

    def left_in_flax(self) -> list[str]:
        return [leaf for leaf in self.tree.leaves if leaf not in self.leaves | self.ignored]

    def link(self, path: str, bare: str, rule: Rule | None, *parts: Part) -> None:
        """The first torch path for a Flax layer is the layer's partner."""
        link = self.layers.get(path) or Link(self.names.raw.get(bare, bare), path, rule)
        self.layers[path] = dataclasses.replace(link, rule=rule, parts=(*link.parts, *parts))

    def claim(self, path: str, bare: str, rule: Rule | None, part: Part) -> None:
        fault = layouts.misfit(part, self.source, self.tree)
        if fault:
            self.faults.append(fault)
            if bare and not any(self.names.entry(self.names.bare[name]) for name in part.torch):
                self.misfits.add(bare)
        elif set(part.flax) & self.leaves:
            self._claim_again(part)
        else:
            self.link(path, bare, rule, part)
        # Claimed even if it does not fit, so that one mistake is not reported as unmatched names too.
        self.tensors |= set(part.torch)
        self.leaves |= set(part.flax)

    def _claim_again(self, part: Part) -> None:
        earlier = [p for link in self.layers.values() for p in link.parts if set(p.flax) & set(part.flax)]
        if not earlier:
            return  # the first claim did not fit and is reported already
        first, names = earlier[0], ", ".join(part.torch)
        if first.flax != part.flax:
            both = ", ".join(sorted(set(part.flax) & set(first.flax)))
            self.faults.append(f"{names} and {', '.join(first.torch)} both make {both}")
            return
        groups = [set(group) for group in self.source.tied]
        shared = all(any({a, b} <= g for g in groups) for a, b in zip(part.torch, first.torch, strict=False))
        if self.source.shares and not shared:
            self.faults.append(
                f"{names} and {', '.join(first.torch)} are two tensors in torch and one variable in Flax "
                f"({', '.join(part.flax)}): torch would train them apart"
            )
        self.repeats.append(part)


def pair(
    tree: Outline,
    source: WeightSource,
    mapping: Plain,
    ignored: Iterable[str] = (),
    mapped_only: Iterable[str] = (),
) -> Pairing:
    """Pair by names and the mapping; torch layers in `mapped_only` by the mapping alone."""
    pairing = Pairing(tree, source, Names(source, tree, mapping, frozenset(mapped_only)), frozenset(ignored))
    # The search for a divergence also replays dropout, activations and pooling.
    for path in tree.layers:
        modules = [bare for bare in pairing.names.leading_to(path) if bare in pairing.names.kinds]
        if modules:
            pairing.link(path, modules[0], tree.rule(path))
    _pair_stacks(pairing)
    # `layers` lists parents first, so a MultiheadAttention's rule claims out_proj.weight before the rule of
    # the nested Linear can.
    for path in tree.layers:
        for bare in pairing.names.leading_to(path):
            _pair_layer(pairing, path, bare)
    # Aliases are last: by then tied weights have their first partner, and further torch names are repeats.
    for leaf in [*tree.leaves, *tree.aliases]:
        if tree.first(leaf) not in pairing.ignored:
            _pair_leaf(pairing, leaf)
    _check_ties(pairing)
    pairing.surplus |= _counters(pairing)
    return pairing


def _counters(pairing: Pairing) -> Arrays:
    """Return torch's counters of batches whose statistics are in a Flax layer that counts none."""
    paired = {
        name: owner(leaf)
        for link in pairing.layers.values()
        for part in link.parts
        for name, leaf in zip(part.torch, part.flax, strict=False)
    }
    counters = {
        name: join(owner(name), "running_mean")
        for name in pairing.left_in_torch()
        if last(name) == "num_batches_tracked"
    }
    return {
        name: np.zeros((), np.int64)
        for name, mean in counters.items()
        if mean in paired and join(paired[mean], "num_batches_tracked") not in pairing.tree.leaves
    }


def _pair_stacks(pairing: Pairing) -> None:
    """Pair torch's nn.LSTM and similar, one module for all layers and directions, with several Flax cells."""
    # Before single layers, because a single Flax cell would claim the names of torch's first layer.
    names, tree = pairing.names, pairing.tree
    for bare, descendants in names.descendants.items():
        members = {inside(name, bare) or "": names.raw[name] for name in stacks.members(bare, descendants)}
        target = names.entries.get(bare)
        if not isinstance(target, (tuple, list)):
            target = stacks.listed(tree, names.target(bare)[0]) if members else ()
        both = any(name.endswith("_reverse") for name in members)
        for path, rule in stacks.units(tree, target, both):
            for part in rule.parts_of_torch(members):
                full = _with_full_names(part, members, path, pairing)
                if full:
                    pairing.claim(path, bare, rule, full)


def _pair_layer(pairing: Pairing, path: str, bare: str) -> None:
    names, rule = pairing.names, pairing.tree.rule(path)
    if rule is None:
        return
    # Skip names that a more specific mapping entry sends to a different layer.
    torch_names = {
        inside(name, bare) or "": names.raw[name]
        for name in names.descendants[bare]
        if names.raw[name] not in pairing.tensors and names.follows(name, bare)
    }
    rule = stacks.alone(rule, torch_names)
    target, used = names.entries.get(bare), False
    for rule_part in (
        *rule.parts_of_torch(torch_names),
        *layouts.normed(rule.parts, torch_names, pairing.tree, path),
    ):
        part = _in_torchs_layout(pairing, path, bare, rule, rule_part, torch_names)
        if part is None:
            continue
        full = _with_full_names(part, torch_names, path, pairing)
        if full and isinstance(target, Flattened) and part.torch == ("weight",):
            full = preceded(full, target.rearrangement)
        if full:
            pairing.claim(path, bare, rule, _with_axes_of_one(full, pairing))
            used = True
    # Only for paired layers: num_batches_tracked of an unpaired BatchNorm must be reported as unmatched.
    if used:
        pairing.surplus |= {
            torch_names[name]: value for name, value in rule.surplus.items() if name in torch_names
        }


def _in_torchs_layout(
    pairing: Pairing, path: str, bare: str, rule: Rule, part: Part, torch_names: Mapping[str, str]
) -> Part | None:
    """Return the part in the torch class's layout; None if the layout cannot be determined."""
    # A class that the rule does not list may lay out its `weight` differently: transformers' Conv1D is
    # (in, out).
    kinds = pairing.names.kinds.get(bare)
    leaf = pairing.tree.leaves.get(pairing.tree.first(join(path, part.flax[0])))
    if leaf and part.torch == ("weight",):
        shape = pairing.source.shapes[torch_names["weight"]]
        if pointwise := layouts.as_pointwise(part, rule, kinds, shape, leaf.shape):
            return pointwise
    # A state_dict has no classes, so its layers are trusted to be the rule's: the shapes must still fit.
    if kinds is None or set(kinds) & set(rule.kinds):
        return part
    if any("." in name and not name.startswith("parametrizations.") for name in part.torch):
        # It belongs to a nested module that is paired separately: out_proj in a user-defined attention.
        return None
    if part.plain:
        return part
    if part.torch in (("weight",), ("bias",)) and rule.torch == "Linear":
        # Running the layer is slow, and weight and bias ask for the same layer.
        if bare not in pairing.probed:
            module = pairing.source.modules.get(pairing.names.raw.get(bare, bare))
            pairing.probed[bare] = layouts.linear_layout(module)
        if layout := pairing.probed[bare]:
            turn = layout == "in, out" and part.torch == ("weight",)
            return layouts.turned(part) if turn else part
    names = ", ".join(torch_names[name] for name in part.torch)
    pairing.faults.append(
        f"{names} belongs to torch's {kinds[0]}, which is no {rule.torch}, so how its axes lie is not known; "
        'say it in the mapping: {"' + torch_names[part.torch[0]] + '": parity.transposed(path, axes)}'
    )
    pairing.tensors |= {torch_names[name] for name in part.torch}
    return None


def _with_full_names(part: Part, torch_names: Mapping[str, str], path: str, pairing: Pairing) -> Part | None:
    """None if the leaves do not exist or are ignored."""
    tree = pairing.tree
    # A leaf with "/" is the scale of Linen's WeightNorm; it belongs to the wrapper and has its full path.
    leaves = tuple(tree.first(leaf if "/" in leaf else join(path, leaf)) for leaf in part.flax)
    if not all(leaf in tree.leaves for leaf in leaves) or pairing.ignored & set(leaves):
        return None
    return dataclasses.replace(part, torch=tuple(torch_names[name] for name in part.torch), flax=leaves)


def _pair_leaf(pairing: Pairing, leaf: str) -> None:
    names, tree, real = pairing.names, pairing.tree, pairing.tree.first(leaf)
    rule = tree.rule(owner(leaf))
    for bare in names.leading_to(leaf):
        raw, target = names.raw[bare], names.entries.get(bare)
        if raw not in pairing.source.tensors or raw in pairing.tensors:
            continue
        # A claimed leaf may be claimed again only explicitly: by the mapping, or as an alias of a tied
        # weight.
        if real in pairing.leaves and target is None and leaf == real:
            continue
        part = leaf_part(tree, leaf, bare, target)
        if part is None:
            pairing.faults.append(
                f"{leaf} lies as a {rule.torch if rule else 'layer'}'s weights do in Flax, and how torch's "
                f'{raw} lies is not known; say it: mapping={{"{raw}": parity.transposed("{leaf}", axes)}}'
            )
            pairing.tensors.add(raw)
            pairing.leaves.add(real)
        else:
            full = dataclasses.replace(part, torch=(raw,), flax=(real,))
            pairing.claim(owner(leaf), owner(bare), rule, _with_axes_of_one(full, pairing))


def _with_axes_of_one(part: Part, pairing: Pairing) -> Part:
    """Return a part that only renames with torch's array reshaped, if only axes of length 1 differ."""
    if not part.plain:
        return part
    torch, flax = pairing.source.shapes[part.torch[0]], pairing.tree.leaves[part.flax[0]].shape
    differ = torch != flax and [n for n in torch if n != 1] == [n for n in flax if n != 1]
    return preceded(part, Reshape(torch, flax)) if differ else part


def leaf_part(tree: Outline, leaf: str, bare: str, target: Target | None) -> Part | None:
    """Return the conversion of one array; None if the layer has a rule that does not list the torch name."""
    if isinstance(target, Transposed):
        return preceded(same(bare, leaf), target.rearrangement)
    rule = tree.rule(owner(leaf))
    for part in rule.parts if rule else ():
        if part.flax == (last(leaf),) and len(part.torch) == 1:
            # The layout under an unknown name is unknown, unless the array is converted unchanged anyway.
            if f".{bare}".endswith("." + part.torch[0]) or part.plain:
                return preceded(part, target.rearrangement) if isinstance(target, Flattened) else part
            return None
    return same(bare, leaf)


def _check_ties(pairing: Pairing) -> None:
    """Tensors that are tied in torch but not in Flax would diverge in training."""
    part_of = {name: part for link in pairing.layers.values() for part in link.parts for name in part.torch}
    for group in pairing.source.tied:
        partners = {part_of[name].flax for name in group if name in part_of}
        # Listing one of them in the mapping confirms that they are separate in Flax.
        in_mapping = any(pairing.names.entry(pairing.names.bare[name]) for name in group)
        if len(partners) > 1 and not in_mapping:
            flax = " and ".join(", ".join(leaves) for leaves in sorted(partners))
            pairing.faults.append(
                f"{' and '.join(group)} are one tensor in torch, and {flax} are several variables in Flax: "
                "training would part them. Share one nnx.Variable, or name both in the mapping"
            )
