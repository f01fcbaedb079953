"""Parts of training steps by hand: meshes, shapes, a small network, reductions of its gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS, BATCH, WIDTH, HIDDEN = "data", 32, 4, 6
WHOLE, ROWS = P(), P(AXIS)
Made = tuple[Any, tuple, dict[str, Any]]
Make = Callable[[str], Made]
POOL: list[Any] = []
"""The devices of all meshes; this process's if empty."""
first_four = [[0, 1, 2, 3], [4, 5, 6, 7]]


def mesh_of(*sizes: int) -> Mesh:
    names = (AXIS, "model")[: len(sizes)]
    return Mesh(np.array((POOL or jax.devices())[: int(np.prod(sizes))]).reshape(sizes), names)


def shape(mesh: Mesh, spec: P, *sizes: int, kind: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, kind, sharding=NamedSharding(mesh, spec))


def parameters(mesh: Mesh, specs: Any = None, kind: str = "float32") -> dict[str, jax.ShapeDtypeStruct]:
    specs = specs or {}
    sizes = {"a": (WIDTH, 2 * HIDDEN), "b": (2 * HIDDEN, 2), "c": (2,)}
    return {k: shape(mesh, specs.get(k, P()), *size, kind=kind) for k, size in sizes.items()}


def batch_of(mesh: Mesh, spec: P = ROWS, rows: int = BATCH) -> tuple[jax.ShapeDtypeStruct, ...]:
    return shape(mesh, spec, rows, WIDTH), shape(mesh, spec, rows, 2)


def outputs(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w["a"]) @ w["b"] + w["c"]


def loss_of(w: Any, x: Any, y: Any) -> Any:
    return jnp.mean((outputs(w, x) - y) ** 2)


def momentum(w: Any, m: Any, g: Any) -> tuple[Any, Any]:
    m = jax.tree.map(lambda a, b: 0.9 * a + b, m, g)
    return jax.tree.map(lambda a, b: a - 0.1 * b, w, m), m


def only(tree: Any, name: str, f: Callable[[Any], Any]) -> Any:
    """Apply `f` to one leaf."""
    return {k: f(x) if k == name else x for k, x in tree.items()}


mean = functools.partial(lax.pmean, axis_name=AXIS)
total = functools.partial(lax.psum, axis_name=AXIS)


def in_groups(g: Any) -> Any:
    return jax.tree.map(lambda x: lax.psum(x, AXIS, axis_index_groups=first_four) / 8, g)


def first_only(g: Any) -> Any:
    return jax.tree.map(lambda x: total(jnp.where(lax.axis_index(AXIS) == 0, x, 0)), g)


def weighted(g: Any) -> Any:
    return mean(jax.tree.map(lambda x: x * (1 + lax.axis_index(AXIS)), g))


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "": mean,
    "missing": lambda g: g,
    "missing in one leaf": lambda g: only(mean(g), "b", lambda _: g["b"]),
    "again": lambda g: total(mean(g)),
    "again in one leaf": lambda g: only(mean(g), "c", lambda x: total(x)),
    "part": in_groups,
    "rows": first_only,
    "extreme": lambda g: lax.pmax(g, AXIS),
    "weights": weighted,
    "means of means": lambda g: mean(mean(g)),
}


def mapped(
    body: Callable[..., Any], mesh: Mesh, *specs: P, out: Any = WHOLE, donate: tuple[int, ...] = (0, 1)
) -> Any:
    run = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    return jax.jit(run, donate_argnums=donate)
