"""Healthy training steps in the structure of Optax's examples, made small; nothing is copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.program.guides import HIDDEN, by_optax, layers, predicted, sgd, updated
from benchmarks.program.others import CLASSES, ROWS, WIDTH, entropy, placed, rows
from benchmarks.program.parts import AXIS, Made, mesh_of


def mlp_loss(params: Any, x: Any, y: Any) -> Any:
    return entropy(predicted(params, x), y)


def optax_lookahead() -> Made:
    """Optax's lookahead: fast weights, which go back to slow ones in every fifth step."""
    params = optax.LookaheadParams.init_synced(layers(WIDTH, HIDDEN, CLASSES))
    mesh, tx = mesh_of(8), optax.lookahead(optax.adam(1e-3), 5, 0.5)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        g = jax.grad(mlp_loss)(params.fast, x, y)
        return updated(tx, g, state, params)

    state = placed(mesh, jax.eval_shape(tx.init, params))
    return jax.jit(step), (placed(mesh, params), state, *rows(mesh)), {}


def optax_groups() -> Made:
    """Optax's partition: a transformation for every group of parameters, one of which is frozen."""
    params = {"body": layers(WIDTH, HIDDEN), "head": layers(HIDDEN, CLASSES), "scale": jnp.ones(())}
    groups = {"body": optax.sgd(0.1), "head": optax.adam(1e-3), "scale": optax.set_to_zero()}
    tx = optax.partition(groups, {k: jax.tree.map(lambda _, k=k: k, v) for k, v in params.items()})

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(predicted(params["body"], x)) * params["scale"]
        return entropy(predicted(params["head"], hidden), y)

    return by_optax(loss_fn, params, tx)


def optax_adversarial() -> Made:
    """Optax's adversarial training: a few steps of ascent on the inputs before the descent."""

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        def turn(near: Any, _: Any) -> Any:
            g = jax.grad(lambda near: mlp_loss(params, near, y) * ROWS)(near)
            return x + jnp.clip(near + 0.01 * jnp.sign(g) - x, -0.03, 0.03), None

        near, _ = lax.scan(turn, x, None, length=3)
        return mlp_loss(params, lax.stop_gradient(near), y)

    return by_optax(loss_fn, layers(WIDTH, HIDDEN, CLASSES), optax.adam(1e-3))


def optax_sharpness() -> Made:
    """Optax's sharpness-aware minimisation: the gradient at the end of a step upwards."""

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        g = jax.grad(mlp_loss)(params, x, y)
        norm = optax.tree.norm(g)
        higher = jax.tree.map(lambda w, v: w + lax.stop_gradient(0.05 * v / (norm + 1e-12)), params, g)
        return mlp_loss(higher, x, y)

    return by_optax(loss_fn, layers(WIDTH, HIDDEN, CLASSES), optax.sgd(0.1, momentum=0.9))


def optax_meta_learning() -> Made:
    """Optax's meta-learning: tasks divided over the devices, each with a step of its own inside the loss."""
    mesh, params = mesh_of(8), layers(WIDTH, HIDDEN, CLASSES)
    x = placed(mesh, jax.ShapeDtypeStruct((ROWS, 6, WIDTH), jnp.float32), P(AXIS))
    y = placed(mesh, jax.ShapeDtypeStruct((ROWS, 6), jnp.int32), P(AXIS))

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        def of_task(x: Any, y: Any) -> Any:
            inner = sgd(params, jax.grad(mlp_loss)(params, x[:3], y[:3]))
            return mlp_loss(inner, x[3:], y[3:])

        return jax.vmap(of_task)(x, y).mean()

    return by_optax(loss_fn, params, optax.adam(1e-3), x, y)


def optax_averaged_with_scale() -> Made:
    """A loss scale by hand beside Optax: gradients in bfloat16, updates left out where they overflow."""
    mesh, params = mesh_of(8), layers(WIDTH, HIDDEN, CLASSES)
    tx = optax.adamw(1e-3)

    def step(params: Any, state: Any, scale: Any, x: Any, y: Any) -> Any:
        g = jax.grad(lambda p: mlp_loss(p, x, y) * scale)(params)
        g = jax.tree.map(lambda v: v / scale, g)
        fine = jnp.isfinite(optax.tree.norm(g))
        new, after = updated(tx, g, state, params)
        kept = jax.tree.map(lambda a, b: jnp.where(fine, a, b), (new, after), (params, state))
        return *kept, jnp.where(fine, scale, scale / 2)

    state = placed(mesh, jax.eval_shape(tx.init, params))
    scale = placed(mesh, jnp.ones(()))
    return jax.jit(step, donate_argnums=(0, 1)), (placed(mesh, params), state, scale, *rows(mesh)), {}


OPTAX: dict[str, Callable[[], Made]] = {
    "Optax, lookahead": optax_lookahead,
    "Optax, partition": optax_groups,
    "Optax, adversarial training": optax_adversarial,
    "Optax, sharpness": optax_sharpness,
    "Optax, meta-learning": optax_meta_learning,
    "Optax, a loss scale": optax_averaged_with_scale,
}
