"""Variants of the example: inputs with exact zeros, padding, bounds, ties and repeated rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import torch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def zeros(x: Any) -> Any:
    """Replace negative numbers, the last row, and the end of rows of integers and of masks by zeros."""
    if not isinstance(x, torch.Tensor) or x.ndim == 0:
        return x
    x = x.detach().clone()
    end = x[..., -max(1, x.shape[-1] // 4) :]
    if x.dtype is torch.bool:
        end.logical_not_()
    elif x.is_floating_point():
        x.clamp_(min=0)
        x[1:][-1:] = 0
    elif not x.is_complex():
        end.zero_()
    return x


def ties(x: Any) -> Any:
    """Round to multiples of 1/2 between -1 and 1, and repeat the first row."""
    if not isinstance(x, torch.Tensor) or x.ndim == 0:
        return x
    x = x.detach().clone()
    if x.is_floating_point():
        x = (2 * x).round().clamp(-2, 2) / 2
    # Of the lengths of sequences the longest one decides torch's shapes, and stays.
    is_integer = not (x.is_floating_point() or x.is_complex() or x.dtype is torch.bool)
    is_lengths = is_integer and x.ndim == 1 and len(x) > 1
    x[:2] = x[:2].max() if is_lengths else x[:1]
    return x


VARIANTS: dict[str, Callable[[Any], Any]] = {"the example": lambda x: x, "zeros": zeros, "ties": ties}


def variants(inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Arguments]:
    """Return the arguments by the variants' names. `copy`, because a module may write to its arguments."""
    arguments = tuple(inputs), dict(kwargs)
    return {name: mapped(change, copy.deepcopy(arguments)) for name, change in VARIANTS.items()}


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree with its tensors changed; dicts keep the order of their keys.

    A tensor that occurs twice is changed once and stays one object, because models ask `query is key`.
    """
    return _mapped(once_each(change), tree)


def once_each(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function with one result for each object."""
    results: dict[int, tuple[Any, Any]] = {}

    def changed(x: Any) -> Any:
        if id(x) not in results:
            results[id(x)] = x, change(x)  # x keeps its id as long as it is stored
        return results[id(x)][1]

    return changed


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    if type(tree) in (tuple, list):
        return type(tree)(_mapped(change, x) for x in tree)
    if type(tree) is dict:
        return {key: _mapped(change, x) for key, x in tree.items()}
    return jax.tree.map(change, tree, is_leaf=lambda x: isinstance(x, torch.Tensor))
