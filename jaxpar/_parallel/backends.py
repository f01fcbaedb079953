"""Backends: run a function once on every device. Adding one is a function and a row of `BACKENDS`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from .._typing import REPLICA, PyTree
from .placement import Placement

Body = Callable[[jax.Array, PyTree, list[jax.Array]], tuple[PyTree, PyTree]]
Backend = Callable[[Body, Placement, PyTree, list[jax.Array]], tuple[PyTree, PyTree]]
"""`run(body, placement, shared, rows) -> (results, shared)`, traced under `jax.jit`.

`rows` are arrays [N, ...] and `shared` is a tree that all devices hold. Each device runs `body(i, shared,
[x[i] for x in rows])` with its own i; the tree of results that it returns is stacked to [N, ...] again, and
the shared tree that it returns must be equal on all devices.
"""


def backend(name: str) -> Backend:
    if name not in BACKENDS:
        raise ValueError(f"backend={name!r} is unknown; there are {', '.join(map(repr, BACKENDS))}.")
    return BACKENDS[name]


def _shard_map(
    body: Body, placement: Placement, shared: PyTree, rows: list[jax.Array]
) -> tuple[PyTree, PyTree]:
    def program(
        shared: PyTree, rows: list[jax.Array], index: jax.Array | None = None
    ) -> tuple[PyTree, PyTree]:
        number = jax.lax.axis_index(REPLICA) if index is None else index[0]
        results, shared = body(number, shared, [x[0] for x in rows])
        return jax.tree.map(lambda x: x[None], results), shared

    if placement.N == 1 and placement.outer_mesh is not None:
        return _alone(program, placement, shared, rows)
    # check_vma is off. With it on, the gradient of a replica's own loss by a replicated parameter arrives
    # already summed, so the mean of gradients that users write silently becomes a sum, and Flax's recurrent
    # layers do not trace. With it off, gradients are summed once, at the program's border.
    # Beside axes that the compiler splits, JAX looks up the mesh of an axis_index in the context in which the
    # program is compiled. That may be the user's jax.set_mesh, so there the number is an argument.
    index = [] if placement.outer_mesh is None else [jnp.arange(placement.N, dtype=jnp.int32)]
    mapped = jax.shard_map(
        program,
        mesh=placement.mesh,
        in_specs=(P(), P(REPLICA), P(REPLICA))[: 2 + len(index)],
        out_specs=(P(REPLICA), P()),
        # Over the other axes of a user's mesh the compiler goes on splitting.
        axis_names={REPLICA},
        check_vma=False,
    )
    try:
        return mapped(shared, rows, *index)
    except ValueError as error:
        if "should match the mesh passed to shard_map" in str(error):
            error.add_note(
                "jaxpar: inside a replica jax.shard_map takes the mesh of the program: leave mesh= out and "
                "name other axes of the mesh that DataParallel(mesh=, axis=) was given, axis_names={...}."
            )
        if "cannot change the size of the mesh" in str(error):
            error.add_note(
                f"jaxpar: inside jax.jit a program runs on the devices of jax.set_mesh's mesh, and this "
                f"wrapper has {placement.N}. Give it that mesh, mesh= and axis=, or its devices, device_ids."
            )
        raise


def _alone(
    program: Callable[..., tuple[PyTree, PyTree]], placement: Placement, shared: PyTree, rows: list[jax.Array]
) -> tuple[PyTree, PyTree]:
    """Run the only replica, which is a group of devices, without a shard_map."""
    # XLA cannot compile a sum over an axis of one device where it splits others itself.
    with jax.sharding.use_abstract_mesh(placement.mesh.abstract_mesh):
        results, shared = jax.vmap(
            lambda rows: program(shared, rows), axis_name=REPLICA, axis_size=placement.N
        )([x[None] for x in rows])
    return jax.tree.map(lambda x: x[0], (results, shared))


def _pmap(body: Body, placement: Placement, shared: PyTree, rows: list[jax.Array]) -> tuple[PyTree, PyTree]:
    """A wrapper around shard_map since JAX 0.8. Delete it and its row when `jax.pmap` goes."""
    leaves, form = jax.tree.flatten(shared)

    def program(index: jax.Array, rows: list[jax.Array], *leaves: jax.Array) -> tuple[PyTree, PyTree]:
        return body(index, jax.tree.unflatten(form, leaves), rows)

    # The index is an argument because pmap wants at least one that differs between the devices.
    index = jnp.arange(placement.N, dtype=jnp.int32)
    return jax.pmap(
        program,
        axis_name=REPLICA,
        # One for each leaf: None for a tree without leaves would count for the next argument.
        in_axes=(0, 0, *[None] * len(leaves)),
        out_axes=(0, None),
        devices=placement.devices,
    )(index, rows, *leaves)


BACKENDS: dict[str, Backend] = {"shard_map": _shard_map, "pmap": _pmap}

FOR_A_MESH = ("shard_map",)
"""Those that can run over one axis of a mesh with several."""
