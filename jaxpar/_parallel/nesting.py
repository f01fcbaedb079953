"""nesting: where a wrapper cannot be called, because the devices are shared out there already."""

from __future__ import annotations

import jax

from .._statistics.linen_batch_norm import is_bound
from .._typing import REPLICA
from ..errors import NestedError


def refuse_nesting(function: str) -> None:
    """Raise NestedError inside a replica, and inside of `jax.shard_map`."""
    if is_bound(REPLICA):
        raise NestedError(
            f"{function}: called inside a replica of another DataParallel. Wrap either the whole model or a "
            "part of it."
        )
    manual = jax.sharding.get_abstract_mesh().manual_axes
    if manual:
        raise NestedError(
            f"{function}: called inside of jax.shard_map over {', '.join(map(repr, manual))}, which has "
            "shared the devices out already. Call the module itself there, or take jax.shard_map away."
        )
