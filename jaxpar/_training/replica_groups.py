"""replica_groups: which replicas sum together, in a layer that synchronises over a process group."""

from __future__ import annotations

import json
from typing import Any

from flax import nnx

from .._typing import ReplicaGroups
from ..distributed.exchange import exchange
from ..distributed.group import Group, NonMember
from ..errors import DivergenceError, GroupError
from .world import World

_WHAT = "DistributedDataParallel: process groups"


def settle_groups(module: nnx.Module, world: World) -> None:
    """Replace every layer's process group by ReplicaGroups, or by None for all replicas."""
    if world.local.of_topology:
        return
    layers = {
        "module." + ".".join(map(str, path)): layer
        for path, layer in nnx.iter_graph(module)
        if isinstance(getattr(layer, "process_group", None), Group | NonMember)
    }
    # A rank outside of the group is alone, as in torch.
    local_ranks = {path: list(layer.process_group.ranks) for path, layer in layers.items()}
    announcements = [json.loads(text) for text in exchange(_WHAT, json.dumps(local_ranks), group=world.group)]
    paths = dict.fromkeys(path for ranks in announcements for path in ranks)
    groups = {path: _groups(path, announcements, world) for path in paths}
    for path, layer in layers.items():
        layer.process_group = groups[path]


def _groups(path: str, announcements: list[dict[str, Any]], world: World) -> ReplicaGroups | None:
    ranks = world.group.ranks if world.group else (0,)
    groups: dict[int, tuple[int, ...]] = {}
    for rank, layers in zip(ranks, announcements, strict=True):
        if path not in layers:
            raise DivergenceError(f"{_WHAT}: {path} has one on other ranks, and none on rank {rank}.")
        groups[rank] = tuple(layers[path]) or (rank,)
    for rank, group in groups.items():
        if others := sorted(set(group) - set(ranks)):
            raise GroupError(
                f"DistributedDataParallel: the process group of {path} has ranks {others}, which do not "
                f"train this module; ranks {list(ranks)} do."
            )
        for other in group:
            if groups[other] != group:
                raise DivergenceError(
                    f"{_WHAT}: {path} has ranks {list(group)} on rank {rank}, and {list(groups[other])} on "
                    f"rank {other}."
                )
    numbers = {group: i for i, group in enumerate(dict.fromkeys(groups.values()))}
    if len(numbers) == 1:
        return None
    return ReplicaGroups(tuple(numbers[groups[rank]] for rank in ranks for _ in range(world.local.N)))
