"""Stacks: torch's nn.LSTM holds all layers and directions in one module, Flax has a module for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..._rulebook import Rule
from .tree import Outline, join, last, owner, torch_like

HALVES = ("forward_rnn", "backward_rnn", "forward_layer", "backward_layer")  # of Flax's and Keras's
DEEP = re.compile(r"_l\d+(_reverse)?$")


def members(bare: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if owner(name) == bare and DEEP.search(name)]


def listed(tree: Outline, target: str) -> list[str]:
    """Return the paths in the Flax list of layers named `target`; empty unless all are recurrent."""
    # All or none: with a layer of a different kind in between, positions would not be depths.
    items = [
        path for path in tree.layers if last(path).isdigit() and torch_like(owner(tree.names[path])) == target
    ]
    return items if all(cells(tree, path) for path in items) else []


def units(tree: Outline, paths: Sequence[str], both: bool) -> Iterator[tuple[str, Rule]]:
    """Yield the cells at these paths with their rules; with `both`, every second one is reversed."""
    rules = [cell for path in paths for cell in cells(tree, tree.real_path(path))]
    for i, (path, rule) in enumerate(rules):
        yield path, rule.at_depth(i // 2, i % 2 == 1) if both else rule.at_depth(i)


def alone(rule: Rule, names: Iterable[str]) -> Rule:
    """Return a cell's rule with the names of a one-layer stack if torch's names are a stack's."""
    # Linen creates the cell of `RNN(LSTMCell(4))` as a sibling of the RNN rather than a child.
    return rule.at_depth(0) if rule.torch.endswith("Cell") and any(map(DEEP.search, names)) else rule


def cells(tree: Outline, path: str) -> list[tuple[str, Rule]]:
    """Return the recurrent cells at a path in torch's order; two for a Bidirectional."""
    layer = tree.layers.get(path)
    # nnx.Bidirectional and nnx.RNN are containers of cells; torch has no modules for cells in a stack.
    halves = [half for half in HALVES if hasattr(layer, half)]
    if halves:
        return [cell for half in halves for cell in cells(tree, join(path, half))]
    if hasattr(layer, "cell") and join(path, "cell") in tree.layers:
        return cells(tree, join(path, "cell"))
    rule = tree.rule(path)
    return [(path, rule)] if rule and rule.torch.endswith("Cell") else []
