"""Pairing: which torch tensors make which Flax leaves, by name; and Links, the result.

Layers come first, outer ones before what is in them: where a torch path and a Flax path are the same (or
the mapping says so) and the rulebook has a rule for the layer, the rule's parts claim torch names and Flax
leaves. What is left are arrays of the user's own modules, which pair by their full name and are taken as
they are. Every tensor and every leaf is used exactly once; `unmatched` raises for the rest.

Shapes never decide anything, they only have to fit afterwards: a model has many layers of one shape, and
two of them swapped would load without a word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ..._rulebook import Part, Rule, same
from . import layouts, stacks
from .mapping import Flattened, Plain, Target, Transposed
from .names import Names
from .paths import inside, join, last, owner
from .probe import linear_layout
from .source import Source
from .tree import Leaf, Outline

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Link:
    """A layer of torch and its layer in Flax.

    Attributes:
      torch: path of the torch module, as in `named_modules()`.
      flax: path of the Flax module.
      rule: the rulebook's rule; None for a container, or a module of the user's own.
      parts: what becomes what, by full names; only those of this layer itself.
    """

    torch: str
    flax: str
    rule: Rule | None
    parts: tuple[Part, ...] = ()


@dataclasses.dataclass(frozen=True)
class Links:
    """The paired layers of two models, and the conversion of everything that is in them.

    Arrays are by name: torch's as in `state_dict()`, Flax's by leaf path ("blocks.0.fc.kernel", Linen
    without its collections). What is not given is left out, so gradients of the parameters alone, or the
    tensors of one layer, convert as well.

    Attributes:
      layers: in the Flax model's order; containers before what is in them.
      leaves: shape, dtype and kind of every Flax leaf.
      repeats: parts whose leaves another part makes already (tied weights).
      tied: for a torch name, the other names of the same tensor.
      surplus: torch names without a place in Flax, with the values that torch gets back for them.
      ignored, ignored_torch: what the user left out on either side.
    """

    layers: tuple[Link, ...]
    leaves: Mapping[str, Leaf]
    repeats: tuple[Part, ...] = ()
    tied: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    surplus: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    ignored_torch: tuple[str, ...] = ()

    @property
    def parts(self) -> Iterator[Part]:
        return (part for link in self.layers for part in link.parts)

    def to_flax(self, tensors: Mapping[str, np.ndarray], gradient: bool = False) -> Arrays:
        """Flax leaves from torch arrays; views of these where no copy is needed.

        With `gradient`, merged biases take torch's gradient once instead of the sum of two.
        """
        converted: Arrays = {}
        for part in self.parts:
            arrays = [self._find(name, tensors) for name in part.torch]
            # Of a part with some of its tensors nothing can be made: query, key and value are one kernel.
            if all(array is not None for array in arrays):
                converted.update(zip(part.flax, part.forth(arrays, gradient), strict=True))  # type: ignore[arg-type]
        return converted

    def to_torch(self, leaves: Mapping[str, np.ndarray], gradient: bool = False) -> Arrays:
        """Torch arrays from Flax leaves; all names of tied tensors, no surplus."""
        converted: Arrays = {}
        for part in (*self.parts, *self.repeats):
            if leaves.keys() >= set(part.flax):
                arrays = part.back((leaves[leaf] for leaf in part.flax), gradient)
                converted.update(zip(part.torch, arrays, strict=True))
        # torch's state_dict lists a tied tensor under each of its names.
        for name in list(converted):
            converted |= {
                other: converted[name] for other in self.tied.get(name, ()) if other not in converted
            }
        return converted

    def left_out(self) -> list[str]:
        """A sentence for each side of which something is ignored."""
        flax = [leaf for leaf in self.leaves if leaf in self.ignored]
        both = ("torch's", self.ignored_torch), ("Flax's", flax)
        return [f"left out, and not compared: {side} {', '.join(names)}" for side, names in both if names]

    def parameters(self, tensors: Mapping[str, np.ndarray]) -> Arrays:
        """`to_flax`, parameters only."""
        return {path: x for path, x in self.to_flax(tensors).items() if self.leaves[path].parameter}

    def state(self, tensors: Mapping[str, np.ndarray]) -> Arrays:
        """`to_flax`, without the parameters: what torch calls buffers."""
        return {path: x for path, x in self.to_flax(tensors).items() if not self.leaves[path].parameter}

    def _find(self, name: str, tensors: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """By its name, or by another name of the same tensor."""
        return next((tensors[n] for n in (name, *self.tied.get(name, ())) if n in tensors), None)


@dataclasses.dataclass
class Pairing:
    """What is paired so far.

    Attributes:
      ignored: leaves that nothing is to be loaded into.
      layers: by Flax path.
      repeats, surplus: as in Links.
      faults: sentences about pairs that belong together and do not fit.
      tensors, leaves: the names that are used up.
      probed: how layers of an unknown class lay out their weight, where they were tried.
    """

    tree: Outline
    source: Source
    names: Names
    ignored: frozenset[str] = frozenset()
    layers: dict[str, Link] = dataclasses.field(default_factory=dict)
    repeats: list[Part] = dataclasses.field(default_factory=list)
    surplus: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    faults: list[str] = dataclasses.field(default_factory=list)
    tensors: set[str] = dataclasses.field(default_factory=set)
    leaves: set[str] = dataclasses.field(default_factory=set)
    probed: dict[str, str | None] = dataclasses.field(default_factory=dict)

    def links(self) -> Links:
        ties = {name: tuple(o for o in group if o != name) for group in self.source.tied for name in group}
        order = {path: i for i, path in enumerate(self.tree.layers)}
        layers = sorted(self.layers.values(), key=lambda link: order.get(link.flax, len(order)))
        return Links(tuple(layers), self.tree.leaves, tuple(self.repeats), ties, self.surplus)

    def left_in_torch(self) -> list[str]:
        # Of a tensor with several names one is enough: Flax may have it once.
        used = {other for group in self.source.tied if self.tensors & set(group) for other in group}
        return [n for n in self.source.tensors if n not in self.tensors | used | self.surplus.keys()]

    def left_in_flax(self) -> list[str]:
        return [leaf for leaf in self.tree.leaves if leaf not in self.leaves | self.ignored]

    def link(self, path: str, bare: str, rule: Rule | None, *parts: Part) -> None:
        """Adds parts to a layer. The first torch path that leads to a Flax layer is its partner."""
        link = self.layers.get(path) or Link(self.names.raw.get(bare, bare), path, rule)
        self.layers[path] = dataclasses.replace(link, rule=rule, parts=(*link.parts, *parts))

    def claim(self, path: str, bare: str, rule: Rule | None, part: Part) -> None:
        """Takes a part with full names, unless its shapes do not fit or its leaves are taken."""
        fault = misfit(part, self.source, self.tree)
        if fault:
            self.faults.append(fault)
        elif set(part.flax) & self.leaves:
            self._claim_again(part)
        else:
            self.link(path, bare, rule, part)
        # Used up even where it does not fit: one mistake is one sentence, and not a name left over as well.
        self.tensors |= set(part.torch)
        self.leaves |= set(part.flax)

    def _claim_again(self, part: Part) -> None:
        """Two torch tensors for one leaf: right if torch shares them as well."""
        earlier = [p for link in self.layers.values() for p in link.parts if set(p.flax) & set(part.flax)]
        if not earlier:
            return  # the first one did not fit, and has its sentence already
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


def pair(tree: Outline, source: Source, mapping: Plain, ignored: Iterable[str] = ()) -> Pairing:
    """Everything that can be paired; the rest is in `left_in_torch` and `left_in_flax`."""
    pairing = Pairing(tree, source, Names(source, tree, mapping), frozenset(ignored))
    _pair_modules(pairing)
    _pair_stacks(pairing)
    # Parents come first in `layers`: the rule of a MultiheadAttention claims its out_proj.weight before the
    # Linear in it can.
    for path in tree.layers:
        for bare in pairing.names.leading_to(path):
            _pair_layer(pairing, path, bare)
    # Aliases last: a tied weight has its first partner by then, and torch's other names become repeats.
    for leaf in [*tree.leaves, *tree.aliases]:
        if tree.first(leaf) not in pairing.ignored:
            _pair_leaf(pairing, leaf)
    _check_ties(pairing)
    return pairing


def _pair_modules(pairing: Pairing) -> None:
    """Modules of the same name, whether they hold weights of their own or not."""
    # The search for a divergence replays layers without weights as well: dropout, activations, pooling.
    for path in pairing.tree.layers:
        modules = [bare for bare in pairing.names.leading_to(path) if bare in pairing.names.kinds]
        if modules:
            pairing.link(path, modules[0], pairing.tree.rule(path))


def _pair_stacks(pairing: Pairing) -> None:
    """torch's nn.LSTM of several layers and directions: one module there, several in Flax."""
    # Before single layers, because a Flax cell would claim the names of torch's first layer for itself.
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
    # Names that an inner entry of the mapping sends elsewhere are not this layer's.
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
        part = _in_torchs_layout(pairing, bare, rule, rule_part, torch_names)
        if part is None:
            continue
        full = _with_full_names(part, torch_names, path, pairing)
        if full and isinstance(target, Flattened) and part.torch == ("weight",):
            full = _rearranged(target, full)
        if full:
            pairing.claim(path, bare, rule, full)
            used = True
    # Only where the layer is paired: num_batches_tracked of a BatchNorm without partner is a name left over.
    if used:
        pairing.surplus |= {
            torch_names[name]: value for name, value in rule.surplus.items() if name in torch_names
        }


def _in_torchs_layout(
    pairing: Pairing, bare: str, rule: Rule, part: Part, torch_names: Mapping[str, str]
) -> Part | None:
    """The part as torch's class, where it is known, lays it out; None if that cannot be known.

    A class of another name may have a `weight` of another layout: transformers' Conv1D is (in, out). An
    array that is the same in both needs no layout.
    """
    kinds = pairing.names.kinds.get(bare)
    if kinds is None or set(kinds) & set(rule.kinds):
        return part
    if any("." in name and not name.startswith("parametrizations.") for name in part.torch):
        return (
            None  # of a module inside, which stands for itself: an out_proj in an attention of the user's own
        )
    if part.plain:
        return part
    if part.torch in (("weight",), ("bias",)) and rule.torch == "Linear":
        if bare not in pairing.probed:
            module = pairing.source.modules.get(pairing.names.raw.get(bare, bare))
            pairing.probed[bare] = linear_layout(module)
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
    """The part with full names; None if the Flax layer lacks such leaves, or they are ignored."""
    tree = pairing.tree
    # The scale of Linen's WeightNorm is the wrapper's, and stands there with its full path.
    leaves = tuple(tree.first(leaf if "/" in leaf else join(path, leaf)) for leaf in part.flax)
    if not all(leaf in tree.leaves for leaf in leaves) or pairing.ignored & set(leaves):
        return None
    return dataclasses.replace(part, torch=tuple(torch_names[name] for name in part.torch), flax=leaves)


def _rearranged(target: Flattened | Transposed, part: Part) -> Part:
    """The part, with the mapping's own rearrangement on torch's side."""
    return dataclasses.replace(
        part,
        to_flax=lambda w: part.to_flax(target.to_flax(w)),
        to_torch=lambda k: tuple(target.to_torch(w) for w in part.to_torch(k)),
    )


def _pair_leaf(pairing: Pairing, leaf: str) -> None:
    names, tree, real = pairing.names, pairing.tree, pairing.tree.first(leaf)
    rule = tree.rule(owner(leaf))
    for bare in names.leading_to(leaf):
        raw, target = names.raw[bare], names.entries.get(bare)
        if raw not in pairing.source.tensors or raw in pairing.tensors:
            continue
        # A leaf in use may be named again only on purpose: by the mapping, or by an alias of a tied weight.
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
            pairing.claim(owner(leaf), owner(bare), rule, full)


def leaf_part(tree: Outline, leaf: str, bare: str, target: Target | None) -> Part | None:
    """How one array is laid out: as the mapping says, else as the layer's rule says, else as it is.

    None where the layer has a rule, and the torch name is not the rule's.
    """
    if isinstance(target, Transposed):
        return Part((bare,), (leaf,), lambda w: (target.to_flax(w),), lambda k: (target.to_torch(k),))
    rule = tree.rule(owner(leaf))
    for part in rule.parts if rule else ():
        if part.flax == (last(leaf),) and len(part.torch) == 1:
            # Another name says nothing of the layout, unless the layout is the same anyway.
            if f".{bare}".endswith("." + part.torch[0]) or part.plain:
                return _rearranged(target, part) if isinstance(target, Flattened) else part
            return None
    return same(bare, leaf)


def misfit(part: Part, source: Source, tree: Outline) -> str | None:
    """What is wrong with the shapes, if anything."""
    shapes = source.shapes
    # One byte seen everywhere: the rules' own functions say what comes out, and nothing is copied.
    dummies = [np.broadcast_to(np.zeros((), np.bool_), shapes[name]) for name in part.torch]
    sources = ", ".join(f"{name} {shapes[name]}" for name in part.torch)
    expected = ", ".join(f"{leaf} is {tree.leaves[leaf].shape}" for leaf in part.flax)
    try:
        converted = [array.shape for array in part.to_flax(*dummies)]
    except (ValueError, IndexError):
        return f"{sources} cannot become what Flax has: {expected}"
    if converted == [tree.leaves[leaf].shape for leaf in part.flax]:
        return None
    became = ", ".join(map(str, converted))
    return f"{sources} becomes {became} in Flax's layout, and {expected}"


def _check_ties(pairing: Pairing) -> None:
    """One tensor in torch and two variables in Flax would be trained apart."""
    part_of = {name: part for link in pairing.layers.values() for part in link.parts for name in part.torch}
    for group in pairing.source.tied:
        partners = {part_of[name].flax for name in group if name in part_of}
        # Whoever names one of them in the mapping knows that they are apart in Flax.
        in_mapping = any(pairing.names.entry(pairing.names.bare[name]) for name in group)
        if len(partners) > 1 and not in_mapping:
            flax = " and ".join(", ".join(leaves) for leaves in sorted(partners))
            pairing.faults.append(
                f"{' and '.join(group)} are one tensor in torch, and {flax} are several variables in Flax: "
                "training would part them. Share one nnx.Variable, or name both in the mapping"
            )
