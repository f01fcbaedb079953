"""batch: what is said of batches before any of them is used."""

from __future__ import annotations

import warnings
from typing import Any

import jax

from .._tree import check_alive, check_leaf, is_array, paths
from .._typing import TreeDef
from ..errors import BatchError

MANY = 3
"""An epoch has two shapes, that of its batches and that of the last one."""


class Batches:
    """Remembers structures and shapes, to warn of a program for every one of them."""

    def __init__(self) -> None:
        self._form: TreeDef | None = None
        self._shapes: set[Any] = set()

    def check(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Structure and shapes, for `remember` once the step was made.

        Raises BatchError, LeafError, RangeError, DeletedError, before anything has happened.
        """
        leaves, form = jax.tree.flatten((args, kwargs))
        if self._form is not None and form != self._form:
            raise BatchError(
                f"train_step: the batch's structure changed: {self._form} at the first step, {form} now. "
                "Give every batch the same containers, keys and Nones."
            )
        shapes = tuple((x.shape, x.dtype) if is_array(x) else None for x in leaves)
        if shapes not in self._shapes:
            self._see(args, kwargs, leaves, shapes)
        check_alive(leaves, _Lazy(args, kwargs), "train_step")
        return form, shapes

    def remember(self, form: TreeDef, shapes: tuple) -> None:
        """A batch that raised is no measure for those after it."""
        self._form = form
        self._shapes.add(shapes)

    def _see(self, args: tuple, kwargs: dict[str, Any], leaves: list, shapes: Any) -> None:
        for leaf, name in zip(leaves, _names(args, kwargs), strict=True):
            check_leaf(leaf, name, "train_step")
            if is_array(leaf) and leaf.size == 0:
                raise BatchError(f"train_step: {name} has shape {tuple(leaf.shape)}: the batch is empty.")
        if len(self._shapes) == MANY - 1:
            warnings.warn(
                f"train_step: this is the third shape of batches, {[s[0] for s in shapes if s]}, and every "
                "one is compiled by itself. Drop or pad uneven batches.",
                stacklevel=4,
            )


class _Lazy:
    """Names that are made only for an error."""

    def __init__(self, args: tuple, kwargs: dict[str, Any]):
        self._tree = args, kwargs

    def __getitem__(self, i: int) -> str:
        return _names(*self._tree)[i]


def _names(args: tuple, kwargs: dict[str, Any]) -> list[str]:
    return paths(args, "batch") + paths(kwargs, "batch")
