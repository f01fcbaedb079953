"""Turns: guess name and axis order of arrays in Flax layers without a rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..._typing import Shape
from .mapping import Target, Transposed
from .pairing import Pairing
from .paths import last, owner

NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}  # torch's names by Flax's usual ones


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
    pairs_by_kind: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    axes_by_kind: dict[tuple[str, str, str], list[set[tuple[int, ...]]]] = {}
    for torch, flax in _lone(pairing):
        shapes = pairing.source.shapes[torch], pairing.tree.leaves[flax].shape
        axes = possible(*shapes)
        layer = pairing.tree.layers.get(owner(flax))
        key = type(layer).__name__, last(flax), last(torch)
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
    turned = leaf == "kernel" and n > 1
    return NAMES.get(leaf, leaf), (shape[-1], shape[-2], *shape[:-2]) if turned else shape


def _lone(pairing: Pairing) -> Iterator[tuple[str, str]]:
    """Yield (torch name, Flax leaf) for paired layers with exactly one unpaired array on either side."""
    names, tree = pairing.names, pairing.tree
    left_torch = [names.bare[raw] for raw in pairing.left_in_torch()]
    left_flax = pairing.left_in_flax()
    for path in tree.layers:
        flax_leaves = [leaf for leaf in left_flax if owner(leaf) == path]
        if tree.rule(path) or len(flax_leaves) != 1:
            continue
        for bare in names.leading_to(path):
            torch_names = [name for name in left_torch if owner(name) == bare]
            if len(torch_names) == 1:
                yield names.raw[torch_names[0]], flax_leaves[0]
