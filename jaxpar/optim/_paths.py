"""How a leaf is called: `layers/0/kernel`."""

from __future__ import annotations

from typing import Any

import jax

from .._typing import PyTree


def name(path: tuple[Any, ...]) -> str:
    """The keys with slashes between; the `value` inside of a Flax variable is not a part of the name."""
    if path and isinstance(path[-1], jax.tree_util.GetAttrKey) and path[-1].name == "value":
        path = path[:-1]
    return jax.tree_util.keystr(path, simple=True, separator="/")


def names(tree: PyTree) -> list[str]:
    return [name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
