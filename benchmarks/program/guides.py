"""Healthy training steps in the structure of the guides and examples of JAX and Flax, made small.

Nothing is copied: each has the layout, the loss and the kind of update of the page that its docstring names.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax import lax
from jax.example_libraries import optimizers, stax
from jax.sharding import PartitionSpec as P

from benchmarks.program.others import CLASSES, ROWS, WIDTH, entropy, placed, rows
from benchmarks.program.parts import AXIS, Made, mapped, mesh_of

HIDDEN = 16


def layers(*sizes: int) -> list[tuple[jax.Array, jax.Array]]:
    return [(jnp.zeros((n, m)), jnp.zeros(m)) for n, m in itertools.pairwise(sizes)]


def predicted(params: Any, x: Any) -> Any:
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def sgd(params: Any, gradients: Any, rate: float = 0.01) -> Any:
    return jax.tree.map(lambda w, g: w - rate * g, params, gradients)


def updated(tx: Any, g: Any, state: Any, params: Any) -> tuple[Any, Any]:
    updates, state = tx.update(g, state, params)
    return optax.apply_updates(params, updates), state


def by_optax(loss_fn: Callable[..., Any], params: Any, tx: Any, *batch: Any) -> Made:
    """A step under jax.jit, whose batch is divided."""
    mesh = mesh_of(8)

    def step(params: Any, state: Any, *batch: Any) -> Any:
        loss, g = jax.value_and_grad(loss_fn)(params, *batch)
        return *updated(tx, g, state, params), loss

    state = placed(mesh, jax.eval_shape(tx.init, params))
    return jax.jit(step, donate_argnums=(0, 1)), (placed(mesh, params), state, *(batch or rows(mesh))), {}


def random_key(mesh: Any) -> Any:
    return placed(mesh, jax.eval_shape(lambda: jax.random.key(0)))


# ------------------------------------------------------------------------------------------------- JAX


def jax_batch_parallel() -> Made:
    """JAX's guide on distributed arrays: a network under jax.jit, its batch divided over eight devices."""
    mesh, params = mesh_of(8), layers(WIDTH, HIDDEN, HIDDEN, CLASSES)

    def step(params: Any, x: Any, y: Any) -> Any:
        return sgd(params, jax.grad(lambda p: entropy(predicted(p, x), y))(params))

    return jax.jit(step), (placed(mesh, params), *rows(mesh)), {}


def jax_batch_and_tensor_parallel() -> Made:
    """The same guide: four-way batches and two-way matrices, their columns and rows in turn."""
    mesh, params = mesh_of(4, 2), layers(WIDTH, HIDDEN, HIDDEN, CLASSES)
    specs = [(P(None, "model"), P("model")), (P("model"), P()), (P(), P())]
    shapes = [
        tuple(placed(mesh, v, spec) for v, spec in zip(pair, two, strict=True))
        for pair, two in zip(params, specs, strict=True)
    ]

    def step(params: Any, x: Any, y: Any) -> Any:
        new = sgd(params, jax.grad(lambda p: entropy(predicted(p, x), y))(params))
        return jax.tree.map(lambda v, like: lax.with_sharding_constraint(v, like.sharding), new, shapes)

    return jax.jit(step), (shapes, *rows(mesh)), {}


def jax_shard_map_batches() -> Made:
    """JAX's guide on shard_map: a mean over devices in the loss, differentiated from outside."""
    mesh, params = mesh_of(8), layers(WIDTH, HIDDEN, CLASSES)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(AXIS), P(AXIS)), out_specs=P())
    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        return lax.pmean(entropy(predicted(params, x), y), AXIS)

    def step(params: Any, x: Any, y: Any) -> Any:
        return sgd(params, jax.grad(loss_fn)(params, x, y))

    return jax.jit(step), (placed(mesh, params), *rows(mesh)), {}


def jax_shard_map_fsdp() -> Made:
    """The same guide: parameters gathered in the loss; the transpose of that scatters the gradients."""
    mesh = mesh_of(8)
    params = {"a": jnp.zeros((WIDTH, HIDDEN)), "b": jnp.zeros((HIDDEN, CLASSES))}

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(AXIS), P(AXIS), P(AXIS)), out_specs=P())
    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        whole = jax.tree.map(lambda w: lax.all_gather(w, AXIS, tiled=True), params)
        return lax.pmean(entropy(jnp.tanh(x @ whole["a"]) @ whole["b"], y), AXIS)

    def step(params: Any, x: Any, y: Any) -> Any:
        return sgd(params, jax.grad(loss_fn)(params, x, y))

    return jax.jit(step), (placed(mesh, params, P(AXIS)), *rows(mesh)), {}


def jax_mnist_classifier() -> Made:
    """JAX's mnist_classifier: stax layers and an optimizer of example_libraries, which counts its steps."""
    mesh = mesh_of(8)
    init, predict = stax.serial(stax.Dense(HIDDEN), stax.Relu, stax.Dense(CLASSES), stax.LogSoftmax)
    opt_init, opt_update, get_params = optimizers.momentum(0.001, mass=0.9)
    state = jax.eval_shape(lambda key: opt_init(init(key, (-1, WIDTH))[1]), jax.random.key(0))

    def step(i: Any, state: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return -jnp.mean(jnp.sum(predict(params, x) * jax.nn.one_hot(y, CLASSES), axis=1))

        return i + 1, opt_update(i, jax.grad(loss_fn)(get_params(state)), state)

    return jax.jit(step), (placed(mesh, jnp.zeros((), jnp.int32)), placed(mesh, state), *rows(mesh)), {}


def jax_private_sgd() -> Made:
    """JAX's example of private training: each row's gradient is clipped, and noise added to their sum."""
    mesh, params = mesh_of(8), layers(WIDTH, HIDDEN, CLASSES)

    def step(params: Any, key: Any, x: Any, y: Any) -> Any:
        def of_row(x: Any, y: Any) -> Any:
            g = jax.grad(lambda p: entropy(predicted(p, x[None]), y[None]))(params)
            return jax.tree.map(lambda v: v / jnp.maximum(optax.tree.norm(g), 1.0), g)

        g = jax.tree.map(lambda v: v.sum(0), jax.vmap(of_row)(x, y))
        leaves, structure = jax.tree.flatten(g)
        key, *keys = jax.random.split(key, len(leaves) + 1)
        noisy = [v + jax.random.normal(k, v.shape) for v, k in zip(leaves, keys, strict=True)]
        return sgd(params, jax.tree.map(lambda v: v / ROWS, structure.unflatten(noisy))), key

    return jax.jit(step), (placed(mesh, params), random_key(mesh), *rows(mesh)), {}


def jax_variational() -> Made:
    """JAX's mnist_vae: a sample for every row, and the bound on the likelihood."""
    params = {"encoder": layers(WIDTH, HIDDEN, 4), "decoder": layers(2, HIDDEN, WIDTH)}
    mesh = mesh_of(8)

    def loss_fn(params: Any, key: Any, x: Any) -> Any:
        average, spread = jnp.split(predicted(params["encoder"], x), 2, axis=-1)
        z = average + jnp.exp(spread / 2) * jax.random.normal(key, average.shape)
        logits = predicted(params["decoder"], z)
        likelihood = -optax.sigmoid_binary_cross_entropy(logits, x).sum(-1)
        return -(likelihood + 0.5 * (1 + spread - average**2 - jnp.exp(spread)).sum(-1)).mean()

    return by_optax(loss_fn, params, optax.adam(1e-3), random_key(mesh), rows(mesh)[0])


def jax_checkpointed() -> Made:
    """JAX's guide on jax.checkpoint: layers whose activations are computed again."""

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        for w, b in params[:-1]:
            x = jax.checkpoint(lambda x, w=w, b=b: jnp.sin(x @ w + b))(x)
        return entropy(predicted(params[-1:], x), y)

    return by_optax(loss_fn, layers(WIDTH, HIDDEN, HIDDEN, HIDDEN, CLASSES), optax.sgd(0.1))


def jax_steps_in_a_scan() -> Made:
    """A scan over batches, an update in each turn, as JAX's guides on control flow train."""
    mesh, params = mesh_of(8), layers(WIDTH, HIDDEN, CLASSES)
    tx = optax.adam(1e-3)

    def steps(carry: Any, x: Any, y: Any) -> Any:
        def turn(carry: Any, batch: Any) -> Any:
            params, state = carry
            loss, g = jax.value_and_grad(lambda p: entropy(predicted(p, batch[0]), batch[1]))(params)
            return updated(tx, g, state, params), loss

        return lax.scan(turn, carry, (x, y))

    carry = placed(mesh, (params, jax.eval_shape(tx.init, params)))
    return jax.jit(steps, donate_argnums=0), (carry, *rows(mesh, 5)), {}


# ------------------------------------------------------------------------------------------------ Flax


def linen_step(net: Any, tx: Any, inputs: Any, loss_fn: Callable[..., Any]) -> Made:
    """A TrainState under jax.jit; `loss_fn(logits, y)`."""
    mesh = mesh_of(8)
    params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(inputs.shape, inputs.dtype))["params"]
    state = jax.eval_shape(lambda p: TrainState.create(apply_fn=net.apply, params=p, tx=tx), params)

    def step(state: Any, x: Any, y: Any) -> Any:
        def loss_of(p: Any) -> Any:
            logits = state.apply_fn({"params": p}, x)
            return loss_fn(logits, y), logits

        (loss, logits), g = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        return state.apply_gradients(grads=g), loss, jnp.mean(jnp.argmax(logits, -1) == y)

    y = rows(mesh)[1]
    return jax.jit(step, donate_argnums=0), (placed(mesh, state), placed(mesh, inputs, P(AXIS)), y), {}


def flax_mnist() -> Made:
    """Flax's mnist: convolutions, pools and a TrainState."""

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.avg_pool(linen.relu(linen.Conv(4, (3, 3))(x)), (2, 2), strides=(2, 2))
            x = linen.relu(linen.Dense(HIDDEN)(x.reshape(x.shape[0], -1)))
            return linen.Dense(CLASSES)(x)

    inputs = jax.ShapeDtypeStruct((ROWS, 8, 8, 1), jnp.float32)
    return linen_step(Net(), optax.sgd(0.1, momentum=0.9), inputs, entropy)


def flax_sentiment() -> Made:
    """Flax's sst2: an embedding and a recurrent layer, whose last output is classified."""

    class Net(linen.Module):
        @linen.compact
        def __call__(self, tokens: Any) -> Any:
            x = linen.RNN(linen.LSTMCell(HIDDEN))(linen.Embed(32, WIDTH)(tokens))
            return linen.Dense(CLASSES)(x[:, -1])

    inputs = jax.ShapeDtypeStruct((ROWS, 6), jnp.int32)
    return linen_step(Net(), optax.chain(optax.clip(5.0), optax.adam(1e-3)), inputs, entropy)


def flax_translation() -> Made:
    """Flax's wmt: smooth labels, and a loss divided by the weights of the tokens of all devices."""
    mesh = mesh_of(8)
    params = {"embedding": jnp.zeros((CLASSES, WIDTH)), "out": jnp.zeros((WIDTH, CLASSES))}
    tx = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100))

    def step(params: Any, state: Any, tokens: Any) -> Any:
        weights = jnp.where(tokens > 0, 1.0, 0.0)

        def loss_fn(p: Any) -> Any:
            logits = jnp.tanh(p["embedding"][tokens]) @ p["out"]
            smooth = optax.smooth_labels(jax.nn.one_hot(tokens, CLASSES), 0.1)
            return (optax.softmax_cross_entropy(logits, smooth) * weights).sum()

        loss, g = jax.value_and_grad(loss_fn)(params)
        loss, g, count = lax.psum((loss, g, weights.sum()), AXIS)
        return *updated(tx, jax.tree.map(lambda v: v / count, g), state, params), loss / count

    state = jax.eval_shape(tx.init, params)
    tokens = placed(mesh, jax.ShapeDtypeStruct((ROWS, 6), jnp.int32), P(AXIS))
    run = mapped(step, mesh, P(), P(), P(AXIS))
    return run, (placed(mesh, params), placed(mesh, state), tokens), {}


def flax_policy() -> Made:
    """Flax's ppo: a clipped ratio of policies, a value's loss and an entropy, by advantages of the batch."""
    params = {
        "body": layers(WIDTH, HIDDEN, HIDDEN),
        "policy": layers(HIDDEN, CLASSES),
        "value": layers(HIDDEN, 1),
    }
    mesh = mesh_of(8)
    numbers = placed(mesh, jax.ShapeDtypeStruct((3, ROWS), jnp.float32), P(None, AXIS))

    def loss_fn(params: Any, x: Any, action: Any, numbers: Any) -> Any:
        hidden = jax.nn.relu(predicted(params["body"], x))
        logs = jax.nn.log_softmax(predicted(params["policy"], hidden))
        value = predicted(params["value"], hidden)[:, 0]
        old, advantage, target = numbers
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = jnp.exp(jnp.take_along_axis(logs, action[:, None], axis=-1)[:, 0] - old)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        surprise = -(jnp.exp(logs) * logs).sum(-1).mean()
        gain = jnp.minimum(ratio * advantage, clipped * advantage).mean()
        return -gain + 0.5 * ((target - value) ** 2).mean() - 0.01 * surprise

    return by_optax(loss_fn, params, optax.adam(1e-3), *rows(mesh), numbers)


def flax_partitioned() -> Made:
    """Flax's guide on partitioning: boxes with names of axes, which become shardings on a mesh of 4 x 2."""
    mesh = mesh_of(4, 2)
    columns = linen.with_partitioning(linen.initializers.lecun_normal(), (None, "model"))
    lines = linen.with_partitioning(linen.initializers.lecun_normal(), ("model", None))

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.relu(linen.Dense(HIDDEN, kernel_init=columns, use_bias=False)(x))
            return linen.Dense(CLASSES, kernel_init=lines)(x)

    net = Net()
    boxed = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((ROWS, WIDTH)))
    specs = linen.get_partition_spec(boxed)
    params = jax.tree.map(lambda v, spec: placed(mesh, v, spec), linen.unbox(boxed), specs)

    def step(params: Any, x: Any, y: Any) -> Any:
        new = sgd(params, jax.grad(lambda p: entropy(net.apply(p, x), y))(params))
        return jax.tree.map(lambda v, like: lax.with_sharding_constraint(v, like.sharding), new, params_of)

    params_of = params
    return jax.jit(step, donate_argnums=0), (params, *rows(mesh)), {}


def nnx_optimizer() -> Made:
    """Flax's NNX guide: nnx.Optimizer changes the module, inside of a function of their states."""
    mesh = mesh_of(8)

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.a, self.norm = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.BatchNorm(HIDDEN, rngs=rngs)
            self.b = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.b(nnx.gelu(self.norm(self.a(x))))

    def both() -> Any:
        net = Net(nnx.Rngs(0))
        return net, nnx.Optimizer(net, optax.adamw(1e-3), wrt=nnx.Param)

    definition, state = nnx.split(nnx.eval_shape(both))

    def step(state: Any, x: Any, y: Any) -> Any:
        net, optimizer = nnx.merge(definition, state)
        loss, g = nnx.value_and_grad(lambda net: entropy(net(x), y))(net)
        optimizer.update(net, g)
        return nnx.state((net, optimizer)), loss

    return jax.jit(step, donate_argnums=0), (placed(mesh, state), *rows(mesh)), {}


GUIDES: dict[str, Callable[[], Made]] = {
    "JAX, distributed arrays": jax_batch_parallel,
    "JAX, batch and tensor parallel": jax_batch_and_tensor_parallel,
    "JAX, shard_map": jax_shard_map_batches,
    "JAX, shard_map FSDP": jax_shard_map_fsdp,
    "JAX, mnist_classifier": jax_mnist_classifier,
    "JAX, private SGD": jax_private_sgd,
    "JAX, mnist_vae": jax_variational,
    "JAX, checkpoint": jax_checkpointed,
    "JAX, steps in a scan": jax_steps_in_a_scan,
    "Flax, mnist": flax_mnist,
    "Flax, sst2": flax_sentiment,
    "Flax, wmt": flax_translation,
    "Flax, ppo": flax_policy,
    "Flax, partitioning": flax_partitioned,
    "Flax, NNX optimizer": nnx_optimizer,
}
