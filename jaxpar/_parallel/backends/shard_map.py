"""The default backend: shard_map over a mesh of one axis."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec as P

from ..._typing import REPLICA, PyTree
from ..placement import Placement
from .backend import Body


def run(body: Body, placement: Placement, shared: PyTree, rows: list[jax.Array]) -> tuple[PyTree, PyTree]:
    def program(shared: PyTree, rows: list[jax.Array]) -> tuple[PyTree, PyTree]:
        results, shared = body(jax.lax.axis_index(REPLICA), shared, [x[0] for x in rows])
        return jax.tree.map(lambda x: x[None], results), shared

    if placement.N == 1 and placement.outer_mesh is not None:
        return _alone(program, placement, shared, rows)
    # check_vma is off. With it on, the gradient of a replica's own loss by a replicated parameter arrives
    # already summed, so the mean of gradients that users write silently becomes a sum, and Flax's recurrent
    # layers do not trace. With it off, gradients are summed once, at the program's border.
    mapped = jax.shard_map(
        program,
        mesh=placement.mesh,
        in_specs=(P(), P(REPLICA)),
        out_specs=(P(REPLICA), P()),
        # Over the other axes of a user's mesh the compiler goes on splitting.
        axis_names={REPLICA},
        check_vma=False,
    )
    try:
        return mapped(shared, rows)
    except ValueError as error:
        if "should match the mesh passed to shard_map" in str(error):
            error.add_note(
                "jaxpar: inside a replica jax.shard_map takes the mesh of the program: leave mesh= out and "
                "name other axes of the mesh that DataParallel(mesh=, axis=) was given, axis_names={...}."
            )
        raise


def _alone(
    program: Callable[..., tuple[PyTree, PyTree]], placement: Placement, shared: PyTree, rows: list[jax.Array]
) -> tuple[PyTree, PyTree]:
    """Run the only replica, which is a group of devices, without a shard_map."""
    # XLA cannot compile a sum over an axis of one device beside axes that it splits itself.
    with jax.sharding.use_abstract_mesh(placement.mesh.abstract_mesh):
        results, shared = jax.vmap(
            lambda rows: program(shared, rows), axis_name=REPLICA, axis_size=placement.N
        )([x[None] for x in rows])
    return jax.tree.map(lambda x: x[0], (results, shared))
