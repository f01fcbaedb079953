"""More training steps by hand: hybrid sharding, two networks, steps between two reductions, noisy inputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.program.parts import (
    AXIS,
    BATCH,
    Made,
    batch_of,
    loss_of,
    mapped,
    mean,
    mesh_of,
    momentum,
    only,
    outputs,
    parameters,
    shape,
    total,
)

SIZE = 64


def hybrid_sharded(fault: str) -> Made:
    """Parameters divided over four devices, in two groups that hold the same (HSDP)."""
    mesh = mesh_of(2, 4)
    outer, inner = mesh.axis_names
    held, rows = P(inner), P((outer, inner))
    w = {"a": shape(mesh, held, SIZE, SIZE), "b": shape(mesh, held, SIZE, 2)}
    x, y = shape(mesh, rows, BATCH, SIZE), shape(mesh, rows, BATCH, 2)

    def scattered(g: Any) -> Any:
        kind = jnp.bfloat16 if fault == "half" else g.dtype
        return lax.psum_scatter(g.astype(kind), inner, tiled=True).astype(g.dtype) / 4

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        whole = jax.tree.map(lambda v: lax.all_gather(v, inner, tiled=True), w)
        g = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2))(whole)
        parts = jax.tree.map(scattered, g)
        if fault == "part":  # reduced over pairs, of which there are two
            g = jax.tree.map(lambda v: lax.psum(v, inner, axis_index_groups=[[0, 1], [2, 3]]) / 4, g)
            start = lax.axis_index(inner) * (SIZE // 4)
            parts = jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, start, SIZE // 4), g)
        g = parts if fault == "missing" else lax.pmean(parts, outer)
        if fault == "one leaf missing":
            g = {**g, "b": parts["b"]}
        if fault == "again":
            g = lax.psum(g, outer)
        return momentum(w, m, g)

    return mapped(step, mesh, held, held, rows, rows, out=held), (w, w, x, y), {}


def two_networks(fault: str) -> Made:
    """A generator and a critic, each with a loss and an update of its own, as adversarial networks train."""
    mesh = mesh_of(8)

    def doubled(made: Any) -> Any:
        return jnp.concatenate((made, -made), axis=1)  # as wide as the critic's inputs

    def step(nets: Any, moments: Any, x: Any, y: Any) -> Any:
        def critic_loss(critic: Any) -> Any:
            made = doubled(outputs(nets["generator"], x))
            return jnp.mean(outputs(critic, x) ** 2) - jnp.mean(outputs(critic, made))

        def generator_loss(generator: Any) -> Any:
            made = doubled(outputs(generator, x))
            return jnp.mean(outputs(nets["critic"], made)) + loss_of(generator, x, y)

        first, g = jax.value_and_grad(generator_loss)(nets["generator"])
        second, d = jax.value_and_grad(critic_loss)(nets["critic"])
        g = mean(g)
        d = d if fault == "missing" else mean(d)
        if fault == "again":
            g = only(g, "a", total)
        if fault == "loss of one device":  # a rate by the loss of each device
            d = jax.tree.map(lambda v: v / (1 + jnp.abs(second)), d)
        new = {"generator": momentum(nets["generator"], moments["generator"], g)}
        new["critic"] = momentum(nets["critic"], moments["critic"], d)
        return {k: v[0] for k, v in new.items()}, {k: v[1] for k, v in new.items()}, mean(first)

    w = {"generator": parameters(mesh), "critic": parameters(mesh)}
    return mapped(step, mesh, P(), P(), P(AXIS), P(AXIS)), (w, w, *batch_of(mesh)), {}


def local_steps(fault: str) -> Made:
    """An update in every second call, decided by a counter that all devices hold."""
    mesh = mesh_of(8)

    def step(w: Any, m: Any, count: Any, x: Any, y: Any) -> Any:
        g = jax.grad(loss_of)(w, x, y)

        def now(w: Any, m: Any) -> Any:
            return momentum(w, m, mean(g))

        def later(w: Any, m: Any) -> Any:
            return momentum(w, m, g) if fault == "branch" else (w, m)

        if fault == "loop":
            w, m = lax.fori_loop(0, 3, lambda i, c: momentum(c[0], total(c[1]), mean(g)), (w, m))
        w, m = lax.cond(count % 2 == 0, now, later, w, m)
        return w, m, count + 1

    w = parameters(mesh)
    run = mapped(step, mesh, P(), P(), P(), P(AXIS), P(AXIS))
    return run, (w, w, shape(mesh, P(), kind="int32"), *batch_of(mesh)), {}


def noise(fault: str) -> Made:
    """Noise on the inputs, by a key for every device."""
    mesh = mesh_of(8)

    def step(w: Any, m: Any, keys: Any, x: Any, y: Any) -> Any:
        key, draw = jax.random.split(keys if fault == "keys" else keys[0])
        g = jax.grad(loss_of)(w, x + 0.1 * jax.random.normal(draw, x.shape), y)
        return *momentum(w, m, g if fault == "missing" else mean(g)), key if fault == "keys" else key[None]

    w, kind = parameters(mesh), jax.random.key(0).dtype
    held = P() if fault == "keys" else P(AXIS)
    size = () if fault == "keys" else (8,)
    keys = jax.ShapeDtypeStruct(size, kind, sharding=NamedSharding(mesh, held))
    run = mapped(step, mesh, P(), P(), held, P(AXIS), P(AXIS), out=(P(), P(), held))
    return run, (w, w, keys, *batch_of(mesh)), {}
