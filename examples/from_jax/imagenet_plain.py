"""A ResNet in half precision. Structure: flax/examples/imagenet (pmap, BatchNorm, DynamicScale)."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, digits, main
from flax.training import dynamic_scale, train_state


class Block(nn.Module):
    filters: int
    norm: Any
    dtype: Any
    strides: tuple = (1, 1)

    @nn.compact
    def __call__(self, x):
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.dtype)
        y = nn.relu(self.norm()(conv(self.filters, (3, 3), self.strides)(x)))
        y = self.norm(scale_init=nn.initializers.zeros_init())(conv(self.filters, (3, 3))(y))
        if x.shape != y.shape:
            x = self.norm()(conv(self.filters, (1, 1), self.strides)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, train=True):
        norm = functools.partial(
            nn.BatchNorm,
            use_running_average=not train,
            momentum=0.9,
            dtype=self.dtype,
            axis_name="batch",
        )
        x = nn.relu(norm()(nn.Conv(8, (3, 3), use_bias=False, dtype=self.dtype)(x)))
        for stage in range(2):
            x = Block(8 * 2**stage, norm, self.dtype, (1 + stage, 1 + stage))(x)
        return nn.Dense(10, dtype=self.dtype)(x.mean((1, 2)))


class TrainState(train_state.TrainState):
    batch_stats: Any
    dynamic_scale: Any


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def compute_metrics(logits, labels):
    means = {"loss": cross_entropy(logits, labels), "accuracy": (logits.argmax(-1) == labels).mean()}
    return jax.lax.pmean(means, axis_name="batch")


def train_step(state, images, labels):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, changed = state.apply_fn(variables, images, mutable=["batch_stats"])
        penalty = sum((x**2).sum() for x in jax.tree.leaves(params) if x.ndim > 1)
        return cross_entropy(logits, labels) + 0.5e-4 * penalty, (changed, logits)

    finite, scale = True, state.dynamic_scale
    if scale:
        gradient_of = scale.value_and_grad(loss_fn, has_aux=True, axis_name="batch")
        scale, finite, (_, (changed, logits)), gradients = gradient_of(state.params)
    else:
        (_, (changed, logits)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        gradients = jax.lax.pmean(gradients, "batch")
    new = state.apply_gradients(
        grads=gradients,
        batch_stats=jax.lax.pmean(changed["batch_stats"], "batch"),
    )
    keep = functools.partial(jnp.where, finite)
    new = new.replace(
        params=jax.tree.map(keep, new.params, state.params),
        opt_state=jax.tree.map(keep, new.opt_state, state.opt_state),
        dynamic_scale=scale,
    )
    return new, compute_metrics(logits, labels)


def shard(x):
    return x.reshape(jax.local_device_count(), -1, *x.shape[1:])


def train(dtype="float32", half=False):
    model = ResNet(jnp.float16 if half else dtype)
    images, labels = digits(16)
    variables = cast(jax.jit(model.init)(jax.random.key(0), images[:1]), dtype)
    state = TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.sgd(0.1, 0.9, nesterov=True),
        batch_stats=variables["batch_stats"],
        dynamic_scale=None if dtype == "float64" else dynamic_scale.DynamicScale(),
    )
    p_train_step = jax.pmap(train_step, "batch", in_axes=(None, 0, 0), out_axes=None)
    for batch in batches(64, images, labels, dtype=dtype):
        state, metrics = p_train_step(state, *map(shard, batch))
        yield metrics["loss"], state.params


if __name__ == "__main__":
    main(train)
