"""torch's side of the collectives: every rank writes what its tensors and lists hold afterwards."""

from __future__ import annotations

import datetime
import multiprocessing
import sys
import warnings
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import words

Seen = dict[str, np.ndarray]
OPS = {"mean": "AVG"}


def collectives(name: str, group: Any, rank: int) -> Seen:
    ranks = words.mine(name, rank)
    at = (ranks or words.GROUPS[name][0])[-1]  # a rank of all, not of the group
    size, found = len(ranks or ()), {}

    def tensor(dtype: str, shape=(3, 2)) -> torch.Tensor:
        return torch.tensor(words.value(dtype, rank, shape))

    for op in words.OPS:
        kind = getattr(dist.ReduceOp, OPS.get(op, op.upper()))
        for dtype in words.dtypes(op):
            x = tensor(dtype)
            dist.all_reduce(x, op=kind, group=group)
            found[f"all_reduce {op} {dtype}"] = x
            if op == "mean":
                continue  # gloo divides only in all_reduce
            x = tensor(dtype)
            if ranks is not None:
                dist.reduce(x, at, op=kind, group=group)
            found[f"reduce {op} {dtype}"] = x if rank == at else None
    for dtype in words.FLOATS + words.INTEGERS:
        x = tensor(dtype)
        every = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(every, x, group=group)
        found |= {f"all_gather {dtype} {i}": y for i, y in enumerate(every)}
        if ranks is not None:
            on_dst = [torch.empty_like(x) for _ in range(size)] if rank == at else None
            dist.gather(x, on_dst, dst=at, group=group)
            found |= {f"gather {dtype} {i}": y for i, y in enumerate(on_dst or ())}
            y = tensor(dtype)
            dist.broadcast(y, src=at, group=group)
            found[f"broadcast {dtype}"] = y
            y = tensor(dtype)
            pieces = [torch.tensor(words.piece(dtype, rank, i)) for i in range(size)] if rank == at else None
            dist.scatter(y, pieces, src=at, group=group)
            found[f"scatter {dtype}"] = y
            long = torch.empty((3 * size, 2), dtype=x.dtype)
            dist.all_gather_into_tensor(long, x, group=group)
            found[f"all_gather_into_tensor {dtype}"] = long
            if dtype != "bool":
                y, rows = torch.empty_like(x), tensor(dtype, (3 * size, 2))
                dist.reduce_scatter_tensor(y, rows, group=group)
                found[f"reduce_scatter_tensor {dtype}"] = y
                y = torch.empty_like(x)
                dist.reduce_scatter(y, list(rows.split(3)), op=dist.ReduceOp.MAX, group=group)
                found[f"reduce_scatter {dtype}"] = y
    return {k: np.array(words.NOTHING) if v is None else v.numpy() for k, v in found.items()}


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
        seen["backend"] = str(dist.get_backend(group))
    return {k: np.array(v) for k, v in seen.items()}


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        f"file://{folder}/words",
        world_size=words.W,
        rank=rank,
        timeout=datetime.timedelta(seconds=60),
    )
    seen: Seen = {}
    for name, groups in words.GROUPS.items():
        made = [dist.new_group(list(ranks), sort_ranks=name not in words.UNSORTED) for ranks in groups]
        group = next((g for g in made if g is not dist.GroupMember.NON_GROUP_MEMBER), made[0])
        for part in (collectives, objects, about):
            seen |= {f"{name}/{k}": v for k, v in part(name, group, rank).items()}
    np.savez(f"{folder}/words_theirs.{rank}.npz", **seen)
    dist.barrier()
    dist.destroy_process_group()


def main(folder: str) -> None:
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=one_rank, args=(r, folder)) for r in range(words.W)]
    for process in started:
        process.start()
    for process in started:
        process.join(90)
        if process.exitcode != 0:
            for other in started:
                other.kill()
            sys.exit(f"a rank ended with {process.exitcode}")
