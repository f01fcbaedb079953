"""check_replicas: compare the copies of arrays on all devices and all ranks.

A faulty device or a value written on one rank only makes the copies of the weights drift apart silently.
torch compares shapes once, when DDP is constructed (docs/semantics.md row D2), and never values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._devices import devices as _devices
from .._devices.context import outside
from .._tree import is_array
from .._typing import DIVISION, PyTree, Shape
from ..errors import DivergenceError, LeafError
from . import call_log
from .exchange import exchange, exchange_json
from .group import Group, ProcessGroup, current, member
from .step_agreement import difference

WHAT = "check_replicas"
BLOCKS, SMALL = 64, 1024
"""To locate a difference between ranks, digests of BLOCKS blocks are compared recursively, down to blocks of
SMALL bytes: arrays may be large, and the coordinator is slow."""


@outside
def check_replicas(tree: PyTree, group: ProcessGroup = None) -> None:
    """Compare all copies of every array, bit for bit.

    A debugging tool: all arrays are copied to the host. It compares an array's copies on the devices of this
    process, the ranks' process-local arrays, and, for sharded arrays, the shards that hold the same slice.

    Args:
      tree: an NNX module, or any pytree of arrays and numbers. With a process group, every rank passes its
        own tree, at the same time.
      group: the ranks to compare; the default group if omitted.

    Raises:
      DivergenceError: names the first leaf that differs, the devices or ranks, the first element, and the
        source lines of the call.

    >>> import jax.numpy as jnp
    >>> from jaxpar.distributed.check_replicas import check_replicas
    >>> check_replicas({"w": jnp.ones(3)})

    torch counterpart: none; `_verify_param_shape_across_processes` compares shapes.
    """
    line = call_log.line(call_log.call_site())
    leaves = _leaves(tree)
    shards = [_shards(leaf, path, first) for path, leaf, first in leaves]
    for (path, *_), parts in zip(leaves, shards, strict=True):
        for copies in parts.values():
            _compare_devices(path, copies, line)
    pg = member(group, WHAT) if current() is not None or group is not None else None
    if pg is not None and pg.size > 1:
        _compare_ranks(pg, [path for path, *_ in leaves], shards, line)


Copies = list[tuple[str, np.ndarray]]
"""Device names and values of all copies of one slice of an array."""


def _leaves(tree: PyTree) -> list[tuple[str, PyTree, int]]:
    """Return paths and arrays, and of an array that ranks divide the position of this rank's first piece."""
    if isinstance(tree, nnx.Module):
        return [
            (
                "module." + ".".join(map(str, path)),
                leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf,
                _first_piece(leaf),
            )
            for path, leaf in nnx.to_flat_state(nnx.state(tree, graph=True))
        ]
    nodes = jax.tree.leaves_with_path(tree, is_leaf=lambda node: isinstance(node, nnx.Variable))
    return [
        (f"tree{jax.tree_util.keystr(path + subpath)}", leaf, _first_piece(node))
        for path, node in nodes
        for subpath, leaf in jax.tree.leaves_with_path(node)
    ]


def _first_piece(leaf: PyTree) -> int:
    division = leaf.get_metadata().get(DIVISION) if isinstance(leaf, nnx.Variable) else None
    return 0 if division is None else int(division.first)


def _shards(leaf: PyTree, path: str, first: int) -> dict[str, Copies]:
    """Return this process's copies of every slice of a leaf, by the slice's indices as text."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted():
            raise LeafError(f"check_replicas: {path} was donated or deleted.")
        parts: dict[str, Copies] = {}
        for shard in leaf.addressable_shards:
            index_text = ",".join(f"{s.start or 0}:{s.stop or ''}" for s in shard.index)
            index_text = f"{first}+{index_text}" if first else index_text
            parts.setdefault(index_text, []).append((_devices.name(shard.device), np.asarray(shard.data)))
        return parts
    if is_array(leaf) or isinstance(leaf, (np.generic, bool, int, float, complex)):
        return {"": [("the host", np.asarray(leaf))]}
    return {}


def _compare_devices(path: str, copies: Copies, line: str) -> None:
    (first, one), *others = copies
    for device, other in others:
        # As bytes, because NaN is not equal to itself, and -0.0 is equal to 0.0.
        if one.tobytes() != other.tobytes():
            report = _report(path, one.dtype, one.shape, {first: one, device: other})
            raise DivergenceError(f"{report}{_called({0: line})}")


def _called(lines: Mapping[int, str]) -> str:
    """Return the sentence on where ranks called check_replicas; empty for lines of libraries."""
    calls = dict.fromkeys(lines.values())
    if len(calls) == 1:
        return "".join(f" It was called at {line}." for line in calls if line)
    return f" It was called at {', '.join(f'{line} on rank {r}' for r, line in lines.items())}."


def _report(
    path: str, dtype: np.dtype | str, shape: Shape, copies: dict[str, np.ndarray], offset: int = 0
) -> str:
    """Return the error text for two copies, flat pieces from element `offset` of an array of that shape."""
    (first_name, first), (second_name, second) = copies.items()
    first, second = first.reshape(-1), second.reshape(-1)
    raw = [x.view(np.uint8).reshape(first.size, -1) for x in (first, second)]
    i = int(np.flatnonzero((raw[0] != raw[1]).any(1))[0])
    index = [int(k) for k in np.unravel_index(offset + i, shape)] if shape else []
    return (
        f"check_replicas: {path} ({dtype}{list(shape)}) is not the same on {first_name} and {second_name}: "
        f"element {index} is {first[i]!s} on {first_name} and {second[i]!s} on {second_name}. "
        "Weights drift apart when one replica is written to alone, or draws random numbers of its own."
    )


# ----------------------------------------------------------------------------------- between ranks


def _compare_ranks(group: Group, paths: list[str], shards: list[dict[str, Copies]], line: str) -> None:
    descriptions = {
        path: {index: _describe(copies[0][1]) for index, copies in parts.items()}
        for path, parts in zip(paths, shards, strict=True)
    }
    received = exchange_json(WHAT, {"line": line, "leaves": descriptions}, group=group)
    by_rank = {r: message["leaves"] for r, message in received.items()}
    lines = {r: message["line"] for r, message in received.items()}
    part_counts = {
        r: {path: str(len(parts)) for path, parts in described.items()} for r, described in by_rank.items()
    }
    # Compared first: the loop below indexes every rank's description by this rank's paths.
    if problem := difference(WHAT, part_counts):
        raise DivergenceError(f"{problem} The numbers are parts on the rank's devices.{_called(lines)}")
    for path, parts in zip(paths, shards, strict=True):
        for index in sorted({index for described in by_rank.values() for index in described[path]}):
            holders = [r for r, described in by_rank.items() if index in described[path]]
            other = next(
                (r for r in holders if by_rank[r][path][index] != by_rank[holders[0]][path][index]), None
            )
            if other is not None:
                copies = parts.get(index)
                local_copy = None if copies is None else copies[0][1]
                report = _explained(group, path, local_copy, holders[0], other, by_rank, index)
                raise DivergenceError(f"{report}{_called(lines)}")


def _describe(x: np.ndarray) -> list:
    digest = hashlib.sha256(np.ascontiguousarray(x).view(np.uint8).data if x.size else b"").hexdigest()
    return [str(x.dtype), list(x.shape), digest]


def _explained(
    group: Group, path: str, x: np.ndarray | None, a: int, b: int, by_rank: dict[int, dict], index: str
) -> str:
    """Return the error text, on all ranks, for the first element that differs between ranks a and b."""
    # All ranks take part in every exchange, also ranks that do not hold the slice.
    (dtype, shape, _), (other_dtype, other_shape, _) = by_rank[a][path][index], by_rank[b][path][index]
    if (dtype, shape) != (other_dtype, other_shape):
        return (
            f"check_replicas: {path} is {dtype}{shape} on rank {a}, {other_dtype}{other_shape} on rank {b}."
        )
    flat = np.zeros(0) if x is None else np.ascontiguousarray(x).reshape(-1)
    start, end, width = 0, int(np.prod(shape, dtype=int)), int(jnp.dtype(dtype).itemsize)
    while (end - start) * width > SMALL:
        # Rounded up, so that the blocks cover the range.
        step = -(-(end - start) // BLOCKS)
        digests = [_describe(flat[i : min(i + step, end)])[2] for i in range(start, end, step)]
        digests_by_rank = exchange_json(WHAT, digests, group=group)
        both = zip(digests_by_rank[a], digests_by_rank[b], strict=True)
        i = next(i for i, (one, two) in enumerate(both) if one != two)
        start, end = start + i * step, min(start + (i + 1) * step, end)
    raw = exchange(WHAT, flat[start:end].tobytes().hex(), group=group)
    one, two = (np.frombuffer(bytes.fromhex(raw[group.numbers[r]]), jnp.dtype(dtype)) for r in (a, b))
    return _report(path, dtype, tuple(shape), {f"rank {a}": one, f"rank {b}": two}, start)
