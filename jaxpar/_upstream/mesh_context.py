"""The context of `jax.set_mesh`, left and entered where that function refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import config as jax_config
from jax._src import mesh as jax_mesh
from jax.extend.core import ClosedJaxpr

_contexts = jax_mesh if hasattr(jax_mesh, "device_context") else jax_config  # up to JAX 0.11 in `config`
_ABSTRACT, _CONCRETE = _contexts.abstract_mesh_context_manager, _contexts.device_context
_NONE = jax_config.config_ext.unset


def context_mesh() -> Any:
    """Return the mesh of `jax.set_mesh`, also inside of `jit`, or None. An abstract one has no devices.

    `jax.sharding.get_abstract_mesh` returns no devices, and `jax.sharding.get_mesh` raises inside of `jit`.
    """
    mesh = _CONCRETE.value
    if mesh is None or mesh.empty:
        mesh = _ABSTRACT.value
    return None if mesh is None or mesh.empty else mesh


def enter_context(mesh: Any) -> tuple[Any, Any]:
    """Make a mesh, or none, this thread's context; return what `restore_context` takes.

    `jax.set_mesh` refuses inside of `jit` and of derivatives, `use_abstract_mesh` a change of the number of
    devices. Its empty mesh and no mesh at all are two keys of compiled programs.
    """
    if mesh is None:
        return _ABSTRACT.swap_local(_NONE), _CONCRETE.swap_local(_NONE)
    devices = _NONE if isinstance(mesh, jax.sharding.AbstractMesh) else mesh
    return _ABSTRACT.swap_local(mesh.abstract_mesh), _CONCRETE.swap_local(devices)


def restore_context(previous: tuple[Any, Any]) -> None:
    """Make the context of before `enter_context` this thread's again."""
    _ABSTRACT.set_local(previous[0])
    _CONCRETE.set_local(previous[1])


def without_mesh(
    function: Callable[..., Any], args: Sequence[Any], axes: Sequence[tuple[Any, int]] = ()
) -> tuple[ClosedJaxpr, Any]:
    """Return a function's program, traced without a mesh as outside of a shard_map, and its outputs' shapes.

    Arrays that a shard_map maps over have its mesh in their types. Constants have none, and
    `eqx.nn.State.set` compares the types. `axes` are names of axes that are bound, with their sizes.
    """

    def shape(x: Any) -> jax.ShapeDtypeStruct:
        aval = jax.typeof(x)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)

    previous = enter_context(None)
    try:
        return jax.make_jaxpr(function, axis_env=axes, return_shape=True)(*map(shape, args))
    finally:
        restore_context(previous)
