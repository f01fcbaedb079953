"""pmap, a wrapper around shard_map since JAX 0.8. Delete this file and its row when `jax.pmap` goes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..._typing import REPLICA, PyTree
from ..placement import Placement
from .backend import Body


def run(body: Body, placement: Placement, shared: PyTree, rows: list[jax.Array]) -> tuple[PyTree, PyTree]:
    def program(shared: PyTree, index: jax.Array, rows: list[jax.Array]) -> tuple[PyTree, PyTree]:
        return body(index, shared, rows)

    # The index is an argument because pmap wants at least one that differs between the devices.
    index = jnp.arange(placement.N, dtype=jnp.int32)
    return jax.pmap(
        program,
        axis_name=REPLICA,
        in_axes=(None, 0, 0),
        out_axes=(0, None),
        devices=placement.devices,
    )(shared, index, rows)
