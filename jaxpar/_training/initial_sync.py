"""initial_sync: all ranks hold the same parameters when training begins, or all raise."""

from __future__ import annotations

import hashlib

import jax

from ..distributed import broadcast
from ..distributed.exchange import exchange
from ..distributed.group import Group
from ..distributed.guard import compare_environments
from ..errors import ParametersError
from .arrays import Arrays
from .world import World

NOTHING_TO_TRAIN = (
    "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
)


def settle(arrays: Arrays, world: World, init_sync: bool) -> list:
    """Return the module's values as rank 0 has them (docs/semantics.md row D3); nothing for a topology."""
    if not arrays.parameters:
        raise ParametersError(NOTHING_TO_TRAIN)
    if world.local.of_topology:
        return []
    values = arrays.read()
    if world.size == 1 or not init_sync:
        return values
    compare_environments("DistributedDataParallel", world.group)
    pairs = zip(arrays.names, values, strict=True)
    _verify([f"{name}: {x.dtype}{list(x.shape)}" for name, x in pairs], world.group)
    return jax.device_put(broadcast(values, group=world.group, group_src=0), world.local.replicated)


def _verify(lines: list[str], group: Group | None) -> None:
    text = "\n".join(lines)
    digest = hashlib.sha256(text.encode()).hexdigest()
    digests = exchange("DistributedDataParallel: parameters", digest, group=group)
    if len(set(digests)) == 1:
        return
    # The complete list, which may have thousands of lines, is sent only after a mismatch.
    texts = exchange("DistributedDataParallel: all parameters", text, group=group)
    descriptions = [listing.split("\n") for listing in texts]
    ranks = group.ranks if group else range(len(descriptions))
    for r, rank_lines in zip(ranks, descriptions, strict=True):
        if len(rank_lines) != len(descriptions[0]):
            raise ParametersError(
                f"DDP expects same model across all ranks, but Rank {ranks[0]} has {len(descriptions[0])} "
                f"values, while rank {r} has {len(rank_lines)}."
            )
        for expected, actual in zip(descriptions[0], rank_lines, strict=True):
            if expected != actual:
                raise ParametersError(
                    f"DDP expects same model across all ranks, but they differ: rank {ranks[0]} has "
                    f"{expected}, rank {r} has {actual}."
                )
