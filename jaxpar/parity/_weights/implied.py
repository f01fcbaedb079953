"""Implied: torch's names and shapes, derived from the Flax model alone and a mapping with fusions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...errors import MatchError
from .fusion import piece_names, whole_name
from .mapping import Concatenated, Entries, Plain, Split, Stacked, Target, path_of
from .reversible import Arrays, Inverted, Move, Moves, SplitAxis
from .tree import Outline, Tree, inside, join
from .unstacked import Key, expanded, unstacked


def names(
    model: Tree, mapping: Entries, ignored: set[str], plain: Callable[[Outline, Plain, set[str]], Arrays]
) -> Arrays:
    """Return torch's arrays, without values; `plain` returns them for an unstacked model without fusions."""
    tree: Outline = model
    entries: dict[str, Target] = {}
    stacks = {key: target for key, target in mapping.items() if isinstance(target, Stacked)}
    for key, target in _expanded(tree, stacks):
        assert isinstance(target, Stacked)
        try:
            tree, _, paths = unstacked(tree, tree.real_path(target.path), target.axis)
        except ValueError as error:
            raise MatchError(f"to_torch: mapping: {key!r}: {target!r}: {error}.") from None
        ignored |= {new for new, old in paths.items() if any(inside(old, n) is not None for n in ignored)}
        keys = {key: ""} if isinstance(key, str) else {layer: str(i) for i, layer in enumerate(key)}
        entries |= {layer: join(target.path, number) for layer, number in keys.items()}
    # Patterns refer to the layers as in torch, so they are expanded after unstacking.
    others = _expanded(tree, {key: target for key, target in mapping.items() if key not in stacks})
    fusions = [(key, target) for key, target in others if isinstance(target, (Split, Concatenated))]
    entries |= {
        key: target
        for key, target in others
        if isinstance(key, str) and not isinstance(target, (Split, Concatenated))
    }
    for key, target in fusions:
        entries |= _paired_entries(tree, key, target)
    arrays = plain(tree, entries, ignored)
    # Backward, because `plain` returns the arrays as `pairing` sees them: concatenated ones are split to
    # torch's, and pieces are concatenated. The sizes come from the Flax layers, so no torch model is needed.
    for key, target in fusions:
        moves = list(
            _concatenation(arrays, key, target)
            if isinstance(target, Concatenated)
            else _split(arrays, str(key), target)
        )
        try:
            arrays = Moves((moves,)).backward_shapes(arrays)
        except ValueError as error:
            raise MatchError(f"to_torch: mapping: {key!r}: {target!r}: {error}.") from None
    return arrays


def _expanded(tree: Outline, mapping: Entries) -> list[tuple[Key, Target]]:
    return list(expanded(mapping, None, [*tree.names, *tree.leaves]))


def _paired_entries(tree: Outline, key: Key, target: Split | Concatenated) -> dict[str, Target]:
    if isinstance(target, Concatenated):
        return {whole_name(key, ""): target.target}
    is_leaf = tree.real_path(path_of(target.targets[0]) or "") in tree.leaves
    pieces = piece_names(str(key), "" if is_leaf else "*", len(target.targets))
    return {name.removesuffix(".*"): path for name, path in zip(pieces, target.targets, strict=True)}


def _concatenation(arrays: Arrays, key: Sequence[str], target: Concatenated) -> Iterator[Move]:
    for name, array in arrays.items():
        suffix = inside(name, whole_name(key, ""))
        if suffix is None:
            continue
        shape, count = array.shape, len(key)
        length = shape[target.axis] if -len(shape) <= target.axis < len(shape) else 0
        cut = SplitAxis(target.axis, target.sizes or (length // count,) * count, target.groups)
        if fault := cut.fault(shape):
            raise MatchError(
                f"to_torch: {name} {shape} cannot become {', '.join(key)}: {fault}. Give like=, or "
                "parity.concatenated(..., sizes=...)."
            )
        yield Move(tuple(join(layer, suffix) for layer in key), (name,), Inverted(cut))


def _split(arrays: Arrays, key: str, target: Split) -> Iterator[Move]:
    for name in arrays:
        # Only the first piece yields a move. An empty suffix means that the key is the name of an array.
        suffix = "" if name == piece_names(key, "", 1)[0] else inside(name, f"{key}[0]")
        if suffix is None:
            continue
        pieces = piece_names(key, suffix, len(target.targets))
        if name == pieces[0]:
            sizes = tuple(arrays[piece].shape[target.axis] for piece in pieces)
            yield Move((join(key, suffix),), pieces, SplitAxis(target.axis, sizes, target.groups))
