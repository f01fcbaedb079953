"""Pytrees: which leaves are arrays, JAX's or NumPy's, their names, and whether a device can hold them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from ._arguments import warn
from ._typing import Array, PyTree, Static, TreeDef
from ._upstream import get_opaque_trace_state
from .errors import DeletedError, LeafError, RangeError


def is_array(leaf: object) -> TypeGuard[Array]:
    return isinstance(leaf, (jax.Array, np.ndarray))


def has_shape(leaf: object) -> bool:
    return is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def separate(tree: PyTree) -> tuple[list[Any], tuple[Static | None, ...], TreeDef]:
    """Return arrays and shapes, other leaves at their positions (None for an array), and the structure."""
    leaves, treedef = jax.tree.flatten(tree)
    arrays = [leaf for leaf in leaves if has_shape(leaf)]
    return arrays, tuple(None if has_shape(leaf) else Static(leaf) for leaf in leaves), treedef


def combine(arrays: Sequence[Any], statics: Sequence[Static | None], treedef: TreeDef) -> PyTree:
    """The inverse of `separate`."""
    remaining = iter(arrays)
    return jax.tree.unflatten(treedef, [next(remaining) if s is None else s.value for s in statics])


def is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def sharding_of(x: Any) -> jax.sharding.Sharding | None:
    """Return the sharding of a shape, or of an array that was placed explicitly."""
    return x.sharding if isinstance(x, jax.ShapeDtypeStruct) or (is_real(x) and x.committed) else None


def shape_of(x: Any, sharding: jax.sharding.Sharding | None = None) -> jax.ShapeDtypeStruct:
    """Return an array as a shape, with the dtype that JAX would give it."""
    dtype = jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding)


def paths(tree: PyTree, root: str) -> list[str]:
    """Return the leaves' paths as a reader would write them: `inputs[0]['image']`."""
    return [root + jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)]


class LazyPaths(Sequence[str]):
    """`paths` of trees, each with its root, made only for an error."""

    def __init__(self, *trees: tuple[str, PyTree]):
        self._trees = trees

    def __len__(self) -> int:
        return sum(len(jax.tree.leaves(tree)) for _, tree in self._trees)

    def __getitem__(self, i: Any) -> Any:
        return [name for root, tree in self._trees for name in paths(tree, root)][i]

    def of_array(self, i: int) -> str:
        leaves = [leaf for _, tree in self._trees for leaf in jax.tree.leaves(tree)]
        return [name for leaf, name in zip(leaves, self[:], strict=True) if is_array(leaf)][i]


def is_staged() -> bool:
    """Whether `jax.jit` (or scan, or any other staging) traces the caller; False under eager `jax.grad`."""
    global _eager
    trace_state = get_opaque_trace_state(convention="nnx")
    if trace_state == _eager:
        return False  # making an array, only to look at it, takes 50 us
    staged = isinstance(jax.lax.full((), 0), jax.core.Tracer)
    if not staged:
        _eager = trace_state
    return staged


_eager: Any = None


def is_real(leaf: object) -> TypeGuard[jax.Array]:
    """Whether it is an array with a buffer, not a tracer."""
    return isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)


def has_tracers(tree: PyTree) -> bool:
    """Whether an eager derivative or `vmap` watches any leaf, or `jit` traces it."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def check_alive(leaves: Sequence[Any], names: Sequence[str] | PyTree, function: str) -> None:
    """Raise DeletedError for the first array whose buffer is gone."""
    # Before every dispatch: with two or more devices JAX 0.10 does not raise, it crashes.
    for i, leaf in enumerate(leaves):
        if is_real(leaf) and leaf.is_deleted():
            raise DeletedError(
                f"{function}: {names[i]} ({leaf.dtype}{list(leaf.shape)}) was donated to an earlier "
                "computation or deleted; keep the value which that computation returned."
            )


def check_leaf(leaf: Any, name: str, function: str) -> None:
    """Raise where JAX would fail without a path (objects, text) or change values (wide integers)."""
    if not is_array(leaf):
        if isinstance(leaf, (dict, list, tuple)):
            raise LeafError(
                f"{function}: {name} is a {type(leaf).__qualname__}, a container that JAX does not know, so "
                "its arrays would not be split. Register it with jax.tree_util, or pass a plain "
                f"{next(c.__name__ for c in (dict, list, tuple) if isinstance(leaf, c))}."
            )
        if hasattr(leaf, "__dlpack__") and not isinstance(leaf, np.generic):
            raise LeafError(
                f"{function}: {name} is a {type(leaf).__module__}.{type(leaf).__qualname__}; jaxpar "
                "splits jax.Array and numpy.ndarray. Convert it first, for instance with .numpy()."
            )
        return
    # Only host arrays can still lose something: JAX narrowed its own arrays when it made them.
    if isinstance(leaf, jax.Array):
        return
    if leaf.dtype.kind in "OSUMmV" and not jnp.issubdtype(leaf.dtype, np.number):
        raise LeafError(
            f"{function}: {name} has dtype {leaf.dtype}, which no device can hold; turn it into "
            "numbers, or pass it outside of the batch."
        )
    _check_form(leaf, name, function)
    if _stays(leaf.dtype):
        return
    if leaf.dtype.kind == "c":
        _check_range(leaf.real, f"{name}.real", function)
        _check_range(leaf.imag, f"{name}.imag", function)
    else:
        _check_range(leaf, name, function)
    if leaf.dtype.kind in "fc":
        warn_narrowed(leaf, name, function)


def check_leaves(leaves: Sequence[Any], names: Sequence[str], function: str) -> None:
    # Making a name costs more than most checks, so none is made for a leaf that cannot raise.
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, jax.Array) or (type(leaf) is np.ndarray and _fits(leaf)):
            continue
        check_leaf(leaf, names[i], function)


def _fits(leaf: np.ndarray) -> bool:
    """Whether an array needs no message: JAX keeps its type, or wraps none of its integers."""
    if _stays(leaf.dtype):
        return True
    if leaf.dtype.kind not in "iu" or not leaf.dtype.isnative or not leaf.size:
        return False
    limits = _limits(jax.dtypes.canonicalize_dtype(leaf.dtype))
    return bool(leaf.min() >= limits.min and leaf.max() <= limits.max)


_limits = functools.cache(np.iinfo)


@functools.cache
def _kept(dtype: np.dtype, x64: bool) -> bool:
    del x64  # part of the key
    native = dtype.kind in "biufc" and dtype.isnative and dtype.char not in "gG"
    return native and jax.dtypes.canonicalize_dtype(dtype) == dtype


def _stays(dtype: np.dtype) -> bool:
    return _kept(dtype, jax.dtypes.canonicalize_dtype(np.int64) == np.int64)


def _check_form(leaf: np.ndarray, name: str, function: str) -> None:
    if isinstance(leaf, np.ma.MaskedArray):
        raise LeafError(
            f"{function}: {name} is a masked array, and a device has no masks: fill it, {name}.filled(0), "
            "and send its mask as an array of its own."
        )
    if leaf.dtype.char in "gG":
        narrower = "float64" if leaf.dtype.char == "g" else "complex128"
        raise LeafError(
            f"{function}: {name} is {leaf.dtype}, NumPy's long double, which no device has: convert it, "
            f"{name}.astype(np.{narrower})."
        )
    if not leaf.dtype.isnative:
        raise LeafError(
            f"{function}: {name} is {leaf.dtype.str}, whose byte order is not this machine's: convert it, "
            f'{name}.astype({name}.dtype.newbyteorder("=")).'
        )


def _check_range(leaf: np.ndarray, name: str, function: str) -> None:
    if leaf.dtype.kind not in "iuf" or not leaf.size:
        return
    narrow = jax.dtypes.canonicalize_dtype(leaf.dtype)
    floating = leaf.dtype.kind == "f"
    limits = np.finfo(narrow) if floating else np.iinfo(narrow)
    low, high = leaf.min(), leaf.max()
    if low >= limits.min and high <= limits.max:
        return
    if floating:
        # Infinity stays what it is, and so does NaN, with which every comparison is false.
        numbers = leaf[np.isfinite(leaf)]
        low, high = numbers.min(initial=0), numbers.max(initial=0)
    if low < limits.min or high > limits.max:
        raise RangeError(
            f"{function}: {name} is {leaf.dtype} with values from {low} to {high}, and JAX would "
            f"{'make infinity of them in' if floating else 'wrap them to'} {narrow} "
            f"[{limits.min}, {limits.max}]. Turn jax_enable_x64 on or send smaller numbers."
        )


def same(a: PyTree, b: PyTree) -> bool:
    """Whether two trees hold the very same leaves."""
    one, two = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(one) == len(two) and all(map(operator.is_, one, two))


_narrowed: set[tuple[str, str]] = set()


def warn_narrowed(leaf: Any, name: str, function: str) -> None:
    """Warn once for each path that JAX keeps 32 bits of a host array's 64."""
    if not isinstance(leaf, np.ndarray) or (name, str(leaf.dtype)) in _narrowed:
        return
    narrow = jax.dtypes.canonicalize_dtype(leaf.dtype)
    if narrow != leaf.dtype:
        _narrowed.add((name, str(leaf.dtype)))
        warn(
            f"{function}: {name} is {leaf.dtype} and becomes {narrow}, because jax_enable_x64 is off. Turn "
            f"it on, or convert before: {name}.astype(np.{narrow})."
        )
