"""What haiku_pruning_plain.py does, with its batches shared out over all devices."""

import functools

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import batches, cast, digits, main

import jaxpar


def topk_mask(value, fraction):
    shape, value = value.shape, value.reshape(-1)
    order = jax.random.permutation(jax.random.PRNGKey(42), jnp.arange(value.size, dtype=jnp.int32))
    k = jnp.round(fraction * value.size).astype(jnp.int32)
    kept = jnp.greater_equal(np.arange(value.size), value.size - k)
    mask = jnp.zeros(value.size, jnp.int32).at[jnp.argsort(value[order])].set(kept)
    return jnp.zeros_like(mask).at[order].set(mask).reshape(shape)


def matching(suffix):
    return lambda m, n, v: m.endswith(suffix) and n != "b" and v.ndim > 1


def partitions(sparsity, params):
    trees = []
    for predicate, _ in sparsity:
        head, params = hk.data_structures.partition(predicate, params)
        trees.append(head)
    return trees, params


@functools.partial(jax.jit, static_argnums=2)
def apply_mask(params, masks, sparsity):
    trees, others = partitions(sparsity, params)
    pruned = [
        jax.tree.map(lambda x, y: x * y.astype(x.dtype), t, m) for t, m in zip(trees, masks, strict=True)
    ]
    return hk.data_structures.merge(*pruned, others)


@functools.partial(jax.jit, static_argnums=2)
def update_mask(params, fraction, sparsity):
    trees, _ = partitions(sparsity, params)
    return [
        jax.tree.map(lambda x, s=s: topk_mask(jnp.abs(x), 1.0 - s * fraction), t)
        for t, (_, s) in zip(trees, sparsity, strict=True)
    ]


def net_fn(batch):
    x = batch["image"]
    return hk.Sequential(
        [hk.Flatten(), hk.Linear(64), jax.nn.relu, hk.Linear(32), jax.nn.relu, hk.Linear(10)]
    )(x)


def train(dtype="float32"):
    net = hk.without_apply_rng(hk.transform(net_fn))
    apply = jaxpar.DataParallel(net.apply)
    opt = optax.adam(1e-3, eps=1e-6)
    sparsity = ((matching("linear"), 0.98), (matching("linear_1"), 0.9))

    @jax.jit
    def loss(params, batch):
        logits = apply(jaxpar.replicated(params), batch)
        labels = jax.nn.one_hot(batch["label"], 10)
        l2 = 0.5 * sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params))
        xent = -jnp.sum(labels * jax.nn.log_softmax(logits)) / labels.shape[0]
        return xent + 1e-4 * l2

    @jax.jit
    def get_updates(params, opt_state, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = opt.update(grads, opt_state)
        return value, updates, opt_state

    images, labels = digits(14)
    stream = ({"image": x, "label": y} for x, y in batches(32, images, labels, dtype=dtype))
    params = average = cast(net.init(jax.random.PRNGKey(42), next(stream)), dtype)
    masks = update_mask(params, 0.0, sparsity)
    opt_state = opt.init(params)
    for step, batch in enumerate(stream):
        pruned = apply_mask(params, masks, sparsity)
        value, updates, opt_state = get_updates(pruned, opt_state, batch)
        params = optax.apply_updates(params, apply_mask(updates, masks, sparsity))
        if step % 2 == 0:
            masks = update_mask(params, min(1.0, step / 6), sparsity)
        average = optax.incremental_update(params, average, step_size=0.1)
        yield value, (params, average)


if __name__ == "__main__":
    main(train)
