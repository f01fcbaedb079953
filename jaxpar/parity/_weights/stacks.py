"""Stacks: torch's nn.LSTM holds all its layers and directions in one module, Flax has a module for each.

torch calls its tensors `weight_ih_l0`, `weight_ih_l0_reverse`, `weight_ih_l1`: in this order a stack of
Flax is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..._rulebook import Rule
from .paths import join, last, owner, torch_like
from .tree import Outline

DEEP = re.compile(r"_l\d+(_reverse)?$")


def members(bare: str, names: Iterable[str]) -> list[str]:
    """The names right below a path that are tensors of a stack."""
    return [name for name in names if owner(name) == bare and DEEP.search(name)]


def listed(tree: Outline, target: str) -> list[str]:
    """The items of the list of layers that has the stack's own name; empty if some are not recurrent."""
    items = [
        path for path in tree.layers if last(path).isdigit() and torch_like(owner(tree.names[path])) == target
    ]
    return items if all(cells(tree, path) for path in items) else []


def units(tree: Outline, paths: Sequence[str], both: bool) -> Iterator[tuple[str, Rule]]:
    """The cells at these paths, each with its rule at its depth and direction in torch's stack.

    Args:
      both: whether torch's stack has two directions, so that every second cell is the reversed one.
    """
    rules = [cell for path in paths for cell in cells(tree, tree.real_path(path))]
    for i, (path, rule) in enumerate(rules):
        yield path, rule.at_depth(i // 2, i % 2 == 1) if both else rule.at_depth(i)


def alone(rule: Rule, names: Iterable[str]) -> Rule:
    """A cell's rule as that of a stack of one layer, if torch's names are those of a stack.

    Linen makes the cell of `RNN(LSTMCell(4))` beside the RNN and not inside of it.
    """
    return rule.at_depth(0) if rule.torch.endswith("Cell") and any(map(DEEP.search, names)) else rule


def cells(tree: Outline, path: str) -> list[tuple[str, Rule]]:
    """The recurrent cells at a path, in torch's order: both of a Bidirectional."""
    layer = tree.layers.get(path)
    # nnx.Bidirectional and nnx.RNN hold cells; torch has no module for a cell inside of a stack.
    halves = [half for half in ("forward_rnn", "backward_rnn") if hasattr(layer, half)]
    if halves:
        return [cell for half in halves for cell in cells(tree, join(path, half))]
    if hasattr(layer, "cell") and join(path, "cell") in tree.layers:
        return cells(tree, join(path, "cell"))
    rule = tree.rule(path)
    return [(path, rule)] if rule and rule.torch.endswith("Cell") else []
