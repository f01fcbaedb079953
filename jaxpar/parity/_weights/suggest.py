"""Suggest pairs of layers by order, kind and shapes, as guesses for the user to review."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..._rulebook import Rule
from ..._typing import Shape
from .layouts import is_pointwise
from .mapping import Target, Transposed
from .pairing import Pairing
from .stacks import alone
from .tree import inside, last, owner

PACKED = re.compile(r"(^|\.)(in_proj_weight|[qkv]_proj_weight)$")  # Names of torch's MultiheadAttention
Signature = frozenset[tuple[str, Shape]]


Calls = tuple[Mapping[str, int], Mapping[str, int]]  # order of first calls by torch's and Flax's paths


@dataclasses.dataclass(frozen=True)
class LayerGroup:
    """Unpaired layers of one kind and shape, equally many in torch and Flax, paired by position."""

    torch: tuple[str, ...]
    flax: tuple[str, ...]
    reasons: tuple[str, ...]


def groups(
    pairing: Pairing, torch: Sequence[str], flax: Sequence[str], calls: Calls | None = None
) -> list[LayerGroup]:
    """Pair unpaired layers of a kind and shape of which both models have equally many."""
    # Single arrays of paired layers are excluded; `turns` guesses these.
    alone = {name for turn in turns(pairing) for both in turn.pairs for name in both}
    flax_shapes = flax_layers(pairing, [leaf for leaf in flax if leaf not in alone])
    torch_shapes = torch_layers(pairing, [name for name in torch if name not in alone])
    layer_groups = _of_equal_shapes(torch_shapes, flax_shapes, calls)
    # Then a convolution of one element in one model is taken for the linear layer of the other.
    torch_rest, flax_rest = (
        {path: _pointwise(signature) for path, signature in shapes.items() if path not in paired}
        for shapes, paired in zip((torch_shapes, flax_shapes), _paths(layer_groups), strict=True)
    )
    layer_groups += _of_equal_shapes(torch_rest, flax_rest, calls)
    return [*layer_groups, *_single_arrays(pairing, torch, flax, layer_groups)]


def _of_equal_shapes(
    torch_shapes: Mapping[str, Signature], flax_shapes: Mapping[str, Signature], calls: Calls | None
) -> list[LayerGroup]:
    layer_groups = []
    for signature in dict.fromkeys(torch_shapes.values()):
        flax_paths = [path for path, s in flax_shapes.items() if s == signature]
        torch_paths = [path for path, s in torch_shapes.items() if s == signature]
        if len(flax_paths) != len(torch_paths):
            continue  # an unknown one is missing, so the order determines nothing
        if calls:
            torch_paths, flax_paths = (
                sorted(paths, key=lambda path: order.get(path, len(order)))
                for paths, order in zip((torch_paths, flax_paths), calls, strict=True)
            )
        sizes = ", ".join(f"{name} {shape}" for name, shape in sorted(signature))
        paired_flax, paired_torch, why = zip(*_paired(flax_paths, torch_paths), strict=True)
        reasons = tuple(f"guessed: {reason} with {sizes}" for reason in why)
        layer_groups.append(LayerGroup(paired_torch, paired_flax, reasons))
    return layer_groups


def _paths(layer_groups: Iterable[LayerGroup]) -> tuple[set[str], set[str]]:
    """Return the paths of torch's layers and of Flax's."""
    both = [(group.torch, group.flax) for group in layer_groups]
    torch, flax = (
        {path for paths in side for path in paths} for side in ([t for t, _ in both], [f for _, f in both])
    )
    return torch, flax


def _pointwise(signature: Signature) -> Signature:
    """Return a layer's shapes with a kernel of one element as a matrix."""
    return frozenset((name, shape[:2] if is_pointwise(shape) else shape) for name, shape in signature)


def _single_arrays(
    pairing: Pairing, torch: Iterable[str], flax: Iterable[str], layer_groups: Iterable[LayerGroup]
) -> Iterator[LayerGroup]:
    """Pair arrays outside of layers, such as a token of a class: by name and shape, then by a shape alone."""
    paired_torch = {path for group in layer_groups for path in group.torch}
    paired_flax = {path for group in layer_groups for path in group.flax}
    bare = [pairing.names.bare[raw] for raw in torch]
    names = [name for name in bare if _layer_of(pairing, name) not in paired_torch and not _of_a_layer(name)]
    rules = pairing.tree.rule
    leaves = [x for x in flax if owner(x) not in paired_flax and not (_of_a_layer(x) or rules(owner(x)))]
    shapes = {name: pairing.source.shapes[pairing.names.raw[name]] for name in names}
    for key in (last, lambda _: ""):
        of_torch: dict[tuple[str, Shape], list[str]] = {}
        of_flax: dict[tuple[str, Shape], list[str]] = {}
        for name in names:
            of_torch.setdefault((key(name), _without_ones(shapes[name])), []).append(name)
        for leaf in leaves:
            of_flax.setdefault((key(leaf), _without_ones(pairing.tree.leaves[leaf].shape)), []).append(leaf)
        for kind, (name, *others) in of_torch.items():
            match of_flax.get(kind), others:
                case [leaf], []:
                    yield LayerGroup((name,), (leaf,), (f"guessed: the only array of shape {shapes[name]}",))
                    names.remove(name)
                    leaves.remove(leaf)


def _of_a_layer(name: str) -> bool:
    """Whether an array has a name of a layer's weights, whose axes may be ordered differently."""
    return NAMES.get(last(name), last(name)) in ("weight", "bias")


def _without_ones(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)


def entries(layer_groups: Iterable[LayerGroup], pairing: Pairing) -> tuple[dict[str, str], dict[str, str]]:
    layer_groups = list(layer_groups)
    pairs = {torch: flax for g in layer_groups for torch, flax in zip(g.torch, g.flax, strict=True)}
    reasons = {torch: why for g in layer_groups for torch, why in zip(g.torch, g.reasons, strict=True)}
    short = _shortened(pairs, pairing)
    return short, {key: reasons.get(key, "guessed, from what is below it") for key in short}


def _paired(flax_paths: list[str], torch_paths: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (Flax path, torch path, reason): first by equal parts of names or roles, then by order."""
    if len(flax_paths) == 1:
        yield flax_paths[0], torch_paths[0], "the only one"
        return
    distinctive = _distinctive_parts(flax_paths, torch_paths)
    for key in (lambda path: (distinctive[path], role(path)), distinctive.__getitem__, role):
        for name in dict.fromkeys(map(key, torch_paths)):
            flax_matches = [path for path in flax_paths if key(path) == name]
            torch_matches = [path for path in torch_paths if key(path) == name]
            if len(flax_matches) != len(torch_matches) or name == frozenset():
                continue
            for i, (flax, torch) in enumerate(zip(flax_matches, torch_matches, strict=True), 1):
                label = " ".join([*sorted(distinctive[torch] - {last(torch)}), last(torch)])
                yield flax, torch, f"{label} number {i} of {len(flax_matches)}"
            flax_paths = [path for path in flax_paths if path not in flax_matches]
            torch_paths = [path for path in torch_paths if path not in torch_matches]
    for i, pair in enumerate(zip(flax_paths, torch_paths, strict=True), 1):
        yield *pair, f"number {i} of {len(flax_paths)}"


def _distinctive_parts(flax_paths: Iterable[str], torch_paths: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the parts of each path that occur on both sides, but not in all paths: "up" and "mid"."""
    sides = [
        {path: frozenset(re.findall(r"[a-z]+", path.lower())) for path in paths}
        for paths in (flax_paths, torch_paths)
    ]
    shared = frozenset.intersection(*(frozenset().union(*side.values()) for side in sides))
    everywhere = frozenset.intersection(*(parts for side in sides for parts in side.values()))
    return {path: (parts & shared) - everywhere for side in sides for path, parts in side.items()}


ROLES = {  # of the projections of an attention and of a gated MLP, with their common names
    "query": "query q q_proj q_lin to_q wq query_proj linear_q q_linear",
    "key": "key k k_proj k_lin to_k wk key_proj linear_k k_linear",
    "value": "value v v_proj v_lin to_v wv value_proj linear_v v_linear",
    "out": "out o o_proj out_proj out_lin to_out wo output_proj linear_out out_linear",
    "gate": "gate gate_proj w1 wi_0",  # LLaMA's w1 and w3, T5's wi_0 and wi_1
    "up": "up up_proj w3 wi_1",
}
ROLE = {name: role for role, names in ROLES.items() for name in names.split()}


def role(path: str) -> str:
    return ROLE.get(last(path), last(path))


def torch_layers(pairing: Pairing, names: Sequence[str]) -> dict[str, Signature]:
    shapes_by_layer: dict[str, set[tuple[str, Shape]]] = {}
    # Flax has no counters, which would give every BatchNorm a different signature.
    surplus = set(pairing.surplus) | {n for n in names if n.endswith("num_batches_tracked")}
    for raw in names:
        path = _layer_of(pairing, pairing.names.bare[raw])
        suffix = inside(pairing.names.bare[raw], path) or ""
        shapes_by_layer.setdefault(path, set())
        if raw not in surplus:
            shapes_by_layer[path].add((suffix, _of_a_bias(suffix, pairing.source.shapes[raw])))
    return {path: frozenset(shapes) for path, shapes in shapes_by_layer.items() if shapes}


def _layer_of(pairing: Pairing, name: str) -> str:
    path = owner(name)
    above = owner(path)
    if path.endswith("out_proj") and any(
        pairing.names.bare[n].startswith(f"{above}.in_proj_") for n in pairing.source.tensors
    ):
        return above
    return path


def flax_layers(pairing: Pairing, leaves: Iterable[str]) -> dict[str, Signature]:
    """Return torch's names and shapes of each Flax layer's unpaired leaves, by layer path."""
    tree = pairing.tree
    unpaired = set(leaves)
    signatures: dict[str, Signature] = {}
    torchs = pairing.left_in_torch()
    packed = any(PACKED.search(name) for name in torchs)
    for path in tree.layers:
        rule = tree.rule(path)
        rule = rule and alone(rule, torchs)
        if rule and rule.torch == "MultiheadAttention" and not packed:
            continue  # torch has no MultiheadAttention, so the four projections are separate layers
        prefix = path + "." if path else ""
        leaf_names = {leaf[len(prefix) :] for leaf in unpaired if leaf.startswith(prefix)}
        if rule and leaf_names:
            shapes = {name: tree.leaves[prefix + name].shape for name in leaf_names}
            torch_shapes = _torch_shapes(rule, shapes)
            if torch_shapes:
                signatures[path] = frozenset(
                    (n, _of_a_bias(n, s)) for n, s in torch_shapes.items() if n != "num_batches_tracked"
                )
                unpaired -= {prefix + leaf for part in rule.parts_of_flax(shapes) for leaf in part.flax}
    # Linen and nnx.eval_shape sort the leaves by name; layers are in the order of calls or of definition.
    order = {path: i for i, path in enumerate(tree.layers)}
    for leaf in sorted(
        (leaf for leaf in tree.leaves if leaf in unpaired), key=lambda leaf: order.get(owner(leaf), 0)
    ):
        signatures.setdefault(owner(leaf), frozenset())
        signatures[owner(leaf)] |= {torch_form(last(leaf), tree.leaves[leaf].shape)}
    return signatures


def _torch_shapes(rule: Rule, shapes: dict[str, Shape]) -> dict[str, Shape]:
    try:
        return rule.torch_shapes(shapes)
    except ValueError:
        return {}


def _shortened(pairs: dict[str, str], pairing: Pairing) -> dict[str, str]:
    """Merge entries to blocks: "a.0.fc": "b.0.fc" becomes "a": "b" if this holds for all names under "a"."""
    short: dict[str, str] = {}
    for torch, flax in pairs.items():
        torch_parts, flax_parts = torch.split("."), flax.split(".")
        while len(torch_parts) > 1 and len(flax_parts) > 1 and torch_parts[-1] == flax_parts[-1]:
            torch_parts.pop()
            flax_parts.pop()
        key, path = ".".join(torch_parts), ".".join(flax_parts)
        covered = [name for name in pairs if name == key or name.startswith(key + ".")]
        fits = all(pairs[name] == path + name[len(key) :] for name in covered)
        used = [n for n in pairing.names.descendants.get(key, []) if pairing.names.raw[n] in pairing.tensors]
        short |= {key: path} if fits and not used else {torch: flax}
    return short


# torch's names by the usual ones of Flax and Haiku
NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "w": "weight"}
NAMES |= {"b": "bias", "offset": "bias"}


@dataclasses.dataclass(frozen=True)
class Turn:
    """A guess for the arrays of one name in all layers of one class, which have the same axis order."""

    pairs: tuple[tuple[str, str], ...]  # (torch name, Flax leaf) of each array
    axes: tuple[tuple[int, ...], ...]  # the likelier first; as for `transposed`
    kind: str

    def entries(self, choice: int = 0) -> dict[str, Target]:
        axes = self.axes[choice]
        if axes == tuple(range(len(axes))):
            return dict(self.pairs)
        return {torch: Transposed(flax, axes) for torch, flax in self.pairs}

    def reason(self, choice: int = 0) -> str:
        shared = f"guessed for every {last(self.pairs[0][1])} of {self.kind}"
        if len(self.axes) == 1:
            return f"{shared}: no other axes fit"
        return f"{shared}, ambiguous: axes {self.axes[1 - choice]} fit as well"


def turns(pairing: Pairing) -> list[Turn]:
    # In a plain tree all layers have one class: the number of axes tells a matrix from a convolution.
    pairs_by_kind: dict[tuple[str, str, str, int], list[tuple[str, str]]] = {}
    axes_by_kind: dict[tuple[str, str, str, int], list[set[tuple[int, ...]]]] = {}
    for torch, flax in _lone(pairing):
        shapes = pairing.source.shapes[torch], pairing.tree.leaves[flax].shape
        axes = possible(*shapes)
        layer = pairing.tree.layers.get(owner(flax))
        key = type(layer).__name__, last(flax), last(torch), len(shapes[1])
        if axes:
            pairs_by_kind.setdefault(key, []).append((torch, flax))
            axes_by_kind.setdefault(key, []).append(set(axes))
    guesses = []
    for key, pairs in pairs_by_kind.items():
        # A non-square array determines the order of the square ones in the same class.
        shared = set.intersection(*axes_by_kind[key])
        if shared:
            # In reverse, so that a kernel's exchanged axes come before the identity, which is less likely.
            guesses.append(Turn(tuple(pairs), tuple(sorted(shared, reverse=True)), key[0]))
    return guesses


def possible(torch: Shape, flax: Shape) -> list[tuple[int, ...]]:
    """Return the axis orders that fit both shapes: a kernel's, or the identity."""
    n = len(torch)
    orders = [(*range(2, n), 1, 0), tuple(range(n))] if n > 1 else [(0,) * n]
    return [axes for axes in orders if len(flax) == n and tuple(torch[a] for a in axes) == flax]


def torch_form(leaf: str, shape: Shape) -> tuple[str, Shape]:
    n = len(shape)
    turned = leaf in ("kernel", "w") and n > 1
    name = NAMES.get(leaf, leaf)
    return name, (shape[-1], shape[-2], *shape[:-2]) if turned else _of_a_bias(name, shape)


def _of_a_bias(name: str, shape: Shape) -> Shape:
    """Return a bias's shape without axes of length 1, which Equinox's convolutions and Haiku's norms have."""
    return _without_ones(shape) or shape[:1] if last(name) == "bias" else shape


def _lone(pairing: Pairing) -> Iterator[tuple[str, str]]:
    """Yield (torch name, Flax leaf) of paired layers: the only ones left, or with corresponding names."""
    names, tree = pairing.names, pairing.tree
    left_torch = [names.bare[raw] for raw in pairing.left_in_torch()]
    left_flax = pairing.left_in_flax()
    for path in tree.layers:
        flax_leaves = [leaf for leaf in left_flax if owner(leaf) == path]
        if tree.rule(path) or not flax_leaves:
            continue
        for bare in names.leading_to(path):
            torch_names = {last(name): name for name in left_torch if owner(name) == bare}
            if len(torch_names) == len(flax_leaves) == 1:
                yield names.raw[torch_names.popitem()[1]], flax_leaves[0]
                continue
            for leaf in flax_leaves:
                if name := torch_names.get(NAMES.get(last(leaf), "")):
                    yield names.raw[name], leaf
