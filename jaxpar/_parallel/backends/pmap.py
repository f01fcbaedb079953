"""pmap, a wrapper around shard_map since JAX 0.8. Delete this file and its row when `jax.pmap` goes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..._typing import REPLICA, PyTree
from ..placement import Placement
from .backend import Body


def run(body: Body, placement: Placement, shared: PyTree, rows: list[jax.Array]) -> tuple[PyTree, PyTree]:
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
