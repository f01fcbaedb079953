"""Steps whose gradients cross the devices without psum: collected, exchanged in slices, or passed around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.program.parts import (
    AXIS,
    Made,
    batch_of,
    loss_of,
    mapped,
    mean,
    mesh_of,
    momentum,
    parameters,
    total,
)

N = 8
Reduction = Callable[[Any, str], Any]


def around(step: int = 1) -> list[tuple[int, int]]:
    return [(i, (i + step) % N) for i in range(N)]


def collected(g: Any, fault: str) -> Any:
    """Collect the gradients of all devices, and take their mean."""
    g = mean(g) if fault in ("again before", "means of means") else g
    if fault == "last axis":
        return lax.all_gather(g, AXIS, axis=g.ndim, tiled=False).mean(-1)
    if fault == "tiled":
        return lax.all_gather(g, AXIS, axis=g.ndim - 1, tiled=True).reshape(*g.shape[:-1], N, -1).mean(-2)
    every = lax.all_gather(g, {"other axis": "model", "both axes": (AXIS, "model")}.get(fault, AXIS))
    if fault == "rows":
        return every[1:].mean(0)
    if fault == "axis":
        return jnp.broadcast_to(every.reshape(g.shape[0], N, -1).mean(1).reshape(g.shape), g.shape)
    if fault == "weights":
        return jnp.tensordot(jnp.arange(1, N + 1, dtype=g.dtype), every, 1) / N
    if fault in ("one by one", "one weighs more"):
        return sum(every[i] * (1 + (fault == "one weighs more" and i == 1)) for i in range(N)) / N
    if fault == "one twice":
        return sum(every[max(i, 1)] for i in range(N)) / N
    reduced = every.sum(0) if fault == "again before" else every.mean(0)
    return total(reduced) if fault == "again" else reduced


def sliced(g: Any) -> Any:
    return jnp.pad(g.reshape(-1), (0, -g.size % N)).reshape(N, -1)


def whole(slices: Any, g: Any) -> Any:
    return slices.reshape(-1)[: g.size].reshape(g.shape)


def exchanged(g: Any, fault: str) -> Any:
    """Send each device its slice of all gradients, add there, and collect the sums."""
    if fault == "scattered":
        part = lax.psum_scatter(sliced(g), AXIS) / N
        return whole(lax.all_gather(part, AXIS), g)
    received = lax.all_to_all(sliced(g), AXIS, 0, 0)
    if fault == "part":
        received = received[: N // 2]
    added = received[0] if fault == "no sum" else received.sum(0)
    if fault == "order":
        added = lax.ppermute(added, AXIS, around())
    return whole(lax.all_gather(added, AXIS), g) / N


def ring(g: Any, fault: str) -> Any:
    """Pass the gradients around, and add what comes."""
    g = mean(g) if fault == "again before" else g
    links = around(2 if fault == "every second" else 1)
    links = links[:-1] if fault == "open" else links
    turns = {"a step less": N - 2, "a step more": N, "no step": 0}.get(fault, N - 1)

    def turn(_: Any, state: Any) -> Any:
        passed, added = state
        passed = lax.ppermute(passed, AXIS, links)
        return passed, passed if fault == "replaced" else added + passed

    if fault == "by hand":
        state = (g, g)
        for n in range(turns):
            state = turn(n, state)
        return state[1] / N
    return lax.fori_loop(0, turns, turn, (g, g))[1] / (1 if fault == "again before" else N)


def ring_of_slices(g: Any, fault: str) -> Any:
    """Add a slice while it goes around, and then pass the sums around: two rings."""
    index, turns = lax.axis_index(AXIS), N - 1

    def take(slices: Any, n: Any) -> Any:
        return lax.dynamic_index_in_dim(slices, n % N, 0, keepdims=True)

    def put(slices: Any, n: Any, new: Any) -> Any:
        return lax.dynamic_update_slice_in_dim(slices, new, n % N, 0)

    def reduce(n: Any, slices: Any) -> Any:
        received = lax.ppermute(take(slices, index - n), AXIS, around())
        return put(slices, index - n - 1, take(slices, index - n - 1) + received)

    def collect(n: Any, slices: Any) -> Any:
        received = lax.ppermute(take(slices, index + 1 - n), AXIS, around())
        return put(slices, index - n, received)

    slices = lax.fori_loop(0, turns - (fault == "a step less"), reduce, sliced(g))
    if fault == "order":  # the n-th device has the sum of slice n + 1
        return whole(lax.all_gather(take(slices, index + 1)[0], AXIS), g) / N
    if fault != "not collected":
        slices = lax.fori_loop(0, turns - (fault == "collected less"), collect, slices)
    return whole(slices, g) / N


def butterfly(g: Any, fault: str) -> Any:
    """Exchange with a partner, a partner's partner and so on, and add."""
    for bit in {"part": (1, 2), "pair twice": (1, 1, 2), "again": (1, 2, 4, 4)}.get(fault, (1, 2, 4)):
        g = g + lax.ppermute(g, AXIS, [(i, i ^ bit) for i in range(N)])
    return g / N


def two_rings(g: Any, fault: str) -> Any:
    """Reduce over pairs by a sum, and pass the sums around among four."""
    pairs = [[2 * i, 2 * i + 1] for i in range(N // 2)]
    g = lax.psum(g, AXIS, axis_index_groups=pairs)
    passed = g
    for _ in range(N // 2 - 1 - (fault == "a step less")):
        passed = lax.ppermute(passed, AXIS, around(1 if fault == "neighbour" else 2))
        g = g + passed
    return g / N


WAYS: dict[str, Reduction] = {
    "collected": collected,
    "exchanged": exchanged,
    "ring": ring,
    "ring of slices": ring_of_slices,
    "butterfly": butterfly,
    "two rings": two_rings,
}


def passing(name: str) -> Callable[[str], Made]:
    """Return the maker of a step with one of the ways; each leaf is reduced by itself."""

    def make(fault: str) -> Made:
        mesh = mesh_of(4, 2) if fault in ("other axis", "both axes") else mesh_of(N)

        def step(w: Any, m: Any, x: Any, y: Any) -> Any:
            g = jax.grad(loss_of)(w, x, y)
            if fault == "one vector":
                flat, back = jax.flatten_util.ravel_pytree(g)
                return momentum(w, m, back(WAYS[name](flat, fault)))
            return momentum(w, m, jax.tree.map(lambda v: WAYS[name](v, fault), g))

        w = parameters(mesh)
        return mapped(step, mesh, P(), P(), P(AXIS), P(AXIS)), (w, w, *batch_of(mesh)), {}

    return make
