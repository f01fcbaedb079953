"""Steps in the structure of guides whose devices do more by hand than to sum gradients, made small.

Nothing is copied: each has the layout and the kind of update of the page or paper that its docstring names.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.program.guides import HIDDEN, layers, predicted, sgd, updated
from benchmarks.program.others import CLASSES, ROWS, WIDTH, entropy, placed, rows
from benchmarks.program.parts import AXIS, Made, mapped, mean, mesh_of

N = 8


def explicit_axes() -> Made:
    """JAX's guide on sharding in types: an explicit mesh, on which each array's type has its axes."""
    devices = np.array(mesh_of(N).devices)
    mesh, params = Mesh(devices, (AXIS,), axis_types=(AxisType.Explicit,)), layers(WIDTH, HIDDEN, CLASSES)

    def step(params: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            labels = jax.nn.one_hot(y, CLASSES, dtype=x.dtype)
            return -jnp.mean(jnp.sum(jax.nn.log_softmax(predicted(params, x)) * labels, axis=-1))

        return sgd(params, jax.grad(loss_fn)(params))

    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P(AXIS, None)))
    y = jax.ShapeDtypeStruct((ROWS,), jnp.int32, sharding=NamedSharding(mesh, P(AXIS)))
    return jax.jit(step), (placed(mesh, params), x, y), {}


def flat_shards() -> Made:
    """ZeRO-2 by hand: one flat gradient is scattered, Optax updates a slice, and slices are collected."""
    mesh, params, tx = mesh_of(N), layers(WIDTH, HIDDEN, CLASSES), optax.adamw(1e-3)
    flat, _ = jax.flatten_util.ravel_pytree(params)
    length = -(-flat.size // N)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(lambda p: entropy(predicted(p, x), y))(params)
        w, back = jax.flatten_util.ravel_pytree(params)
        padded = [jnp.pad(v, (0, N * length - v.size)) for v in (w, jax.flatten_util.ravel_pytree(g)[0])]
        part = lax.psum_scatter(padded[1], AXIS, tiled=True) / N
        held = lax.dynamic_slice_in_dim(padded[0], lax.axis_index(AXIS) * length, length)
        held, state = updated(tx, part, state, held)
        return back(lax.all_gather(held, AXIS, tiled=True)[: w.size]), state, mean(loss)

    state = jax.eval_shape(tx.init, jax.ShapeDtypeStruct((N * length,), flat.dtype))
    specs = jax.tree.map(lambda v: P(AXIS) if v.ndim else P(), state)
    shapes = jax.tree.map(lambda v, spec: placed(mesh, v, spec), state, specs)
    run = mapped(step, mesh, P(), specs, P(AXIS), P(AXIS), out=(P(), specs, P()))
    return run, (placed(mesh, params), shapes, *rows(mesh)), {}


def outer_steps() -> Made:
    """DiLoCo: steps of each device alone, and Nesterov's momentum on the mean of their ends."""
    mesh, params = mesh_of(N), layers(WIDTH, HIDDEN, CLASSES)
    inner, outer = optax.adamw(1e-3), optax.sgd(0.7, momentum=0.9, nesterov=True)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def turn(carry: Any, batch: Any) -> Any:
            near, inner_state = carry
            g = jax.grad(lambda p: entropy(predicted(p, batch[0]), batch[1]))(near)
            return updated(inner, g, inner_state, near), None

        cut = tuple(v.reshape(2, -1, *v.shape[1:]) for v in (x, y))
        near = lax.scan(turn, (params, inner.init(params)), cut)[0][0]
        return updated(outer, mean(jax.tree.map(jnp.subtract, params, near)), state, params)

    state = placed(mesh, jax.eval_shape(outer.init, params))
    run = mapped(step, mesh, P(), P(), P(AXIS), P(AXIS))
    return run, (placed(mesh, params), state, *rows(mesh)), {}


def plateau() -> Made:
    """Optax's reduce_on_plateau: the rate follows the loss, which is the mean of all devices' losses."""
    mesh, params = mesh_of(N), layers(WIDTH, HIDDEN, CLASSES)
    tx = optax.chain(optax.adam(1e-3), optax.contrib.reduce_on_plateau(patience=3))

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(lambda p: entropy(predicted(p, x), y))(params)
        loss = mean(loss)
        updates, state = tx.update(mean(g), state, params, value=loss)
        return optax.apply_updates(params, updates), state, loss

    state = placed(mesh, jax.eval_shape(tx.init, params))
    run = mapped(step, mesh, P(), P(), P(AXIS), P(AXIS))
    return run, (placed(mesh, params), state, *rows(mesh)), {}


def collected_weights() -> Made:
    """JAX's guide on shard_map, FSDP: the slices of the weights are collected by a ring, step by step."""
    mesh, size = mesh_of(N), N * 2
    params = {"a": jnp.zeros((size, HIDDEN)), "b": jnp.zeros((HIDDEN, CLASSES))}
    specs, around = {"a": P(AXIS), "b": P()}, [(i, (i + 1) % N) for i in range(N)]

    def step(params: Any, x: Any, y: Any) -> Any:
        index, length = lax.axis_index(AXIS), params["a"].shape[0]

        def turn(n: Any, state: Any) -> Any:
            passed, whole = state
            passed = lax.ppermute(passed, AXIS, around)
            return passed, lax.dynamic_update_slice_in_dim(whole, passed, ((index - n) % N) * length, 0)

        empty = jnp.zeros((size, HIDDEN), params["a"].dtype)
        start = lax.dynamic_update_slice_in_dim(empty, params["a"], index * length, 0)
        whole = lax.fori_loop(1, N, turn, (params["a"], start))[1]
        wide = jnp.concatenate([x, -x], axis=1)
        g = jax.grad(lambda p: entropy(jnp.tanh(wide @ p["a"]) @ p["b"], y))({**params, "a": whole})
        part = lax.psum_scatter(g["a"], AXIS, tiled=True) / N
        return sgd(params, {"a": part, "b": mean(g["b"])})

    shapes = {k: placed(mesh, v, specs[k]) for k, v in params.items()}
    run = mapped(step, mesh, specs, P(AXIS), P(AXIS), out=specs, donate=(0,))
    return run, (shapes, *rows(mesh)), {}


def contrastive() -> Made:
    """CLIP's loss: each device compares its rows with those of all devices, which it collects."""
    mesh, params = mesh_of(N), {"a": layers(WIDTH, HIDDEN), "b": layers(WIDTH, HIDDEN)}

    def step(params: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            first, second = predicted(params["a"], x), predicted(params["b"], y)
            every = lax.all_gather(second, AXIS, tiled=True)
            place = lax.axis_index(AXIS) * x.shape[0] + jnp.arange(x.shape[0])
            return entropy(first @ every.T, place)

        return sgd(params, mean(jax.grad(loss_fn)(params)))

    x = rows(mesh)[0]
    return mapped(step, mesh, P(), P(AXIS), P(AXIS), donate=(0,)), (placed(mesh, params), x, x), {}


BY_HAND = {
    "JAX, explicit axes": explicit_axes,
    "ZeRO-2, flat": flat_shards,
    "DiLoCo": outer_steps,
    "Optax, plateau": plateau,
    "FSDP by a ring": collected_weights,
}
OPEN_BY_HAND = {"CLIP": contrastive}
"""Each device's loss depends on all rows, and by its index on which of them are its own."""
