"""Backward: the gradients of a call, so that operations with gradients of their own are seen running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..._sides.torch_side import named_leaves
from .scope import defined_by_user


def has_functions() -> bool:
    """Return whether the user has defined a torch.autograd.Function."""
    return any(defined_by_user(kind) for kind in torch.autograd.Function.__subclasses__())


def differentiate(outputs: Any) -> None:
    """Run the backward pass of the outputs that come from a torch.autograd.Function."""
    terms = [x for x in named_leaves(outputs).values() if x.requires_grad and any(map(_is_python, _nodes(x)))]
    gradients = [torch.ones_like(term) for term in terms]
    if terms:
        torch.autograd.backward(terms, gradients)


def _nodes(x: torch.Tensor) -> Iterator[Any]:
    """Yield the nodes of the graph that made an array."""
    waiting, visited = [x.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            yield node
            waiting += [other for other, _ in node.next_functions]


def _is_python(node: Any) -> bool:
    return isinstance(node, torch.autograd.function.BackwardCFunction)
