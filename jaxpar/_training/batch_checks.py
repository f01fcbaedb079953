"""batch_checks: validate batches before the step, whose program would fail without naming the leaf."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from .._parallel.replicated import leaf_marks
from .._tree import LazyPaths, check_alive, check_leaves, has_shape, is_array
from .._typing import TreeDef
from ..errors import BatchError

MANY = 3  # an epoch has two shapes: full batches and a shorter last one


class Batches:
    def __init__(self) -> None:
        self._form: TreeDef | None = None
        self._shapes: set[Any] = set()

    def check(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return structure and shapes, for `remember` after the step."""
        leaves, form = jax.tree.flatten((args, kwargs))
        if self._form is not None and form != self._form:
            raise BatchError(
                f"train_step: the batch's structure changed: {self._form} at the first step, {form} now. "
                "Give every batch the same containers, keys and Nones."
            )
        check_batch(args, kwargs, leaves, "train_step")
        shapes = tuple((x.shape, x.dtype) if is_array(x) else None for x in leaves)
        # An empty array shows in its shape, so shapes that have passed are not searched again.
        if shapes not in self._shapes:
            check_rows(args, kwargs, "train_step")
            if len(self._shapes) == MANY - 1:
                warnings.warn(
                    f"train_step: this is the third shape of batches, {[s[0] for s in shapes if s]}, and "
                    "every one is compiled by itself. Drop or pad uneven batches.",
                    stacklevel=3,
                )
        return form, shapes

    def remember(self, form: TreeDef, shapes: tuple) -> None:
        self._form = form
        self._shapes.add(shapes)


def without_torch(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Return the same arguments with torch's CPU tensors as arrays, which share their memory."""
    if not any(map(_of_torch, jax.tree.leaves((args, kwargs)))):
        return args, kwargs
    return jax.tree.map(lambda leaf: np.asarray(leaf) if _of_torch(leaf) else leaf, (args, kwargs))


def _of_torch(leaf: Any) -> bool:
    return type(leaf).__module__.partition(".")[0] == "torch" and hasattr(leaf, "__array__")


def check_batch(args: tuple, kwargs: dict[str, Any], leaves: list, function: str) -> None:
    """Raise LeafError, RangeError, DeletedError; reads only host arrays that JAX would narrow."""
    names = LazyPaths(("batch", args), ("batch", kwargs))
    check_leaves(leaves, names, function)
    check_alive(leaves, names, function)


def empty(args: tuple, kwargs: dict[str, Any]) -> str | None:
    """Return the first array of rows that has no elements, as `path has shape`, or None."""
    marks = leaf_marks((args, kwargs))
    for i, leaf in enumerate(jax.tree.leaves((args, kwargs))):
        if has_shape(leaf) and leaf.size == 0 and not marks[i]:
            names = LazyPaths(("batch", args), ("batch", kwargs))
            return f"{names[i]} has shape {tuple(leaf.shape)}"
    return None


def check_rows(args: tuple, kwargs: dict[str, Any], function: str) -> None:
    """Raise BatchError: a mean of no losses is not a number, and the gradients would be zero."""
    empty_array = empty(args, kwargs)
    if empty_array is not None:
        raise BatchError(
            f"{function}: {empty_array}: the batch is empty. Leave it out; processes that have fewer batches "
            "than others train inside of join()."
        )
