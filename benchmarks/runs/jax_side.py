"""The trainings in JAX, with a tap in their loop; they begin with torch's weights."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxpar import parity

from . import torch_side
from .training import LENGTH, Training, batches, bfloat16, rate_at

Tree = dict[str, Any]


def initial(training: Training) -> tuple[Tree, Tree]:
    """Return torch's initial weights and buffers in JAX's layout and names."""
    model = torch_side.initial(training)
    params: Tree = {}
    buffers: Tree = {}
    for name, tensor in model.state_dict().items():
        layer, leaf = name.split(".")
        x = tensor.numpy()
        if leaf in ("running_mean", "running_var"):
            buffers.setdefault(layer, {})[leaf.removeprefix("running_")] = jnp.asarray(x)
        elif leaf == "weight":
            kind = {1: "scale", 4: "kernel"}.get(
                x.ndim, "embedding" if layer in ("token", "position") else "kernel"
            )
            x = x.transpose(2, 3, 1, 0) if x.ndim == 4 else x.T if kind == "kernel" else x
            params.setdefault(layer, {})[kind] = jnp.asarray(x)
        elif leaf == "bias":
            params.setdefault(layer, {})["bias"] = jnp.asarray(x)
    return params, buffers


def dense(p: Tree, x: jax.Array) -> jax.Array:
    return x @ p["kernel"] + p.get("bias", 0)


def batch_norm(
    p: Tree, s: Tree, x: jax.Array, train: bool, momentum: float, biased: bool
) -> tuple[jax.Array, Tree]:
    mean, var = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if train else (s["mean"], s["var"])
    n = x.size // x.shape[-1]
    unbiased = var if biased else var * n / (n - 1)
    if train:
        s = {
            "mean": (1 - momentum) * s["mean"] + momentum * mean,
            "var": (1 - momentum) * s["var"] + momentum * unbiased,
        }
    return (x - mean) / jnp.sqrt(var + 1e-5) * p["scale"] + p["bias"], s


def layer_norm(p: Tree, x: jax.Array) -> jax.Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-5) * p["scale"] + p["bias"]


def dropped(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0) if rate else x


def forward(training: Training, p: Tree, s: Tree, x: jax.Array, key: jax.Array) -> tuple[jax.Array, Tree]:
    rate = 0.0 if training.has("dropout mode") else training.dropout
    if training.model == "regression":
        x = jnp.tanh(dense(p["fc2"], jnp.tanh(dense(p["fc1"], x))))
        return dense(p["fc3"], dropped(x, rate, key)), s
    if training.model == "digits":
        train, momentum = not training.has("evaluation mode"), training.has("momentum of buffers") or 0.1
        for i in ("1", "2"):
            x = jax.lax.conv_general_dilated(
                x, p["conv" + i]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = x + p["conv" + i]["bias"]
            norm = batch_norm(p["norm" + i], s["norm" + i], x, train, momentum, training.has("biased"))
            x, s = jax.nn.relu(norm[0]), {**s, "norm" + i: norm[1]}
            if i == "1":
                x = nnx.max_pool(x, (2, 2), (2, 2))
        return dense(p["head"], dropped(x.mean((1, 2)), rate, key)), s
    x = p["token"]["embedding"][x] + p["position"]["embedding"]
    q, k, v = jnp.split(dense(p["qkv"], layer_norm(p["norm1"], x)), 3, -1)
    weights = jnp.where(jnp.tri(LENGTH, dtype=bool), q @ k.swapaxes(1, 2) / 4, -jnp.inf)
    x = x + dropped(dense(p["out"], jax.nn.softmax(weights) @ v), rate, key)
    x = x + dense(p["down"], jax.nn.gelu(dense(p["up"], layer_norm(p["norm2"], x)), approximate=False))
    return dense(p["head"], layer_norm(p["norm"], x)), s


PASS = (
    *("sum", "label smoothing", "cast pass", "evaluation mode", "momentum of buffers", "biased"),
    *("dropout mode", "detached", "penalty"),
)


@functools.cache
def gradient_function(model: str, dtype: str, dropout: float, plant: tuple[tuple[str, Any], ...]) -> Any:
    training = Training(model, "jax", dtype, 0, dropout=dropout, plant=plant)

    def loss_fn(p: Tree, s: Tree, x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
        if layer := training.has("detached"):
            p = {n: jax.lax.stop_gradient(v) if n == layer else v for n, v in p.items()}
        cast = p
        if kind := training.has("cast pass"):
            cast, x = jax.tree.map(
                lambda a: a.astype(kind) if jnp.issubdtype(a.dtype, jnp.floating) else a, (p, x)
            )
        output, s = forward(training, cast, s, x, key)
        output = output.astype(dtype)
        if training.model == "regression":
            losses = (output - y) ** 2
        else:
            labels = jax.nn.one_hot(y, output.shape[-1], dtype=output.dtype)
            labels = optax.smooth_labels(labels, training.has("label smoothing") or 0.0)
            losses = optax.softmax_cross_entropy(output, labels)
        loss = losses.sum() if training.has("sum") else losses.mean()
        if penalty := training.has("penalty"):
            loss += penalty / 2 * sum(jnp.sum(w**2) for w in jax.tree.leaves(p))
        return loss, s

    return jax.jit(jax.value_and_grad(loss_fn, has_aux=True))


def transformation(training: Training) -> optax.GradientTransformation:
    matrices = None if training.has("decay all") else lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)
    decay = optax.add_decayed_weights(training.weight_decay, matrices)
    settings = training.settings
    if training.optimizer == "sgd":
        momentum = settings.get("momentum", 0.0)
        inner = optax.trace(momentum, settings.get("nesterov", False)) if momentum else optax.identity()
        return optax.chain(decay, inner)
    if training.optimizer == "rmsprop":
        rms = optax.scale_by_rms(settings.get("alpha", 0.99), settings.get("eps", 1e-8), eps_in_sqrt=False)
        return optax.chain(decay, rms)
    b1, b2 = settings.get("betas", (0.9, 0.999))
    eps = settings.get("eps", 1e-8)
    adam = optax.scale_by_adam(b1, b2, eps=0.0 if training.has("eps inside") else eps)
    if training.has("eps inside"):
        adam = optax.scale_by_adam(b1, b2, eps=0.0, eps_root=eps)
    return optax.chain(decay, adam) if training.has("coupled") else optax.chain(adam, decay)


@functools.cache
def update_function(key: str) -> Any:
    training = UPDATES[key]
    tx = transformation(training)

    def update(p: Tree, state: Any, gradients: Tree, rate: jax.Array) -> Any:
        updates, state = tx.update(gradients, state, p)
        return jax.tree.map(lambda w, u: w - rate * u, p, updates), state

    return tx, jax.jit(update)


UPDATES: dict[str, Training] = {}


def run(training: Training, folder: Path) -> None:
    params, buffers = initial(training)
    plant = tuple(pair for pair in training.plant if pair[0] in PASS)
    gradient_of = gradient_function(training.model, training.dtype, training.dropout, plant)
    key = repr((training.optimizer, training.settings, training.weight_decay, training.plant))
    UPDATES[key] = training
    tx, update = update_function(key)
    state = tx.init(params)
    taps = [
        parity.Tap(folder, start=params, extra=buffers, full=(0,), rank=rank, world=training.world)
        for rank in range(training.world)
        if rank != training.has("missing rank")
    ]
    stream = batches(training)
    random = jax.random.key(training.seed + 1 + (training.has("dropout seed") or 0))
    for step in range(training.steps):
        rate = rate_at(training, step)
        gradients: list[Tree] = []
        for _ in range(training.accumulate):
            x, y = next(stream)
            parts = np.array_split(np.arange(len(x)), training.world)
            if training.has("same rows"):
                parts = [parts[0]] * training.world
            for rank, rows in enumerate(parts):
                random, mask_key = jax.random.split(random)
                a, b = (
                    jnp.asarray(z[rows], training.dtype if z.dtype.kind == "f" else jnp.int32) for z in (x, y)
                )
                (loss, buffers), grads = gradient_of(params, buffers, a, b, mask_key)
                divided = 1 if training.has("accumulated sum") else training.accumulate
                gradients.append(jax.tree.map(lambda g: g / divided, grads))  # noqa: B023
                if rank < len(taps):
                    taps[rank](step, batch=(a, b), loss=loss * (training.has("reported factor") or 1.0))
        entering = finish(training, gradients)
        before = params
        if training.has("skipped step") != step:
            params, state = update(params, state, entering, rate)
        params = changed(training, before, params)
        for rank, tap in enumerate(taps):
            local = gradients[rank] if training.has("not averaged") else entering
            tap(step, gradients=local, parameters=params, rate=rate, optimizer=state, extra=buffers)
    for tap in taps:
        tap.close()


def finish(training: Training, gradients: list[Tree]) -> Tree:
    """Return the gradients as they enter the optimizer."""
    parts = gradients[:1] if training.has("not averaged") else gradients
    world = 1 if training.has("not averaged") or training.has("summed over processes") else training.world
    total = jax.tree.map(lambda *g: functools.reduce(jnp.add, g) / world, *parts)
    if factor := training.has("gradient factor"):
        total = jax.tree.map(lambda g: g * factor, total)
    if training.has("round gradients"):
        total = jax.tree.map(lambda g: jnp.asarray(bfloat16(np.asarray(g))), total)
    if limit := training.has("clip values"):
        return jax.tree.map(lambda g: jnp.clip(g, -limit, limit), total)
    if training.clip and not training.has("no clip"):
        eps = 0.0 if training.has("clip without eps") else 1e-6
        factor = jnp.minimum(
            1.0, (training.has("clip limit") or training.clip) / (optax.tree.norm(total) + eps)
        )
        total = jax.tree.map(lambda g: g * factor, total)
    return total


def changed(training: Training, before: Tree, after: Tree) -> Tree:
    if layer := training.has("frozen"):
        after = {name: before[name] if name == layer else value for name, value in after.items()}
    if kind := training.has("round parameters"):
        after = jax.tree.map(lambda w: w.astype(kind).astype(w.dtype), after)
    return after
