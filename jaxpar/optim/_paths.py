"""Paths of leaves as strings: `layers/0/kernel`."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax

KeyPath: TypeAlias = tuple[Any, ...]


def leaf_path(path: KeyPath) -> str:
    """Join the keys by slashes, without the `value` of a Flax variable."""
    if path and isinstance(path[-1], jax.tree_util.GetAttrKey) and path[-1].name == "value":
        path = path[:-1]
    return jax.tree_util.keystr(path, simple=True, separator="/")
