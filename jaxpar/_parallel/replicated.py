"""replicated: arguments that hold no rows, of which every replica gets all.

A mark is a node of the arguments' tree. The loss of a step computes with its arguments, so marked arrays are
plain in a loss, and `scatter` finds them by identity.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Container, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .._tree import has_shape, is_array, is_key
from .._typing import PyTree
from .modules.bundle import is_object
from .modules.definition import fold


@dataclasses.dataclass(frozen=True)
class _NoName:
    """The step of a path from a mark to its value: a reader's paths do not show it."""

    def __str__(self) -> str:
        return ""


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class Replicated:
    """What `replicated` returns: a pytree node with the marked tree, `value`."""

    value: PyTree

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[_NoName, PyTree]], None]:
        return ((_NoName(), self.value),), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[PyTree]) -> Replicated:
        del aux
        return cls(children[0])

    def __getitem__(self, key: Any) -> Any:
        return replicated(self.value[key])

    def __iter__(self) -> Iterator[Any]:
        """Iterate over a tuple's or list's marked parts, or over the names in a dict."""
        return iter(self.value) if isinstance(self.value, Mapping) else map(replicated, self.value)


def replicated(x: PyTree) -> Any:
    """Mark an argument without rows: every replica gets the complete value, and the module a plain array.

    >>> import jax.numpy as jnp, jaxpar
    >>> attend = jaxpar.DataParallel(lambda x, mask: x @ jnp.where(mask, 1.0, 0.0))
    >>> attend(jnp.ones((6, 3)), jaxpar.replicated(jnp.eye(3, dtype=bool))).shape
    (6, 3)

    Args:
      x: an array of any shape, a key, or a tree of them: a mask [L, L], a table of positions, a number on the
        device. Python numbers, text and None are the same everywhere without a mark.

    Returns:
      A node of the argument's tree, which DataParallel, `data_parallel`, `scatter`, `parallel_apply`,
      DistributedDataParallel, `train_step` and `eval_step` take among their arguments; `.value` is what was
      marked, and its parts are marked: `replicated(params)["w"]`, `*replicated((params, key))`. In a function
      that one of these runs, such as a loss function, it returns plain arrays, which a DataParallel that is
      called there recognises. A module's output that is marked so is replica 0's, as buffers are, and not
      gathered.

    The gradient of a marked array is the sum over the replicas. A marked key is the same on all of them; one
    without a mark is folded with the replica's number, as `nnx.Rngs` are.

    Raises:
      TypeError: it holds a module or `nnx.Rngs`, which need no mark.

    torch counterpart: none. There every tensor is cut, so a mask is expanded to one for each row
    (`mask.expand(B, ...)`); only other objects go to every replica.
    """
    for leaf in jax.tree.leaves(x, is_leaf=is_object):
        if is_object(leaf):
            raise TypeError(
                f"replicated: {type(leaf).__name__} is not an array, and modules need no mark. For one key "
                "on all replicas, mark what a stream gives: jaxpar.replicated(rngs.dropout())."
            )
    plain, scope = unmarked(x), _scope.get()
    if scope is None:
        return Replicated(plain)
    return scope.marked(plain)


def is_marked(x: object) -> bool:
    return isinstance(x, Replicated)


def unmarked(tree: PyTree) -> PyTree:
    """Return the tree with marked values in place of their marks."""
    return of_replica(tree, None)


def of_replica(tree: PyTree, index: Any) -> PyTree:
    """Return a replica's tree as its module gets it; `index` is the replica's number, None if it is alone."""

    def plain(x: Any) -> Any:
        if isinstance(x, Replicated):
            return unmarked(x.value)
        if index is not None and isinstance(x, jax.Array) and is_lone_key(x):
            return fold(x, index)
        return x

    return jax.tree.map(plain, tree, is_leaf=is_marked)


def is_lone_key(x: Any) -> bool:
    """Whether it is a typed key without axes, which cannot be split."""
    return x.ndim == 0 and is_key(x)


def leaf_marks(tree: PyTree) -> list[bool]:
    """Return for every leaf whether it is marked."""
    marks: list[bool] = []
    for x in jax.tree.leaves(tree, is_leaf=is_marked):
        marks += [True] * len(jax.tree.leaves(x)) if isinstance(x, Replicated) else [False]
    return marks


def array_marks(tree: PyTree) -> list[bool]:
    """Return the marks of the tree's arrays and shapes."""
    return [
        mark for leaf, mark in zip(jax.tree.leaves(tree), leaf_marks(tree), strict=True) if has_shape(leaf)
    ]


class _Scope:
    """The arrays that are marked, by identity, while a function with plain arguments is traced."""

    def __init__(self) -> None:
        self.arrays: dict[int, Any] = {}  # the values keep their identities from being reused
        self.called: set[int] = set()  # those that the function itself has marked

    def marked(self, tree: PyTree) -> PyTree:
        # As copies: `net(x, jaxpar.replicated(x))` has x with and without a mark.
        copies = self.remember(jax.tree.map(lambda x: jnp.copy(x) if is_array(x) else x, tree))
        self.called |= set(map(id, jax.tree.leaves(copies)))
        return copies

    def remember(self, tree: PyTree) -> PyTree:
        self.arrays |= {id(x): x for x in jax.tree.leaves(tree) if is_array(x)}
        return tree


_scope: contextvars.ContextVar[_Scope | None] = contextvars.ContextVar("scope", default=None)


@contextlib.contextmanager
def plain_arguments(tree: PyTree, index: Any = None) -> Iterator[PyTree]:
    """A context with plain arguments, see `of_replica`, in which `with_marks` returns their marks."""
    scope = _Scope()
    token = _scope.set(scope)

    def plain(x: Any) -> Any:
        return scope.remember(unmarked(x)) if isinstance(x, Replicated) else of_replica(x, index)

    try:
        yield jax.tree.map(plain, tree, is_leaf=is_marked)
    finally:
        _scope.reset(token)


def with_marks(tree: PyTree) -> PyTree:
    """Return the tree with a mark for every array that is marked where the caller is traced."""
    scope = _scope.get()
    return tree if scope is None else _marked(tree, scope.arrays)


def with_output_marks(outputs: PyTree) -> PyTree:
    """Return a function's outputs with a mark for every array that it has marked itself."""
    scope = _scope.get()
    return outputs if scope is None else _marked(outputs, scope.called)


def _marked(tree: PyTree, identities: Container[int]) -> PyTree:
    def mark(x: Any) -> Any:
        return Replicated(x) if not isinstance(x, Replicated) and id(x) in identities else x

    return jax.tree.map(mark, tree, is_leaf=is_marked) if identities else tree
