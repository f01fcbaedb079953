"""Training steps whose weights are divided along an axis on which all devices have the same rows."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.program.parts import (
    AXIS,
    BATCH,
    HIDDEN,
    WIDTH,
    Made,
    batch_of,
    mapped,
    mean,
    mesh_of,
    momentum,
    only,
    parameters,
    shape,
)

over_slices = functools.partial(lax.pmean, axis_name="model")


@jax.custom_vjp
def copied(x: jax.Array) -> jax.Array:
    """The input of layers that are divided: its gradient is a sum over them (Megatron's f)."""
    return x


@jax.custom_vjp
def reduced(x: jax.Array) -> jax.Array:
    """The sum of what divided layers return: each gets its gradient as it is (Megatron's g)."""
    return lax.psum(x, "model")


copied.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "model"),))
reduced.defvjp(lambda x: (lax.psum(x, "model"), None), lambda _, g: (g,))


def tensor_parallel(fault: str) -> Made:
    """Columns of one layer and rows of the next on each device (Megatron), on a mesh of 4 x 2."""
    mesh = mesh_of(4, 2)
    held = {"a": P(None, "model"), "b": P("model"), "c": P()}
    w = parameters(mesh, held)

    def loss(w: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(copied(x) @ w["a"])
        return jnp.mean((reduced(hidden @ w["b"]) + w["c"] - y) ** 2)

    def turns(w: Any, x: Any, y: Any) -> Any:
        def turn(total: Any, rows: Any) -> Any:
            return jax.tree.map(jnp.add, total, over_slices(jax.grad(loss)(w, *rows))), None

        pairs = x.reshape(2, -1, WIDTH), y.reshape(2, -1, 2)
        return lax.scan(turn, jax.tree.map(jnp.zeros_like, w), pairs)[0]

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        g = mean(turns(w, x, y) if fault == "turns" else jax.grad(loss)(w, x, y))
        if fault == "slices":
            g = over_slices(g)
        elif fault == "one leaf":
            g = only(g, "b", over_slices)
        squares = sum(jnp.sum(g[k] ** 2) for k in "ab")
        norm = jnp.sqrt(squares if fault == "norm" else lax.psum(squares, "model"))
        g = jax.tree.map(lambda x: x / jnp.maximum(norm, 1.0), g)
        fine = jnp.isfinite(norm)
        after = momentum(w, m, g)
        if fault == "momentum":
            after = after[0], over_slices(after[1])
        return jax.tree.map(lambda a, b: jnp.where(fine, a, b), after, (w, m))

    run = mapped(step, mesh, held, held, P(AXIS), P(AXIS), out=(held, held))  # type: ignore[arg-type]
    return run, (w, w, *batch_of(mesh)), {}


def members(fault: str) -> Made:
    """An ensemble: the devices of one axis train a network each, with the same rows."""
    mesh = mesh_of(4, 2)
    held = P("model")
    w = shape(mesh, held, 2, WIDTH, 2)

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        g = mean(jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w[0]) - y) ** 2))(w))
        return momentum(w, m, over_slices(g) if fault in ("slices", "turns") else g)

    def turns(w: Any, m: Any, x: Any, y: Any) -> Any:
        pairs = x.reshape(2, -1, WIDTH), y.reshape(2, -1, 2)
        return lax.scan(lambda state, rows: (step(*state, *rows), None), (w, m), pairs)[0]

    body = turns if fault == "turns" else step
    return mapped(body, mesh, held, held, P(AXIS), P(AXIS), out=held), (w, w, *batch_of(mesh)), {}


def copies(fault: str) -> Made:
    """A stack of copies, one for each device of the batch, which all get one gradient."""
    mesh = mesh_of(8)
    w = shape(mesh, P(AXIS), 8, WIDTH, 2)

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        first = mean(jnp.where(lax.axis_index(AXIS) == 0, w[0], 0)) * 8
        g = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(first)
        return momentum(w, m, g[None] if fault == "missing" else mean(g)[None])

    return mapped(step, mesh, P(AXIS), P(AXIS), P(AXIS), P(AXIS), out=P(AXIS)), (w, w, *batch_of(mesh)), {}


def scattered(fault: str) -> Made:
    """Weights divided along both axes: gathered for the layers, their gradients scattered over the batch."""
    mesh = mesh_of(4, 2)
    held = {"a": P(AXIS, "model"), "b": P("model", AXIS)}
    w = {"a": shape(mesh, held["a"], 8, 2 * HIDDEN), "b": shape(mesh, held["b"], 2 * HIDDEN, 8)}
    x = shape(mesh, P(AXIS), BATCH, 8)

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean((reduced(jnp.tanh(copied(x) @ w["a"]) @ w["b"]) - x) ** 2)

    def step(w: Any, m: Any, x: Any) -> Any:
        axes = {"a": 0, "b": 1}
        whole = {k: lax.all_gather(v, AXIS, axis=axes[k], tiled=True) for k, v in w.items()}
        g = jax.grad(loss)(whole, x)
        g = {k: lax.psum_scatter(v, AXIS, scatter_dimension=axes[k], tiled=True) / 4 for k, v in g.items()}
        if fault == "slices":
            g = over_slices(g)
        elif fault == "rows of slices":
            g = mean(g)
        elif fault == "norm":
            g = jax.tree.map(lambda v: v / jnp.sqrt(jnp.sum(v**2)), g)
        return momentum(w, m, g)

    return mapped(step, mesh, held, held, P(AXIS), out=(held, held)), (w, w, x), {}  # type: ignore[arg-type]


def put_together(fault: str) -> Made:
    """ZeRO-2: each device updates a slice of the weights, which are put together again."""
    mesh = mesh_of(8)
    w, m = shape(mesh, P(), 64, 4), shape(mesh, P(AXIS), 64, 4)
    x, y = shape(mesh, P(AXIS), BATCH, 64), shape(mesh, P(AXIS), BATCH, 4)

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        g = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
        m = 0.9 * m + lax.psum_scatter(g, AXIS, tiled=True) / 8
        number = lax.axis_index(AXIS)
        number = (number + 1) % 8 if fault == "next slice" else number
        slice_of_w = lax.dynamic_slice_in_dim(w, number * 8, 8)
        change = m
        if fault == "slices":
            change = mean(m)
        elif fault == "norm":
            change = m / jnp.sqrt(jnp.sum(m**2))
        return lax.all_gather(slice_of_w - 0.1 * change, AXIS, tiled=True), m

    return mapped(step, mesh, P(), P(AXIS), P(AXIS), P(AXIS), out=(P(), P(AXIS))), (w, m, x, y), {}  # type: ignore[arg-type]


def orthogonalised(fault: str) -> Made:
    """Muon: each device makes the update of a layer orthogonal, and all collect them."""
    mesh = mesh_of(8)
    w = shape(mesh, P(), 8, 4, 4)

    def orthogonal(g: Any) -> Any:
        g = g / (jnp.linalg.norm(g) + 1e-6)
        return 1.5 * g - 0.5 * g @ g.T @ g

    def step(w: Any, m: Any, x: Any) -> Any:
        def outputs(w: Any) -> Any:
            return lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), x, w)[0]

        m = 0.9 * m + mean(jax.grad(lambda w: jnp.mean((outputs(w) - x) ** 2))(w))
        number = lax.axis_index(AXIS)
        number = (number + 1) % 8 if fault == "next layer" else number
        layer = orthogonal(lax.dynamic_slice_in_dim(m, number, 1)[0])
        return w - 0.02 * lax.all_gather(layer, AXIS), m

    return mapped(step, mesh, P(), P(), P(AXIS)), (w, w, shape(mesh, P(AXIS), BATCH, 4)), {}


def scattered_twice(fault: str) -> Made:
    """Slices of the weights by both axes of the batch: gradients are scattered over one after the other."""
    mesh = mesh_of(2, 4)
    outer, inner = mesh.axis_names
    w, rows = shape(mesh, P((outer, inner)), 64, 4), P((outer, inner))
    x, y = shape(mesh, rows, BATCH, 64), shape(mesh, rows, BATCH, 4)

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        whole = lax.all_gather(w, (outer, inner), tiled=True)
        g = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(whole)
        for axis in (inner, outer) if fault == "order" else (outer, inner):
            g = lax.psum_scatter(g, axis, tiled=True)
        return momentum(w, m, g / 8)

    return mapped(step, mesh, rows, rows, rows, rows, out=rows), (w, w, x, y), {}


def layers(fault: str) -> Made:
    """Layers in a scan, divided along both axes by XLA, with gradients clipped by their norm."""
    del fault
    mesh = mesh_of(4, 2)
    on = functools.partial(NamedSharding, mesh)
    held = {"a": P(None, AXIS, "model"), "b": P(None, "model", AXIS)}
    w = {"a": shape(mesh, held["a"], 3, 8, 16), "b": shape(mesh, held["b"], 3, 16, 8)}
    x = shape(mesh, P(AXIS), BATCH, 8)

    def layer(h: Any, w: Any) -> Any:
        hidden = lax.with_sharding_constraint(jnp.tanh(h @ w["a"]), on(P(AXIS, "model")))
        return lax.with_sharding_constraint(h + hidden @ w["b"], on(P(AXIS))), None

    def step(w: Any, x: Any) -> Any:
        g = jax.grad(lambda w: jnp.mean((lax.scan(jax.checkpoint(layer), x, w)[0] - x) ** 2))(w)
        norm = jnp.maximum(optax.tree.norm(g), 1.0)
        return jax.tree.map(lambda a, b: a - 0.1 * b / norm, w, g)

    return jax.jit(step, out_shardings={k: on(spec) for k, spec in held.items()}), (w, x), {"batch": (1,)}
