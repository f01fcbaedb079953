"""to_torch: convert a Flax model's weights to a torch state_dict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..._rulebook import Part, Rule
from ...errors import MatchError, UninitializedError
from .._tensors import tensor_of
from . import layouts, stacks
from .copying import aligned_copy, on_all_cores
from .fusion import piece_names, whole_name
from .mapping import Concatenated, Entries, Plain, Split, Stacked, Target, Transposed, path_of
from .pairing import Links, leaf_part
from .reversible import Arrays, Inverted, Move, Moves, OnlyRename, SplitAxis, empty
from .source import TorchWeights, WeightSource, source_of
from .tree import FlaxModule, Outline, Tree, Variables, inside, join, prefixes, tree_of
from .unmatched import complete_links
from .unstacked import Key, expanded, unstacked


def to_torch(
    flax_module: FlaxModule,
    *,
    like: TorchWeights | None = None,
    mapping: Entries | None = None,
    ignore_torch: Iterable[str] = (),
    ignore_flax: Iterable[str] = (),
    inputs: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    variables: Variables | None = None,
    numpy: bool = False,
) -> dict[str, Any]:
    """Convert a Flax model's weights to a state_dict with torch's names, layouts and layers.

    Args:
      flax_module: an NNX module, or a Linen module with `inputs` and `variables`.
      like: a torch module, state_dict or path that determines the names; by default the names are the Flax
        paths, changed by `mapping`.
      mapping, ignore_torch, ignore_flax, inputs, kwargs, variables: as in `load_torch`, which is the inverse
        for the same mapping.
      numpy: return NumPy arrays instead of torch tensors; does not need torch.

    Returns:
      Copies, in the order of the model's layers, or of `like`. Where Flax merges the two biases of torch's
      recurrent layers, the second is zero. `num_batches_tracked` of Flax's own BatchNorm is 0.

    Raises:
      MatchError: names or shapes do not fit.
      UninitializedError: leaves have no values.
      ModuleNotFoundError: torch is not installed, and `numpy` is False.

    torch counterpart: `module.state_dict()`.

    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> state_dict = parity.to_torch(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), numpy=True)
    >>> {name: array.shape for name, array in state_dict.items()}
    {'weight': (3, 2), 'bias': (3,)}
    """
    tree = tree_of(flax_module, inputs, kwargs, variables)
    source = implied_source(tree, mapping, ignore_flax) if like is None else source_of(like)
    links = complete_links(tree, source, mapping, ignore_torch, ignore_flax, "to_torch")
    leaves = {}
    for path, value in tree.values().items():
        if isinstance(value, jax.ShapeDtypeStruct):
            raise UninitializedError(
                f"to_torch: {path} is a shape without values; give variables= for a Linen module, or build "
                "the NNX module."
            )
        leaves[path] = np.asarray(value)
    tensors = state_dict(links, leaves, source)
    if numpy:
        return dict(tensors)
    # One tensor per array, so that tied names share their tensor as in torch's own state_dict.
    owned = {id(array): tensor_of(array) for array in tensors.values()}
    return {name: owned[id(array)] for name, array in tensors.items()}


def state_dict(links: Links, leaves: Mapping[str, np.ndarray], source: WeightSource) -> dict[str, np.ndarray]:
    """Tied tensors share one array."""
    converted = {**links.to_torch(leaves), **links.surplus}
    order = [name for name in source.tensors if name in converted]
    first = {name: min((name, *links.tied.get(name, ())), key=order.index) for name in order}
    owners = list(dict.fromkeys(first.values()))
    arrays = dict(zip(owners, on_all_cores(aligned_copy, (converted[name] for name in owners)), strict=True))
    return {name: arrays[first[name]] for name in order}


def implied_source(tree: Tree, mapping: Entries | None, ignored: Iterable[str]) -> WeightSource:
    left_out = {name for path in ignored for name in (path, tree.real_path(path))}
    arrays = _with_fusions(tree, mapping or {}, left_out)
    prefix = "module." if tree.wrapped else ""
    return WeightSource({prefix + name: x for name, x in arrays.items()}, {}, (), False, "to_torch")


def _torch_arrays(tree: Outline, mapping: Plain, ignored: set[str]) -> Arrays:
    """Without values: of mapped leaves, then of layers, then of all other leaves."""
    arrays: Arrays = {}
    leaves = {path: empty(leaf.shape, leaf.dtype) for path, leaf in tree.leaves.items()}
    leaves |= {alias: leaves[path] for alias, path in tree.aliases.items()}
    under: dict[str, list[str]] = {}
    for leaf in leaves:
        for path in prefixes(leaf):
            under.setdefault(path, []).append(leaf)
    unclaimed = {path for path in leaves if not any(inside(path, name) is not None for name in ignored)}

    def claim(*moves: Part | Move) -> None:
        claimed = {leaf: leaves[leaf] for move in moves for leaf in move.flax}
        arrays.update(Moves((moves,)).backward_shapes(claimed))
        unclaimed.difference_update(claimed)

    for key, target in mapping.items():
        path = tree.real_path(path_of(target) or "")
        part = leaf_part(tree, path, key, target) if path in leaves else None
        if part:
            claim(dataclasses.replace(part, torch=(key,), flax=(path,)))
    targets = {tree.real_path(path_of(target) or "") for target in mapping.values()}
    for path, torch_layer, rule in _layers(tree, mapping):
        # Leaves that the mapping sends elsewhere are not this layer's: four Linears replace an attention.
        elsewhere = {target for target in targets if target != path and inside(target, path)}
        nested = [leaf for leaf in under.get(path, ()) if not elsewhere & set(prefixes(leaf))]
        shapes = {inside(leaf, path) or "": leaves[leaf].shape for leaf in nested if leaf in unclaimed}
        rule = layouts.implied_rule(rule, tree, path)
        scale = layouts.scale_of(tree, path)
        shapes |= {scale: leaves[scale].shape} if scale in unclaimed else {}
        parts = rule.parts_of_flax(shapes)
        claim(*(_with_full_names(part, torch_layer, path, scale) for part in parts))
        arrays |= {join(torch_layer, name): x for name, x in rule.surplus.items()} if parts else {}
    remaining = [leaf for leaf in leaves if leaf in unclaimed]
    claim(*(Move((torch_path(tree, leaf, mapping),), (leaf,), OnlyRename()) for leaf in remaining))
    return arrays


def _with_full_names(part: Part, torch_layer: str, path: str, scale: str | None) -> Part:
    leaves = tuple(leaf if leaf == scale else join(path, leaf) for leaf in part.flax)
    return dataclasses.replace(part, torch=tuple(join(torch_layer, n) for n in part.torch), flax=leaves)


def _layers(tree: Outline, mapping: Plain) -> Iterator[tuple[str, str, Rule]]:
    stacked = set()
    for key, target in mapping.items():
        if isinstance(target, (tuple, list)):
            both = sum(len(stacks.cells(tree, tree.real_path(path))) for path in target) == 2 * len(target)
            for path, rule in stacks.units(tree, target, both):
                stacked.add(path)
                yield path, key, rule
    for path in tree.layers:
        layer_rule = tree.rule(path)
        if layer_rule and path not in stacked:
            yield path, torch_path(tree, path, mapping), layer_rule


def torch_path(tree: Outline, path: str, mapping: Plain) -> str:
    best = (-1, tree.names[path])
    for key, entry in mapping.items():
        # A transposed entry applies to one array only, not to nested names.
        target = None if isinstance(entry, Transposed) else path_of(entry)
        suffix = None if target is None else inside(path, tree.real_path(target))
        if target is not None and suffix is not None and len(target) > best[0]:
            best = (len(target), join(key, suffix))
    return best[1]


def _with_fusions(model: Tree, mapping: Entries, ignored: set[str]) -> Arrays:
    """Return torch's arrays, without values, of a model with stacked or fused layers."""
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
    fusions = [(key, target) for key, target in others if isinstance(target, Split | Concatenated)]
    entries |= {
        key: target
        for key, target in others
        if isinstance(key, str) and not isinstance(target, Split | Concatenated)
    }
    for key, target in fusions:
        entries |= _paired_entries(tree, key, target)
    arrays = _torch_arrays(tree, entries, ignored)
    # Backward, because these arrays are as `pairing` sees them: concatenated ones are split to torch's, and
    # pieces are concatenated. The sizes come from the Flax layers, so no torch model is needed.
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
