"""jaxpar's side of the collectives: every rank writes what they return and what is in the lists."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import words

import jaxpar.distributed as dist

Seen = dict[str, np.ndarray]
OPS = {"mean": "AVG"}


def collectives(name: str, group: Any, rank: int) -> Seen:
    ranks = words.mine(name, rank)
    at = (ranks or words.GROUPS[name][0])[-1]
    size, found = len(ranks or ()), {}

    for op in words.OPS:
        kind = dist.ReduceOp[OPS.get(op, op.upper())]
        x = {dtype: words.value(dtype, rank) for dtype in words.dtypes(op)}
        found |= named(f"all_reduce {op}", dist.all_reduce(x, kind, group))
        if op != "mean":
            total = dist.reduce(x, at, kind, group)
            found |= named(f"reduce {op}", dict.fromkeys(x) if total is None else total)
    x = {dtype: words.value(dtype, rank) for dtype in words.FLOATS + words.INTEGERS}
    for i, every in enumerate(dist.all_gather(x, group) or ()):
        found |= named("all_gather", every, f" {i}")
    for i, every in enumerate(dist.gather(x, at, group) or ()):
        found |= named("gather", every, f" {i}")
    if ranks is not None:
        found |= named("broadcast", dist.broadcast(x, at, group))
        pieces = [{k: words.piece(k, rank, i) for k in x} for i in range(size)]
        found |= named("scatter", dist.scatter(x, pieces if rank == at else None, at, group))
        found |= named("all_gather_into_tensor", dist.all_gather_into_tensor(x, group))
        rows = {k: words.value(k, rank, (3 * size, 2)) for k in x if k != "bool"}
        found |= named("reduce_scatter_tensor", dist.reduce_scatter_tensor(rows, group=group))
        cut = [{k: v[3 * i : 3 * i + 3] for k, v in rows.items()} for i in range(size)]
        found |= named("reduce_scatter", dist.reduce_scatter(cut, dist.ReduceOp.MAX, group))
    return {k: np.array(words.NOTHING) if v is None else np.asarray(v) for k, v in found.items()}


def named(word: str, tree: dict, end: str = "") -> dict:
    return {f"{word} {dtype}{end}": leaf for dtype, leaf in tree.items()}


def objects(name: str, group: Any, rank: int) -> Seen:
    ranks = words.mine(name, rank)
    at = (ranks or words.GROUPS[name][0])[-1]
    size = len(ranks or (1,))
    seen = {"all_gather_object": [None] * size, "broadcast_object_list": [words.obj(rank), rank]}
    dist.all_gather_object(seen["all_gather_object"], words.obj(rank), group=group)
    if ranks is not None:
        seen["gather_object"] = [None] * size if rank == at else None
        dist.gather_object(words.obj(rank), seen["gather_object"], dst=at, group=group)
        dist.broadcast_object_list(seen["broadcast_object_list"], src=at, group=group)
        seen["scatter_object_list"] = [None, "stays"]
        given = [words.obj(10 * i) for i in range(size)] if rank == at else None
        dist.scatter_object_list(seen["scatter_object_list"], given, src=at, group=group)
    return {k: np.array(words.plain(v)) for k, v in seen.items()}


def about(name: str, group: Any, rank: int) -> Seen:
    ranks = words.mine(name, rank)
    seen = {"rank": dist.get_rank(group), "size": dist.get_world_size(group)}
    if ranks is not None:
        seen["ranks"] = dist.get_process_group_ranks(group)
        seen["numbers"] = [dist.get_group_rank(group, r) for r in ranks]
        seen["back"] = [dist.get_global_rank(group, i) for i in range(len(ranks))]
        seen["backend"] = dist.get_backend(group)
    return {k: np.array(v) for k, v in seen.items()}


def main(folder: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group(timeout=60)
    rank, seen = dist.get_rank(), {}
    for name, groups in words.GROUPS.items():
        made = [dist.new_group(list(ranks), sort_ranks=name not in words.UNSORTED) for ranks in groups]
        group = next((g for g in made if g is not dist.GroupMember.NON_GROUP_MEMBER), made[0])
        for part in (collectives, objects, about):
            seen |= {f"{name}/{k}": v for k, v in part(name, group, rank).items()}
    np.savez(f"{folder}/words_ours.{rank}.npz", **seen)
    dist.destroy_process_group()
