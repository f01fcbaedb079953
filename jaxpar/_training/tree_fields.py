"""tree_fields: a tree of arrays as attributes of one NNX object, so that a step trains it like any module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._typing import PyTree, Static

KindOf = Callable[[str, Any], Any]


class TreeFields:
    """The leaves of `tree` as Variables of `owner`, each named by its path.

    `kind_of(name, leaf)` returns a leaf's type of Variable, or None for a leaf that is code and not data (an
    activation, a text), which is a part of the compiled program.
    """

    def __init__(self, owner: Any, tree: PyTree, kind_of: KindOf):
        pairs, form = jax.tree.flatten_with_path(tree)
        self.form, self.names = Static(form), _names([path for path, _ in pairs])
        self._name_at = {path: name for name, (path, _) in zip(self.names, pairs, strict=True)}
        statics: list[Static | None] = []
        for name, (_, leaf) in zip(self.names, pairs, strict=True):
            kind = kind_of(name, leaf)
            statics.append(Static(leaf) if kind is None else None)
            if kind is not None:
                setattr(owner, name, kind(_array(leaf)))
        self.statics = tuple(statics)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeFields) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.names, self.form, self.statics

    def fits(self, tree: PyTree, kind_of: KindOf) -> bool:
        """Whether a tree differs from this one in nothing but its arrays."""
        leaves, form = jax.tree.flatten(tree)
        return Static(form) == self.form and self.statics == tuple(
            Static(leaf) if kind_of(name, leaf) is None else None
            for name, leaf in zip(self.names, leaves, strict=True)
        )

    def read(self, owner: Any) -> PyTree:
        return self.tree_of(lambda name: getattr(owner, name)[...])

    def tree_of(
        self, value_of: Callable[[str], Any], static_of: Callable[[Any], Any] = lambda leaf: leaf
    ) -> PyTree:
        """Return the tree with `value_of(name)` for every array, `static_of(leaf)` for other leaves."""
        pairs = zip(self.names, self.statics, strict=True)
        leaves = [value_of(name) if static is None else static_of(static.value) for name, static in pairs]
        return self.form.value.unflatten(leaves)

    def by_name(self, tree: PyTree) -> dict[str, Any]:
        """Return the leaves of a part of the tree by their names."""
        return {self._name_at[path]: leaf for path, leaf in jax.tree.leaves_with_path(tree)}

    def write(self, owner: Any, tree: PyTree) -> None:
        """Set the arrays of a part of the tree."""
        for path, value in jax.tree.leaves_with_path(tree):
            name = self._name_at.get(path)
            if name is None:
                raise ValueError(
                    f"train_step: {dotted(path)} is another leaf than the module's variables had at first; "
                    "put what a forward makes into the loss function's aux instead."
                )
            if hasattr(owner, name):
                getattr(owner, name)[...] = value


def dotted(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _names(paths: list[Any]) -> tuple[str, ...]:
    names = tuple(map(dotted, paths))
    if len(set(names)) < len(names):  # {"a.b": x, "a": {"b": y}}
        names = tuple("".join(map(str, path)) for path in paths)
    return names


def _array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)
