"""suggest: which layers may belong together, by order, kind and shapes: guesses for people to read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..._rulebook import Rule
from ..._typing import Shape
from .mapping import Place
from .pairing import Pairing
from .paths import inside, last, owner
from .stacks import alone
from .turns import torch_form, turns

PACKED = re.compile(r"(^|\.)(in_proj_weight|[qkv]_proj_weight)$")
"""Names of torch's MultiheadAttention."""
Signature = frozenset[tuple[str, Shape]]


Calls = tuple[Mapping[str, int], Mapping[str, int]]
"""The first call of every layer: by torch's bare paths, and by Flax's paths."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Layers of one kind and shape that are left over, as many here as there.

    Attributes:
      torch, flax: the layers' paths; those of the same place are guessed to be the same.
      reasons: of each guess.
    """

    torch: tuple[str, ...]
    flax: tuple[str, ...]
    reasons: tuple[str, ...]


def suggest(
    pairing: Pairing, torch: Sequence[str], flax: Sequence[str]
) -> tuple[dict[str, Place], dict[str, str]]:
    """Entries for a mapping, and the reason for each.

    Args:
      torch, flax: the names and leaves that are left over.
    """
    found, reasons = entries(groups(pairing, torch, flax), pairing)
    turned = turns(pairing)
    places = {**found, **{name: place for turn in turned for name, place in turn.entries().items()}}
    return places, reasons | {name: turn.reason() for turn in turned for name, _ in turn.pairs}


def groups(
    pairing: Pairing, torch: Sequence[str], flax: Sequence[str], calls: Calls | None = None
) -> list[Group]:
    """Layers are paired if there are as many of their kind left over here as there.

    Args:
      torch, flax: the names and leaves that are left over.
      calls: the order to go by, if it is known; else that of definition.
    """
    # Layers that are paired already have single arrays left over, which `turns` is for.
    alone = {name for turn in turns(pairing) for both in turn.pairs for name in both}
    here = _flax_layers(pairing, [leaf for leaf in flax if leaf not in alone])
    there = _torch_layers(pairing, [name for name in torch if name not in alone])
    found = []
    for signature in dict.fromkeys(there.values()):
        ours = [path for path, s in here.items() if s == signature]
        theirs = [path for path, s in there.items() if s == signature]
        if len(ours) != len(theirs):
            continue  # order says nothing where one of them is missing, and it is not known which
        if calls:
            theirs, ours = (
                sorted(paths, key=lambda path: order.get(path, len(order)))
                for paths, order in zip((theirs, ours), calls, strict=True)
            )
        sizes = ", ".join(f"{name} {shape}" for name, shape in sorted(signature))
        mine, yours, why = zip(*_paired(ours, theirs), strict=True)
        found.append(Group(yours, mine, tuple(f"guessed: {each} with {sizes}" for each in why)))
    return found


def entries(found: Iterable[Group], pairing: Pairing) -> tuple[dict[str, str], dict[str, str]]:
    """Entries for a mapping, shortened, and the reason for each."""
    found = list(found)
    pairs = {yours: mine for g in found for yours, mine in zip(g.torch, g.flax, strict=True)}
    reasons = {yours: why for g in found for yours, why in zip(g.torch, g.reasons, strict=True)}
    short = _shortened(pairs, pairing)
    return short, {key: reasons.get(key, "guessed, from what is below it") for key in short}


def _paired(ours: list[str], theirs: list[str]) -> Iterator[tuple[str, str, str]]:
    """Those with the same last word, or another word for the same, first; then the rest, in order."""
    if len(ours) == 1:
        yield ours[0], theirs[0], "the only one"
        return
    for word in dict.fromkeys(_role(path) for path in theirs):
        mine = [path for path in ours if _role(path) == word]
        yours = [path for path in theirs if _role(path) == word]
        if mine and len(mine) == len(yours):
            for i, pair in enumerate(zip(mine, yours, strict=True), 1):
                yield *pair, f"{last(pair[1])} number {i} of {len(mine)}"
            ours = [path for path in ours if path not in mine]
            theirs = [path for path in theirs if path not in yours]
    for i, pair in enumerate(zip(ours, theirs, strict=True), 1):
        yield *pair, f"number {i} of {len(ours)}"


ROLES = {
    "query": "query q q_proj q_lin to_q wq query_proj linear_q q_linear",
    "key": "key k k_proj k_lin to_k wk key_proj linear_k k_linear",
    "value": "value v v_proj v_lin to_v wv value_proj linear_v v_linear",
    "out": "out o o_proj out_proj out_lin to_out wo output_proj linear_out out_linear",
}
"""Words for the four projections of an attention."""
ROLE = {word: role for role, words in ROLES.items() for word in words.split()}


def _role(path: str) -> str:
    return ROLE.get(last(path), last(path))


def _torch_layers(pairing: Pairing, names: Sequence[str]) -> dict[str, Signature]:
    """The leftovers of torch's layers, by the layers' own names."""
    found: dict[str, set[tuple[str, Shape]]] = {}
    # Counters have no place in Flax, and would make every BatchNorm a layer of another kind.
    surplus = set(pairing.surplus) | {n for n in names if n.endswith("num_batches_tracked")}
    for raw in names:
        path = _layer_of(pairing, pairing.names.bare[raw])
        rest = inside(pairing.names.bare[raw], path) or ""
        found.setdefault(path, set())
        if raw not in surplus:
            found[path].add((rest, pairing.source.shapes[raw]))
    return {path: frozenset(shapes) for path, shapes in found.items() if shapes}


def _layer_of(pairing: Pairing, name: str) -> str:
    """The torch layer of a name: out_proj.weight is MultiheadAttention's own."""
    path = owner(name)
    above = owner(path)
    if path.endswith("out_proj") and any(
        pairing.names.bare[n].startswith(f"{above}.in_proj_") for n in pairing.source.tensors
    ):
        return above
    return path


def _flax_layers(pairing: Pairing, leaves: Iterable[str]) -> dict[str, Signature]:
    """The leftovers of Flax's layers, by the names and shapes that torch would have."""
    tree = pairing.tree
    left = set(leaves)
    found: dict[str, Signature] = {}
    torchs = pairing.left_in_torch()
    packed = any(PACKED.search(name) for name in torchs)
    for path in tree.layers:
        rule = tree.rule(path)
        rule = rule and alone(rule, torchs)
        if rule and rule.torch == "MultiheadAttention" and not packed:
            continue  # torch has none, so its four projections are layers of their own
        prefix = path + "." if path else ""
        below = {leaf[len(prefix) :] for leaf in left if leaf.startswith(prefix)}
        if rule and below:
            shapes = {name: tree.leaves[prefix + name].shape for name in below}
            made = _torch_shapes(rule, shapes)
            if made:
                found[path] = frozenset((n, s) for n, s in made.items() if n != "num_batches_tracked")
                left -= {prefix + leaf for part in rule.parts_of_flax(shapes) for leaf in part.flax}
    # Linen and nnx.eval_shape sort the leaves by name; layers are in the order of calls or of definition.
    order = {path: i for i, path in enumerate(tree.layers)}
    for leaf in sorted(
        (leaf for leaf in tree.leaves if leaf in left), key=lambda leaf: order.get(owner(leaf), 0)
    ):
        found.setdefault(owner(leaf), frozenset())
        found[owner(leaf)] |= {torch_form(last(leaf), tree.leaves[leaf].shape)}
    return found


def _torch_shapes(rule: Rule, shapes: dict[str, Shape]) -> dict[str, Shape]:
    """None for leaves that are not as the layer's own class makes them."""
    try:
        return rule.torch_shapes(shapes)
    except ValueError:
        return {}


def _shortened(pairs: dict[str, str], pairing: Pairing) -> dict[str, str]:
    """Entries for whole blocks: "a.0.fc": "b.0.fc" becomes "a": "b" if that holds for all below it."""
    short: dict[str, str] = {}
    for torch, flax in pairs.items():
        theirs, ours = torch.split("."), flax.split(".")
        while len(theirs) > 1 and len(ours) > 1 and theirs[-1] == ours[-1]:
            theirs.pop()
            ours.pop()
        key, place = ".".join(theirs), ".".join(ours)
        below = [name for name in pairs if name == key or name.startswith(key + ".")]
        fits = all(pairs[name] == place + name[len(key) :] for name in below)
        used = [n for n in pairing.names.below.get(key, []) if pairing.names.raw[n] in pairing.tensors]
        short |= {key: place} if fits and not used else {torch: flax}
    return short
