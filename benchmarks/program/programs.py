"""Training steps by hand, healthy and with faults: a function makes step, arguments, options of a fault."""

from __future__ import annotations

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
    REDUCTIONS,
    WIDTH,
    Made,
    batch_of,
    loss_of,
    mapped,
    mean,
    mesh_of,
    momentum,
    only,
    parameters,
    shape,
    total,
)


def by_shard_map(fault: str) -> Made:
    """A step in jax.shard_map, with the reduction by hand."""
    mesh = mesh_of(8)

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(loss_of)(w, x, y)
        if fault == "branch":
            g = lax.cond(x[0, 0] > 0, mean, lambda g: g, g)
        elif fault == "half":
            g = jax.tree.map(lambda x: mean(x.astype(jnp.bfloat16)).astype(x.dtype), g)
        elif fault in REDUCTIONS:
            g = REDUCTIONS[fault](g)
        else:
            g = mean(g)
        if fault == "gathered":
            rows, labels = (lax.all_gather(v, AXIS, tiled=True) for v in (x, y))
            g = jax.grad(loss_of)(w, rows, labels)
        if fault == "extreme of the norm":
            scale = lax.pmax(jnp.abs(loss), AXIS)
            g = jax.tree.map(lambda x: x / scale, g)
        w, m = momentum(w, m, g)
        if fault == "differs":
            w = only(w, "c", lambda x: x + 1e-3 * lax.axis_index(AXIS))
        return w, m, loss if fault == "loss of one device" else mean(loss)

    w = parameters(mesh)
    return mapped(step, mesh, P(), P(), P(AXIS), P(AXIS)), (w, w, *batch_of(mesh)), {}


def by_sharding(fault: str) -> Made:
    """jax.jit with NamedSharding: XLA puts the reductions in."""
    mesh = mesh_of(8)
    tx = optax.adam(1e-3)

    def step(w: Any, s: Any, x: Any, y: Any) -> Any:
        if fault == "gathered":
            x, y = (lax.with_sharding_constraint(v, NamedSharding(mesh, P())) for v in (x, y))
        loss, g = jax.value_and_grad(loss_of)(w, x, y)
        if fault == "missing":
            # The shape of openxla/xla#40034: XLA takes sums over parts of the batch for the whole.
            cut = jax.shard_map(
                lambda w, x, y: jax.grad(loss_of)(w, x, y),
                mesh=mesh,
                in_specs=(P(), P(AXIS), P(AXIS)),
                out_specs=P(),
                check_vma=False,
            )
            g = cut(w, x, y)
        updates, s = tx.update(g, s, w)
        return optax.apply_updates(w, updates), s, loss

    w = parameters(mesh)
    state = jax.tree.map(lambda x: shape(mesh, P(), *x.shape, kind=str(x.dtype)), jax.eval_shape(tx.init, w))
    rows = batch_of(mesh, P() if fault == "undivided" else P(AXIS))
    donate = (0, 1, 2) if fault != "donation" else (0, 1)
    if fault == "donation":
        kinds = jax.tree.map(lambda x: x, w)
        inner = step

        def step(w: Any, s: Any, x: Any, y: Any) -> Any:  # type: ignore[no-redef]
            new, s, loss = inner(w, s, x, y)
            # A result in another type cannot take the donated memory.
            return only(new, "a", lambda x: x.astype(jnp.bfloat16)), s, loss

        del kinds
    return jax.jit(step, donate_argnums=donate[:2]), (w, state, *rows), {}


def by_pmap(fault: str) -> Made:
    """jax.pmap over stacks of copies."""

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(loss_of)(w, x, y)
        return *momentum(w, m, REDUCTIONS[fault](g)), mean(loss)

    def stack(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((8, *sizes), jnp.float32)

    w = {"a": stack(WIDTH, 2 * HIDDEN), "b": stack(2 * HIDDEN, 2), "c": stack(2)}
    return jax.pmap(step, axis_name=AXIS), (w, w, stack(4, WIDTH), stack(4, 2)), {}


def two_axes(fault: str) -> Made:
    """Data and tensor parallelism on a mesh of 4 x 2, by hand."""
    mesh = mesh_of(4, 2)
    held = {"a": P(None, "model"), "b": P("model"), "c": P()}
    w = parameters(mesh, held)
    checked = fault in ("", "means of means")

    def loss_fn(w: Any, x: Any, y: Any) -> Any:
        partial = jnp.tanh(x @ w["a"]) @ w["b"]
        whole = partial if fault == "other axis" else lax.psum(partial, "model")
        return jnp.mean((whole + w["c"] - y) ** 2)

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        # With check_vma a gradient of what all devices of an axis hold is a sum over that axis.
        g = jax.grad(loss_fn)(w, x, y)
        if fault == "both":
            g = lax.pmean(g, (AXIS, "model"))
        elif fault in ("axis", "one leaf by the wrong axis"):
            wrong = lax.pmean(g, "model")
            g = wrong if fault == "axis" else {**mean(g), "c": wrong["c"]}
        elif fault == "means of means":
            g = mean(mean(g))
        elif not checked:
            g = mean(g)
        return momentum(w, m, g)

    run = jax.shard_map(
        step, mesh=mesh, in_specs=(held, held, P(AXIS), P(AXIS)), out_specs=(held, held), check_vma=checked
    )
    return jax.jit(run, donate_argnums=(0, 1)), (w, w, *batch_of(mesh)), {}


def fully_sharded(fault: str) -> Made:
    """Parameters and state divided over the devices of the batch (FSDP); XLA gathers and scatters."""
    mesh = mesh_of(8)
    specs = {"a": P(None, None), "b": P(None), "c": P(None)}
    size = 64
    w = {"a": shape(mesh, P(AXIS), size, size), "b": shape(mesh, P(AXIS), size, 2)}
    x, y = shape(mesh, P(AXIS), BATCH, size), shape(mesh, P(AXIS), BATCH, 2)
    del specs

    def loss_fn(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        whole = jax.tree.map(lambda v: lax.all_gather(v, AXIS, tiled=True), w)
        g = jax.grad(loss_fn)(whole, x, y)
        if fault == "missing":
            g = jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, lax.axis_index(AXIS) * 8, 8), g)
        else:
            g = jax.tree.map(lambda v: lax.psum_scatter(v, AXIS, tiled=True) / 8, g)
        if fault == "again":
            g = total(g)
        return momentum(w, m, g)

    if fault == "by XLA":

        def plain(w: Any, m: Any, x: Any, y: Any) -> Any:
            return momentum(w, m, jax.grad(loss_fn)(w, x, y))

        return jax.jit(plain, donate_argnums=(0, 1)), (w, w, x, y), {}
    return mapped(step, mesh, *(P(AXIS),) * 4, out=P(AXIS)), (w, w, x, y), {}


def zero_1(fault: str) -> Made:
    """The optimizer's state divided, the parameters whole (ZeRO-1)."""
    mesh = mesh_of(8)
    w = {"a": shape(mesh, P(), 64, 64), "b": shape(mesh, P(), 64, 2)}
    part = P() if fault == "unsharded" else P(AXIS)
    m = {k: shape(mesh, part, *v.shape) for k, v in w.items()}
    x, y = shape(mesh, P(AXIS), BATCH, 64), shape(mesh, P(AXIS), BATCH, 2)

    def loss_fn(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        # maxtext#5104: the setting is read, and the state stays whole on every device.
        g = jax.grad(loss_fn)(w, x, y)
        m = jax.tree.map(lambda a, b: 0.9 * a + b, m, g)
        kept = P() if fault == "lost" else part
        m = jax.tree.map(lambda v: lax.with_sharding_constraint(v, NamedSharding(mesh, kept)), m)
        w = jax.tree.map(lambda a, b: a - 0.1 * b, w, m)
        return jax.tree.map(lambda v: lax.with_sharding_constraint(v, NamedSharding(mesh, P())), w), m

    options = {"sharded": r"args\[1\]"} if fault in ("", "unsharded") else {}
    return jax.jit(step, donate_argnums=(0, 1)), (w, m, x, y), options


def accumulated(fault: str) -> Made:
    """Four parts of a batch one after the other, and one update."""
    mesh = mesh_of(8)

    def step(w: Any, m: Any, x: Any, y: Any) -> Any:
        def turn(g: Any, rows: Any) -> Any:
            new = jax.grad(loss_of)(w, *rows)
            if fault == "loop":
                new = mean(new)
            g = jax.tree.map(jnp.add, g, new)
            return (total(g) if fault == "again in the loop" else g), None

        cut = tuple(v.reshape(4, -1, *v.shape[1:]) for v in (x, y))
        g, _ = lax.scan(turn, jax.tree.map(jnp.zeros_like, w), cut)
        if fault not in ("loop", "missing", "again in the loop"):
            g = mean(g)
        if fault == "stuck":
            g, _ = lax.while_loop(
                lambda c: c[1] < jnp.abs(x[0, 0]), lambda c: (mean(c[0]), c[1] + 1.0), (g, 0.0)
            )
        return momentum(w, m, g)

    w = parameters(mesh)
    return mapped(step, mesh, P(), P(), P(AXIS), P(AXIS)), (w, w, *batch_of(mesh, rows=128)), {}


def with_dropout(fault: str) -> Made:
    """Dropout, by a key that all devices get."""
    mesh = mesh_of(8)

    def step(w: Any, m: Any, key: Any, x: Any, y: Any) -> Any:
        new, draw = jax.random.split(key)
        if fault != "keys":
            draw = jax.random.fold_in(draw, lax.axis_index(AXIS))

        def loss_fn(w: Any) -> Any:
            hidden = jnp.tanh(x @ w["a"])
            kept = jax.random.bernoulli(draw, 0.5, hidden.shape)
            return jnp.mean((jnp.where(kept, hidden * 2, 0) @ w["b"] + w["c"] - y) ** 2)

        g = jax.grad(loss_fn)(w)
        g = g if fault == "missing" else mean(g)
        if fault == "key differs":
            new = draw
        return *momentum(w, m, g), new

    w = parameters(mesh)
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=NamedSharding(mesh, P()))
    run = mapped(step, mesh, P(), P(), P(), P(AXIS), P(AXIS))
    return run, (w, w, key, *batch_of(mesh)), {}


def normalised(fault: str) -> Made:
    """Statistics of all rows in the forward pass, the global norm, and a check that all is finite."""
    mesh = mesh_of(8)

    def step(w: Any, m: Any, stats: Any, x: Any, y: Any) -> Any:
        def loss_fn(w: Any) -> Any:
            hidden = x @ w["a"]
            average = hidden.mean(0) if fault == "statistics" else mean(hidden.mean(0))
            spread = mean(((hidden - average) ** 2).mean(0))
            hidden = (hidden - average) * lax.rsqrt(spread + 1e-5)
            return jnp.mean((jnp.tanh(hidden) @ w["b"] + w["c"] - y) ** 2), average

        g, average = jax.grad(loss_fn, has_aux=True)(w)
        if fault == "norm before":
            g = jax.tree.map(lambda v: v / optax.tree.norm(g), g)
        g = g if fault == "missing" else mean(g)
        g = g if fault == "norm before" else jax.tree.map(lambda v: v / optax.tree.norm(g), g)
        fine = jnp.all(jnp.stack([jnp.isfinite(v).all() for v in jax.tree.leaves(g)]))
        new, m = momentum(w, m, g)
        return jax.tree.map(lambda a, b: jnp.where(fine, a, b), new, w), m, 0.9 * stats + 0.1 * average

    w = parameters(mesh)
    run = mapped(step, mesh, P(), P(), P(), P(AXIS), P(AXIS))
    return run, (w, w, shape(mesh, P(), 2 * HIDDEN), *batch_of(mesh)), {}
