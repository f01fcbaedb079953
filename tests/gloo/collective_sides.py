"""Both sides of the collectives: each rank writes what jaxpar's return, or what torch's lists hold.

The two frameworks run in processes of their own, so each is imported by its own functions.
"""

from __future__ import annotations

import datetime
import multiprocessing
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import collective_cases as cases
import numpy as np

Seen = dict[str, np.ndarray]
OPS = {"mean": "AVG"}


def jaxpar_collectives(dist: ModuleType, name: str, group: Any, rank: int) -> Seen:
    ranks = cases.mine(name, rank)
    at = (ranks or cases.GROUPS[name][0])[-1]
    size, found = len(ranks or ()), {}

    for op in cases.OPS:
        kind = dist.ReduceOp[OPS.get(op, op.upper())]
        x = {dtype: cases.value(dtype, rank) for dtype in cases.dtypes(op)}
        found |= named(f"all_reduce {op}", dist.all_reduce(x, kind, group))
        if op != "mean":
            total = dist.reduce(x, at, kind, group)
            found |= named(f"reduce {op}", dict.fromkeys(x) if total is None else total)
    x = {dtype: cases.value(dtype, rank) for dtype in cases.FLOATS + cases.INTEGERS}
    for i, every in enumerate(dist.all_gather(x, group) or ()):
        found |= named("all_gather", every, f" {i}")
    for i, every in enumerate(dist.gather(x, at, group) or ()):
        found |= named("gather", every, f" {i}")
    if ranks is not None:
        found |= named("broadcast", dist.broadcast(x, at, group))
        pieces = [{k: cases.piece(k, rank, i) for k in x} for i in range(size)]
        found |= named("scatter", dist.scatter(x, pieces if rank == at else None, at, group))
        found |= named("all_gather_into_tensor", dist.all_gather_into_tensor(x, group))
        rows = {k: cases.value(k, rank, (3 * size, 2)) for k in x if k != "bool"}
        found |= named("reduce_scatter_tensor", dist.reduce_scatter_tensor(rows, group=group))
        cut = [{k: v[3 * i : 3 * i + 3] for k, v in rows.items()} for i in range(size)]
        found |= named("reduce_scatter", dist.reduce_scatter(cut, dist.ReduceOp.MAX, group))
    return {k: np.array(cases.NOTHING) if v is None else np.asarray(v) for k, v in found.items()}


def named(word: str, tree: dict, end: str = "") -> dict:
    return {f"{word} {dtype}{end}": leaf for dtype, leaf in tree.items()}


def torch_collectives(dist: ModuleType, name: str, group: Any, rank: int) -> Seen:
    import torch

    ranks = cases.mine(name, rank)
    at = (ranks or cases.GROUPS[name][0])[-1]  # a rank of all, not of the group
    size, found = len(ranks or ()), {}

    def tensor(dtype: str, shape=(3, 2)) -> torch.Tensor:
        return torch.tensor(cases.value(dtype, rank, shape))

    for op in cases.OPS:
        kind = getattr(dist.ReduceOp, OPS.get(op, op.upper()))
        for dtype in cases.dtypes(op):
            x = tensor(dtype)
            dist.all_reduce(x, op=kind, group=group)
            found[f"all_reduce {op} {dtype}"] = x
            if op == "mean":
                continue  # gloo divides only in all_reduce
            x = tensor(dtype)
            if ranks is not None:
                dist.reduce(x, at, op=kind, group=group)
            found[f"reduce {op} {dtype}"] = x if rank == at else None
    for dtype in cases.FLOATS + cases.INTEGERS:
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
            pieces = [torch.tensor(cases.piece(dtype, rank, i)) for i in range(size)] if rank == at else None
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
    return {k: np.array(cases.NOTHING) if v is None else v.numpy() for k, v in found.items()}


def objects(dist: ModuleType, name: str, group: Any, rank: int) -> Seen:
    ranks = cases.mine(name, rank)
    at = (ranks or cases.GROUPS[name][0])[-1]
    size = len(ranks or (1,))
    seen = {"all_gather_object": [None] * size, "broadcast_object_list": [cases.obj(rank), rank]}
    dist.all_gather_object(seen["all_gather_object"], cases.obj(rank), group=group)
    if ranks is not None:
        seen["gather_object"] = [None] * size if rank == at else None
        dist.gather_object(cases.obj(rank), seen["gather_object"], dst=at, group=group)
        dist.broadcast_object_list(seen["broadcast_object_list"], src=at, group=group)
        seen["scatter_object_list"] = [None, "stays"]
        given = [cases.obj(10 * i) for i in range(size)] if rank == at else None
        dist.scatter_object_list(seen["scatter_object_list"], given, src=at, group=group)
    return {k: np.array(cases.plain(v)) for k, v in seen.items()}


def about(dist: ModuleType, name: str, group: Any, rank: int) -> Seen:
    ranks = cases.mine(name, rank)
    seen = {"rank": dist.get_rank(group), "size": dist.get_world_size(group)}
    if ranks is not None:
        seen["ranks"] = dist.get_process_group_ranks(group)
        seen["numbers"] = [dist.get_group_rank(group, r) for r in ranks]
        seen["back"] = [dist.get_global_rank(group, i) for i in range(len(ranks))]
        seen["backend"] = str(dist.get_backend(group))
    return {k: np.array(v) for k, v in seen.items()}


def results(dist: ModuleType, collectives: Callable[..., Seen], rank: int) -> Seen:
    """What a rank gets from every call in every group, by "group/call"."""
    seen: Seen = {}
    for name, groups in cases.GROUPS.items():
        made = [dist.new_group(list(ranks), sort_ranks=name not in cases.UNSORTED) for ranks in groups]
        group = next((g for g in made if g is not dist.GroupMember.NON_GROUP_MEMBER), made[0])
        for part in (collectives, objects, about):
            seen |= {f"{name}/{k}": v for k, v in part(dist, name, group, rank).items()}
    return seen


def jaxpar_main(folder: str) -> None:
    import jaxpar.distributed as dist

    warnings.simplefilter("ignore")
    dist.init_process_group(timeout=60)
    rank = dist.get_rank()
    np.savez(f"{folder}/jaxpar.{rank}.npz", **results(dist, jaxpar_collectives, rank))
    dist.destroy_process_group()


def torch_rank(rank: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        f"file://{folder}/rendezvous",
        world_size=cases.W,
        rank=rank,
        timeout=datetime.timedelta(seconds=60),
    )
    np.savez(f"{folder}/torch.{rank}.npz", **results(dist, torch_collectives, rank))
    dist.barrier()
    dist.destroy_process_group()


def torch_main(folder: str) -> None:
    import torch.distributed  # noqa: F401  imported once, before the fork

    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=torch_rank, args=(r, folder)) for r in range(cases.W)]
    for process in started:
        process.start()
    for process in started:
        process.join(90)
        if process.exitcode != 0:
            for other in started:
                other.kill()
            sys.exit(f"a rank ended with {process.exitcode}")
