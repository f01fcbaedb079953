"""Healthy training steps as the examples of JAX, Flax, Haiku, Equinox and Optax write them, made small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.program.parts import AXIS, Made, mesh_of

ROWS, WIDTH, CLASSES = 32, 8, 4


def placed(mesh: Any, tree: Any, spec: P | None = None) -> Any:
    """Shapes of a tree with a sharding."""
    sharding = NamedSharding(mesh, spec or P())
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def rows(mesh: Any, *lead: int) -> tuple[Any, Any]:
    x = jax.ShapeDtypeStruct((*lead, ROWS, WIDTH), jnp.float32)
    y = jax.ShapeDtypeStruct((*lead, ROWS), jnp.int32)
    return placed(mesh, (x, y), P(*[None] * len(lead), AXIS))


def entropy(logits: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


class Block(linen.Module):
    """A block of Flax's lm1b: attention and an MLP, with dropout."""

    @linen.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        h = linen.LayerNorm()(x)
        h = linen.MultiHeadDotProductAttention(num_heads=2, dropout_rate=0.1, deterministic=not train)(h)
        x = x + linen.Dropout(0.1, deterministic=not train)(h)
        return x + linen.Dense(x.shape[-1])(linen.gelu(linen.Dense(16)(linen.LayerNorm()(x))))


class Language(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        x = linen.Embed(16, WIDTH)(tokens)
        return linen.Dense(16)(Block()(Block()(x)))


def flax_lm1b() -> Made:
    """Flax's lm1b: a TrainState under jax.jit, the batch divided, a key folded with the step."""
    mesh, net = mesh_of(8), Language()
    tokens = jnp.zeros((ROWS, 16), jnp.int32)
    variables = jax.eval_shape(net.init, {"params": jax.random.key(0), "dropout": jax.random.key(1)}, tokens)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 100)))
    state = jax.eval_shape(
        lambda p: TrainState.create(apply_fn=net.apply, params=p, tx=tx), variables["params"]
    )

    def step(state: Any, tokens: Any, key: Any) -> Any:
        key = jax.random.fold_in(key, state.step)

        def loss_fn(p: Any) -> Any:
            logits = state.apply_fn({"params": p}, tokens, rngs={"dropout": key})
            return entropy(logits[:, :-1], tokens[:, 1:])

        loss, g = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=g), {"loss": loss}

    key = placed(mesh, jax.eval_shape(lambda: jax.random.key(0)))
    return jax.jit(step, donate_argnums=0), (placed(mesh, state), placed(mesh, tokens, P(AXIS)), key), {}


def flax_imagenet() -> Made:
    """Flax's imagenet: pmap, each device's own batch statistics, a check that all is finite."""

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.relu(linen.BatchNorm(use_running_average=False)(linen.Dense(16)(x)))
            return linen.Dense(CLASSES)(x)

    net, tx = Net(), optax.sgd(0.1, momentum=0.9, nesterov=True)
    variables = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((4, WIDTH)))
    state = {
        **variables,
        "opt": jax.eval_shape(tx.init, variables["params"]),
        "step": jnp.zeros((), jnp.int32),
    }

    def step(state: Any, x: Any, y: Any) -> Any:
        def loss_fn(p: Any) -> Any:
            logits, new = net.apply(
                {"params": p, "batch_stats": state["batch_stats"]}, x, mutable=["batch_stats"]
            )
            penalty = 1e-4 * sum(jnp.sum(v**2) for v in jax.tree.leaves(p) if v.ndim > 1)
            return entropy(logits, y) + penalty, (new, logits)

        (_, (new, logits)), g = jax.value_and_grad(loss_fn, has_aux=True)(state["params"])
        g = lax.pmean(g, "batch")
        fine = jnp.all(jnp.stack([jnp.isfinite(v).all() for v in jax.tree.leaves(g)]))
        updates, opt = tx.update(g, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        params = jax.tree.map(lambda a, b: jnp.where(fine, a, b), params, state["params"])
        metrics = lax.pmean({"accuracy": jnp.mean(jnp.argmax(logits, -1) == y)}, "batch")
        return {"params": params, **new, "opt": opt, "step": state["step"] + 1}, metrics

    def stack(x: Any) -> Any:
        return jax.ShapeDtypeStruct((8, *x.shape), x.dtype)

    x, y = jax.ShapeDtypeStruct((8, 4, WIDTH), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.int32)
    return jax.pmap(step, axis_name="batch", donate_argnums=0), (jax.tree.map(stack, state), x, y), {}


def haiku_imagenet() -> Made:
    """Haiku: a transform under pmap, the gradients' mean."""
    net = hk.transform(lambda x: hk.nets.MLP([16, 16, CLASSES])(x))
    tx = optax.adam(1e-3)
    params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((4, WIDTH)))

    def step(params: Any, opt: Any, x: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(lambda p: entropy(net.apply(p, None, x), y))(params)
        updates, opt = tx.update(lax.pmean(g, "i"), opt)
        return optax.apply_updates(params, updates), opt, lax.pmean(loss, "i")

    def stack(x: Any) -> Any:
        return jax.ShapeDtypeStruct((8, *x.shape), x.dtype)

    state = jax.tree.map(stack, (params, jax.eval_shape(tx.init, params)))
    x, y = jax.ShapeDtypeStruct((8, 4, WIDTH), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.int32)
    return jax.pmap(step, axis_name="i"), (*state, x, y), {}


def equinox_parallelism() -> Made:
    """Equinox's example of parallelism: arrays of a module under jax.jit, constrained to all devices."""
    mesh = mesh_of(8)
    net = eqx.filter_eval_shape(lambda: eqx.nn.MLP(WIDTH, CLASSES, 16, 2, key=jax.random.key(0)))
    arrays, static = eqx.partition(net, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    tx = optax.adam(1e-3)
    state = jax.eval_shape(tx.init, arrays)

    def step(arrays: Any, state: Any, x: Any, y: Any) -> Any:
        arrays = lax.with_sharding_constraint(arrays, NamedSharding(mesh, P()))
        x, y = lax.with_sharding_constraint((x, y), NamedSharding(mesh, P(AXIS)))
        g = jax.grad(lambda a: entropy(jax.vmap(eqx.combine(a, static))(x), y))(arrays)
        updates, state = tx.update(g, state)
        return eqx.apply_updates(arrays, updates), state

    return jax.jit(step), (placed(mesh, arrays), placed(mesh, state), *rows(mesh)), {}


def optax_multi_steps() -> Made:
    """Optax's MultiSteps: an update in every fourth call, by a branch."""
    mesh = mesh_of(8)
    tx = optax.MultiSteps(optax.adam(1e-3), 4)
    params = {"w": jnp.zeros((WIDTH, CLASSES)), "b": jnp.zeros(CLASSES)}

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(lambda p: entropy(x @ p["w"] + p["b"], y))(params)
        updates, state = tx.update(g, state, params)
        return optax.apply_updates(params, updates), state, loss

    state = placed(mesh, jax.eval_shape(tx.init, params))
    return jax.jit(step), (placed(mesh, params), state, *rows(mesh)), {}


def nnx_scale_up() -> Made:
    """Flax's guide for NNX under jax.jit: a split module, dropout's streams as state."""
    mesh = mesh_of(8)

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.a, self.b = nnx.Linear(WIDTH, 16, rngs=rngs), nnx.Linear(16, CLASSES, rngs=rngs)
            self.drop = nnx.Dropout(0.2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.b(self.drop(nnx.relu(self.a(x))))

    net = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
    definition, params, rest = nnx.split(net, nnx.Param, ...)
    tx = optax.adamw(1e-3)

    def step(params: Any, rest: Any, state: Any, x: Any, y: Any) -> Any:
        def loss_fn(p: Any) -> Any:
            net = nnx.merge(definition, p, rest, copy=True)
            return entropy(net(x), y), nnx.split(net, nnx.Param, ...)[2]

        (loss, new), g = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, state = tx.update(g, state, params)
        return optax.apply_updates(params, updates), new, state, loss

    state = placed(mesh, jax.eval_shape(tx.init, params))
    return jax.jit(step), (placed(mesh, params), placed(mesh, rest), state, *rows(mesh)), {}


def scanned_layers() -> Made:
    """Layers in a scan with rematerialisation and bfloat16 products, as MaxText stacks them."""
    mesh = mesh_of(8)
    params = {"layers": jnp.zeros((3, WIDTH, WIDTH)), "head": jnp.zeros((WIDTH, CLASSES))}
    tx = optax.adamw(1e-3)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss_fn(p: Any) -> Any:
            @jax.checkpoint
            def layer(h: Any, w: Any) -> Any:
                new = jax.nn.gelu(h.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(h.dtype)
                return lax.with_sharding_constraint(h + new, NamedSharding(mesh, P(AXIS))), None

            return entropy(lax.scan(layer, x, p["layers"])[0] @ p["head"], y)

        loss, g = jax.value_and_grad(loss_fn)(params)
        updates, state = tx.update(g, state, params)
        return optax.apply_updates(params, updates), state, loss

    state = placed(mesh, jax.eval_shape(tx.init, params))
    return jax.jit(step, donate_argnums=(0, 1)), (placed(mesh, params), state, *rows(mesh)), {}


def jax_spmd_data_parallel() -> Made:
    """JAX's spmd example of old: pmap with axis_index, a psum of gradients."""

    def step(params: Any, x: Any, y: Any) -> Any:
        g = jax.grad(lambda p: entropy(jnp.tanh(x @ p[0]) @ p[1], y))(params)
        return [(w - 0.01 * lax.psum(dw, "batch")) for w, dw in zip(params, g, strict=True)]

    params = [jnp.zeros((8, WIDTH, 16)), jnp.zeros((8, 16, CLASSES))]
    x, y = jax.ShapeDtypeStruct((8, 4, WIDTH), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.int32)
    return jax.pmap(step, axis_name="batch"), (params, x, y), {}


def averaged_weights() -> Made:
    """Exponential averages of the weights beside them, and a step that leaves out infinite gradients."""
    mesh = mesh_of(8)
    params = {"w": jnp.zeros((WIDTH, CLASSES))}
    tx = optax.apply_if_finite(optax.chain(optax.clip(1.0), optax.lamb(1e-3)), 5)

    def step(carry: Any, x: Any, y: Any) -> Any:
        params, average, state = carry
        g = jax.grad(lambda p: entropy(x @ p["w"], y))(params)
        updates, state = tx.update(g, state, params)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, average, 0.01), state

    state = jax.eval_shape(tx.init, params)
    return jax.jit(step, donate_argnums=0), (placed(mesh, (params, params, state)), *rows(mesh)), {}


OTHERS: dict[str, Callable[[], Made]] = {
    "Flax, lm1b": flax_lm1b,
    "Flax, imagenet": flax_imagenet,
    "Flax, NNX": nnx_scale_up,
    "Haiku, imagenet": haiku_imagenet,
    "Equinox, parallelism": equinox_parallelism,
    "Optax, MultiSteps": optax_multi_steps,
    "Optax, averages": averaged_weights,
    "MaxText, scanned layers": scanned_layers,
    "JAX, spmd": jax_spmd_data_parallel,
}
