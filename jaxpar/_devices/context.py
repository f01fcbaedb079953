"""context: programs run outside of the user's mesh context (`jax.set_mesh`), and results come back into it.

A shard_map over a placement's mesh is refused under another mesh. An array that axes of type Explicit split
has these axes in its type, and JAX does not mix it with arrays of another mesh.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .._tree import is_array, is_real, is_staged
from .._typing import PyTree
from .._upstream import concrete, is_differentiated
from .._upstream.mesh_context import context_mesh, enter_context, restore_context
from ..errors import MisplacedError

F = TypeVar("F", bound=Callable[..., Any])


class Outside:
    """`with Outside():` no mesh is in context; `returned` moves results to the one that was, or a default."""

    __slots__ = ("_default", "_outer", "_previous", "mesh", "rows")

    def __init__(self, default: Mesh | None = None):
        self._default = default

    def __enter__(self) -> None:
        self._outer = getattr(_this, "scope", None)
        self.mesh = context_mesh()
        self.rows: Any = None  # the mesh axes that split the batch's rows
        self._previous = None if self.mesh is None else enter_context(None)
        if self._default is not None and (self.mesh is None or _is_remote(self.mesh)) and not is_staged():
            self.mesh = self._default
        _this.scope = self

    @property
    def left(self) -> Any:
        """The context's mesh, and None for one of an array or a default."""
        return None if self._previous is None else self.mesh

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _this.scope = self._outer
        if self._previous is None:
            return
        restore_context(self._previous)
        if error is not None and "PartitionSpec" in str(error):
            error.add_note(
                f"jaxpar: its programs run outside of the context mesh, {dict(self.mesh.shape)}, whose axes "
                "a bare PartitionSpec cannot name there. Write NamedSharding(mesh, spec)."
            )


_this = threading.local()


def outside(function: F) -> F:
    """Call a function `with Outside()`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with Outside():
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def outside_for(placement: Any) -> Outside | contextlib.nullcontext[None]:
    """Return `Outside()`, or for a module that stays where it is, and in its user's context, nothing."""
    return _NOTHING if placement is None or not placement.devices else Outside(placement.outer_mesh)


_NOTHING = contextlib.nullcontext()


def use_mesh(mesh: Mesh | None) -> None:
    """Let results go to a mesh, unless there is one in context or they are a surrounding program's."""
    scope = getattr(_this, "scope", None)
    if mesh is not None and scope is not None and scope.mesh is None and not is_staged():
        scope.mesh = mesh


def is_explicit(mesh: Any) -> bool:
    """Whether axes of a mesh are in the types of the arrays that they split."""
    return mesh is not None and AxisType.Explicit in mesh.axis_types


def brought(
    x: Any, to: Mesh | AbstractMesh, sharding: Callable[[], NamedSharding], axis: int | None = None
) -> Any:
    """Return an array or a tracer for a program on a mesh of its own, where `sharding()` distributes it.

    `axis` is the rows' axis of a batch's array; outputs are split along their rows as the batch was.
    """
    scope = getattr(_this, "scope", None)
    mesh, array = None if scope is None else scope.mesh, concrete(x)
    source: Any = array.sharding if is_real(array) else jax.typeof(x).sharding
    typed = isinstance(source, NamedSharding) and is_explicit(source.mesh)
    if scope is not None and mesh is None and (typed or not is_real(array)):
        # The caller's program has a mesh without a context, in the type of what it brings.
        foreign = not source.mesh.empty and source.mesh.axis_names != to.axis_names
        mesh = scope.mesh = source.mesh if foreign else None
    if scope is not None and mesh is not None and axis is not None and isinstance(source, NamedSharding):
        scope.rows = scope.rows or (source.spec[axis] if axis < len(source.spec) else None)
    if scope is not None and scope.mesh is not None and is_differentiated(x):
        refuse_own_mesh(scope.left, [x], to, "DataParallel")
    if is_real(x):
        # Results get the mesh of an argument, and XLA may choose a distribution that its axes cannot express.
        foreign = isinstance(source, NamedSharding) and source.mesh.axis_names != to.axis_names
        return jax.device_put(x, sharding()) if foreign else x
    settled = not is_real(array) and source.mesh.axis_names == to.axis_names
    if not typed and (mesh is None or _is_remote(mesh) or settled):
        return x
    if not is_real(array) and not typed and not is_explicit(mesh):
        return _unconstrained(x, mesh)
    if mesh is not None and (not isinstance(source, NamedSharding) or source.mesh != mesh):
        source = NamedSharding(mesh, source.spec if typed else PartitionSpec())
    # Without `src` the cotangent would stay on the program's mesh.
    return jax.device_put(x, sharding(), src=source)


def refuse_own_mesh(
    mesh: Any, arrays: Sequence[Any], wrapper_mesh: Mesh | AbstractMesh, function: str
) -> None:
    """Raise for parameters on a wrapper's own mesh that would be updated under one with Explicit axes."""
    if not is_explicit(mesh) or wrapper_mesh.axis_names == mesh.axis_names:
        return
    for x in arrays:
        if jax.typeof(x).sharding.mesh.axis_names == wrapper_mesh.axis_names:
            raise MisplacedError(
                f"{function}: parameters are on the devices' own mesh, {dict(wrapper_mesh.shape)}, because "
                "they were wrapped outside of jax.set_mesh. The axes of the mesh in context, "
                f"{dict(mesh.shape)}, are Explicit, and JAX does not mix arrays of the two in an update. "
                "Wrap the module, and make its optimizer, inside of `with jax.set_mesh(mesh):`, or give the "
                "mesh axes of type Auto."
            )


def left_mesh() -> Any:
    """Return the mesh that was in context before `Outside`, or None."""
    scope = getattr(_this, "scope", None)
    return None if scope is None else scope.left


def returned(tree: PyTree, dim: int | None = None) -> PyTree:
    """Return results as arrays that can be used under the caller's mesh; `dim` is the axis of their rows."""
    scope = getattr(_this, "scope", None)
    if scope is None or scope.mesh is None or _is_remote(scope.mesh):
        return tree
    leaves, form = jax.tree.flatten(tree)
    mesh = scope.mesh
    moving = [i for i, x in enumerate(leaves) if is_array(x) and _must_move(x, mesh)]
    previous = enter_context(mesh)
    try:
        if all(is_real(leaves[i]) for i in moving):
            moved = jax.device_put(
                [leaves[i] for i in moving], [_target(leaves[i], scope, dim) for i in moving]
            )
        else:
            moved = [_moved(leaves[i], scope, dim) for i in moving]
    finally:
        restore_context(previous)
    for i, x in zip(moving, moved, strict=True):
        leaves[i] = x
    return jax.tree.unflatten(form, leaves)


def _is_remote(mesh: Any) -> bool:
    """Whether a mesh is over several processes, and has no place for one process's results."""
    return isinstance(mesh, Mesh) and mesh.is_multi_process


def _must_move(x: Any, mesh: Any) -> bool:
    array = concrete(x)
    if not is_real(array):
        return jax.typeof(x).sharding.mesh != mesh.abstract_mesh
    # An array that is not committed goes anywhere.
    placed = isinstance(array.sharding, NamedSharding) and array.sharding.mesh == mesh
    return isinstance(mesh, Mesh) and array.committed and not placed


def _target(x: Any, scope: Outside, dim: int | None) -> NamedSharding:
    """Return the sharding of a result on the caller's mesh: as the batch's, or else on all devices."""
    mesh, rows = scope.mesh, scope.rows
    source = getattr(x, "sharding", None)
    if isinstance(source, NamedSharding) and is_real(x) and _same_devices(source.mesh, mesh):
        # Two meshes of the same devices, whose axes have different names.
        names = dict(zip(source.mesh.axis_names, mesh.axis_names, strict=True))
        return NamedSharding(mesh, PartitionSpec(*(_renamed(entry, names) for entry in source.spec)))
    if rows is None or dim is None or not -x.ndim <= dim < x.ndim:
        return NamedSharding(mesh, PartitionSpec())
    pieces = math.prod(mesh.shape[name] for name in (rows if isinstance(rows, tuple) else (rows,)))
    if x.shape[dim] % pieces:
        return NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec(*[None] * (dim % x.ndim), rows))


def _same_devices(a: Any, b: Any) -> bool:
    return (
        isinstance(a, Mesh)
        and isinstance(b, Mesh)
        and a.devices.shape == b.devices.shape
        and bool((a.devices == b.devices).all())
    )


def _renamed(entry: Any, names: dict[str, str]) -> Any:
    if entry is None:
        return None
    return tuple(names[name] for name in entry) if isinstance(entry, tuple) else names[entry]


def _moved(x: Any, scope: Outside, dim: int | None) -> Any:
    array, target = concrete(x), _target(x, scope, dim)
    if is_real(array):
        return jax.device_put(x, target, src=array.sharding)
    if is_explicit(scope.mesh):
        # A device_put of a tracer would get a cotangent of this mesh, and not of the program's.
        return jax.sharding.reshard(x, target)
    return _unconstrained(x, scope.mesh)


def _unconstrained(x: Any, mesh: Any) -> Any:
    """Return a staged tracer whose type has another mesh. XLA chooses its distribution."""
    # With the program's mesh, JAX fails for a distribution that its axes cannot express.
    spec = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * x.ndim)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
