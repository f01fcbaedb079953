"""Return complete links, or raise a MatchError that lists the unmatched names of both models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as MappingABC
from functools import partial

from ..._typing import Shape
from ...errors import MatchError
from .fusion import PairingView
from .guesses import Guesses
from .mapping import Entries, Plain, ignored, like, path_of
from .pairing import Links, Pairing, pair
from .source import WeightSource
from .tree import Outline, inside

SHOWN = 12  # Maximum number of lines of each list in an error


def complete_links(
    tree: Outline,
    source: WeightSource,
    mapping: Entries | None = None,
    ignore_torch: Iterable[str] = (),
    ignore_flax: Iterable[str] = (),
    function: str = "load_torch",
) -> Links:
    entries = dict(mapping or {})
    no_torch, unknown_t = ignored(source.tensors, ignore_torch, "ignore_torch")
    no_flax, unknown_f = ignored(tree.leaves, ignore_flax, "ignore_flax")
    view = PairingView(tree, source.without(no_torch), entries)
    pairing = pair(view.tree, view.source, view.entries, view.paired_leaves(no_flax))
    torch, flax = pairing.left_in_torch(), pairing.left_in_flax()
    # Faults in the arguments are listed first, because a typo there leaves names unmatched on both sides.
    faults = [*view.faults, *_unknown_entries(pairing, view.entries), *unknown_t, *unknown_f, *pairing.faults]
    if torch or flax or faults:
        guessed = Guesses(tree, source, entries, no_torch, no_flax).mapping()
        new = {key: target for key, target in guessed.items() if key not in entries}
        raise MatchError(_complaint(pairing, function, torch, flax, faults, new))
    return dataclasses.replace(
        view.links(pairing.links()), ignored=frozenset(no_flax), ignored_torch=tuple(sorted(no_torch))
    )


def _unknown_entries(pairing: Pairing, entries: Plain) -> Iterable[str]:
    names, tree = pairing.names, pairing.tree
    for key, target in entries.items():
        # The user's key may have prefixes of wrappers; the error shows it unchanged.
        bare = next((b for b in names.entries if b == key or key.endswith("." + b)), key)
        if bare and bare not in names.descendants:
            yield f"mapping: torch has no {key!r}{like(key, names.descendants)}"
        for single in target if isinstance(target, (tuple, list)) else (target,):
            path = path_of(single)
            if path is None:
                yield f"mapping: {key!r}: {single!r} is no Flax path"
            elif not any(inside(flax_path, tree.real_path(path)) is not None for flax_path in tree.names):
                yield f"mapping: the Flax model has no {path!r}{like(path, tree.names)}"


def _with_nearest(names: MappingABC[str, Shape], candidates: MappingABC[str, Shape], name: str) -> str:
    sized = [other for other, its in candidates.items() if sorted(its) == sorted(names[name])]
    near = like(name, candidates) or (f"; of its sizes are {', '.join(sized[:2])}" if sized else "")
    return f"{name} {names[name]}{near}"


def _complaint(
    pairing: Pairing,
    function: str,
    torch: Sequence[str],
    flax: Sequence[str],
    faults: Sequence[str],
    entries: Entries,
) -> str:
    source, tree = pairing.source, pairing.tree
    lines = [f"{function}: {source.label} and the Flax model do not match.", *_listed("  ", faults)]
    torch_shapes = {name: source.shapes[name] for name in torch}
    flax_shapes = {leaf: tree.leaves[leaf].shape for leaf in flax}
    for names, other, heading in (
        (torch_shapes, flax_shapes, f"{len(torch)} of torch's {len(source.tensors)} tensors have no place:"),
        (flax_shapes, torch_shapes, f"{len(flax)} of Flax's {len(tree.leaves)} leaves get nothing:"),
    ):
        if names:
            lines.append(f"  {heading}")
            lines += _listed("    ", list(names), partial(_with_nearest, names, other))
    if any("parametrizations." in name for name in torch):
        lines.append(
            "  torch computes a weight from its parametrizations. torch.nn.utils.parametrize."
            "remove_parametrizations makes it one tensor; linen.WeightNorm and jaxpar.nn.WeightNorm have two."
        )
    if entries:
        shown = ", ".join(f"{key!r}: {target!r}" for key, target in list(entries.items())[:4])
        more = ", ..." if len(entries) > 4 else ""
        lines.append(
            "  By order and shape this may be meant, and nothing of it was done: "
            f"mapping={{{shown}{more}}}; parity.match(...) prints all of it."
        )
    elif torch or flax:
        lines.append(
            '  Say what belongs together: mapping={"torch.name": "flax.path"}, or leave it out by '
            "name: ignore_torch=[...], ignore_flax=[...]."
        )
    return "\n".join(lines)


def _listed(indent: str, names: Sequence[str], line: Callable[[str], str] = str) -> list[str]:
    shown = [indent + line(name) for name in names[:SHOWN]]
    return [*shown, f"{indent}and {len(names) - SHOWN} more"] if len(names) > SHOWN else shown
