"""The same training step as a user writes it with JAX alone: shard_map, or a global array's shardings."""

from __future__ import annotations

import functools

import jax
import numpy as np
from flax import nnx
from hlo import Program, read
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from steps import MAKE, shapes, trained

import jaxpar

AXIS = "data"


@functools.cache
def by_hand(way: str, net: str, rows: int, devices: int = 8) -> Program:
    """Its program; `way` is "shard_map" or "sharding"."""
    mesh = Mesh(np.array(jaxpar.topology("h100", devices=devices)), (AXIS,), axis_types=(AxisType.Auto,))
    graphdef, state = nnx.split(nnx.eval_shape(MAKE[net]))
    loss_fn, tx = trained(net)

    def step(state, moments, *batch):
        loss, gradients = jax.value_and_grad(lambda s: loss_fn(nnx.merge(graphdef, s), *batch))(state)
        if way == "shard_map":
            loss, gradients = jax.lax.pmean((loss, gradients), AXIS)
        updates, moments = tx.update(gradients, moments, state)
        return loss, jax.tree.map(lambda p, u: p + u, state, updates), moments

    everywhere, cut = PartitionSpec(), PartitionSpec(AXIS)
    if way == "shard_map":
        specs = {"in_specs": (everywhere, everywhere, cut, cut), "out_specs": everywhere, "check_vma": False}
        step = jax.shard_map(step, mesh=mesh, **specs)
    held = state, jax.eval_shape(tx.init, state)
    given = [_on(mesh, cut, x) for x in shapes(net, rows)]
    held = jax.tree.map(functools.partial(_on, mesh, everywhere), held)
    options = {"xla_gpu_autotune_level": "0"}
    run = jax.jit(
        step, donate_argnums=(0, 1), out_shardings=NamedSharding(mesh, everywhere), compiler_options=options
    )
    return read(run.lower(*held, *given).compile().as_text())


def _on(mesh: Mesh, spec: PartitionSpec, x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
