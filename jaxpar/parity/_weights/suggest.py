"""suggest: which layers may belong together, by order, kind and shapes: guesses for people to read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..._rulebook import Rule
from ..._typing import Shape
from .mapping import Target
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
class LayerGroup:
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
) -> tuple[dict[str, Target], dict[str, str]]:
    """Entries for a mapping, and the reason for each.

    Args:
      torch, flax: the names and leaves that are left over.
    """
    guessed, reasons = entries(groups(pairing, torch, flax), pairing)
    turned = turns(pairing)
    targets = {**guessed, **{name: target for turn in turned for name, target in turn.entries().items()}}
    return targets, reasons | {name: turn.reason() for turn in turned for name, _ in turn.pairs}


def groups(
    pairing: Pairing, torch: Sequence[str], flax: Sequence[str], calls: Calls | None = None
) -> list[LayerGroup]:
    """Layers are paired if there are as many of their kind left over here as there.

    Args:
      torch, flax: the names and leaves that are left over.
      calls: the order to go by, if it is known; else that of definition.
    """
    # Layers that are paired already have single arrays left over, which `turns` is for.
    alone = {name for turn in turns(pairing) for both in turn.pairs for name in both}
    flax_layers = _flax_layers(pairing, [leaf for leaf in flax if leaf not in alone])
    torch_layers = _torch_layers(pairing, [name for name in torch if name not in alone])
    layer_groups = []
    for signature in dict.fromkeys(torch_layers.values()):
        flax_paths = [path for path, s in flax_layers.items() if s == signature]
        torch_paths = [path for path, s in torch_layers.items() if s == signature]
        if len(flax_paths) != len(torch_paths):
            continue  # order says nothing where one of them is missing, and it is not known which
        if calls:
            torch_paths, flax_paths = (
                sorted(paths, key=lambda path: order.get(path, len(order)))
                for paths, order in zip((torch_paths, flax_paths), calls, strict=True)
            )
        sizes = ", ".join(f"{name} {shape}" for name, shape in sorted(signature))
        paired_flax, paired_torch, why = zip(*_paired(flax_paths, torch_paths), strict=True)
        layer_groups.append(
            LayerGroup(paired_torch, paired_flax, tuple(f"guessed: {reason} with {sizes}" for reason in why))
        )
    return layer_groups


def entries(layer_groups: Iterable[LayerGroup], pairing: Pairing) -> tuple[dict[str, str], dict[str, str]]:
    """Entries for a mapping, shortened, and the reason for each."""
    layer_groups = list(layer_groups)
    pairs = {torch: flax for g in layer_groups for torch, flax in zip(g.torch, g.flax, strict=True)}
    reasons = {torch: why for g in layer_groups for torch, why in zip(g.torch, g.reasons, strict=True)}
    short = _shortened(pairs, pairing)
    return short, {key: reasons.get(key, "guessed, from what is below it") for key in short}


def _paired(flax_paths: list[str], torch_paths: list[str]) -> Iterator[tuple[str, str, str]]:
    """Those with the same last word, or another word for the same, first; then the rest, in order."""
    if len(flax_paths) == 1:
        yield flax_paths[0], torch_paths[0], "the only one"
        return
    for role in dict.fromkeys(_role(path) for path in torch_paths):
        flax_matches = [path for path in flax_paths if _role(path) == role]
        torch_matches = [path for path in torch_paths if _role(path) == role]
        if flax_matches and len(flax_matches) == len(torch_matches):
            for i, pair in enumerate(zip(flax_matches, torch_matches, strict=True), 1):
                yield *pair, f"{last(pair[1])} number {i} of {len(flax_matches)}"
            flax_paths = [path for path in flax_paths if path not in flax_matches]
            torch_paths = [path for path in torch_paths if path not in torch_matches]
    for i, pair in enumerate(zip(flax_paths, torch_paths, strict=True), 1):
        yield *pair, f"number {i} of {len(flax_paths)}"


ROLES = {
    "query": "query q q_proj q_lin to_q wq query_proj linear_q q_linear",
    "key": "key k k_proj k_lin to_k wk key_proj linear_k k_linear",
    "value": "value v v_proj v_lin to_v wv value_proj linear_v v_linear",
    "out": "out o o_proj out_proj out_lin to_out wo output_proj linear_out out_linear",
}
"""Words for the four projections of an attention."""
ROLE = {name: role for role, names in ROLES.items() for name in names.split()}


def _role(path: str) -> str:
    return ROLE.get(last(path), last(path))


def _torch_layers(pairing: Pairing, names: Sequence[str]) -> dict[str, Signature]:
    """The leftovers of torch's layers, by the layers' own names."""
    shapes_by_layer: dict[str, set[tuple[str, Shape]]] = {}
    # Counters have no place in Flax, and would make every BatchNorm a layer of another kind.
    surplus = set(pairing.surplus) | {n for n in names if n.endswith("num_batches_tracked")}
    for raw in names:
        path = _layer_of(pairing, pairing.names.bare[raw])
        suffix = inside(pairing.names.bare[raw], path) or ""
        shapes_by_layer.setdefault(path, set())
        if raw not in surplus:
            shapes_by_layer[path].add((suffix, pairing.source.shapes[raw]))
    return {path: frozenset(shapes) for path, shapes in shapes_by_layer.items() if shapes}


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
    unpaired = set(leaves)
    signatures: dict[str, Signature] = {}
    torchs = pairing.left_in_torch()
    packed = any(PACKED.search(name) for name in torchs)
    for path in tree.layers:
        rule = tree.rule(path)
        rule = rule and alone(rule, torchs)
        if rule and rule.torch == "MultiheadAttention" and not packed:
            continue  # torch has none, so its four projections are layers of their own
        prefix = path + "." if path else ""
        leaf_names = {leaf[len(prefix) :] for leaf in unpaired if leaf.startswith(prefix)}
        if rule and leaf_names:
            shapes = {name: tree.leaves[prefix + name].shape for name in leaf_names}
            torch_shapes = _torch_shapes(rule, shapes)
            if torch_shapes:
                signatures[path] = frozenset(
                    (n, s) for n, s in torch_shapes.items() if n != "num_batches_tracked"
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
    """None for leaves that are not as the layer's own class makes them."""
    try:
        return rule.torch_shapes(shapes)
    except ValueError:
        return {}


def _shortened(pairs: dict[str, str], pairing: Pairing) -> dict[str, str]:
    """Entries for whole blocks: "a.0.fc": "b.0.fc" becomes "a": "b" if that holds for all below it."""
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
