"""The Flax model and its training, as a user of jaxpar writes them."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpar

from ...parity import to_torch
from ...parity.measuring import Kind
from .settings import LEARNING_RATE, MOMENTUM, Fault, Settings

Tensors = dict[str, np.ndarray]
"""With torch's names and in torch's layout."""


Seen = dict[Kind, Tensors]
"""What a training step shows, in the order of computation; state and weights are those after it."""

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, momentum: float):
        conv = functools.partial(jaxpar.nn.Conv, kernel_size=(3, 3), padding=1, bias=False, rngs=rngs)
        self.conv1, self.norm1 = conv(1, 8), jaxpar.nn.BatchNorm(8, momentum=momentum)
        self.conv2, self.norm2 = conv(8, 16), jaxpar.nn.BatchNorm(16, momentum=momentum)
        self.linear = nnx.Linear(16 * 4 * 4, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm1(self.conv1(images[..., None])))
        x = nnx.relu(self.norm2(self.conv2(x)))
        x = nnx.avg_pool(x, (2, 2), (2, 2))
        # torch flattens channels first.
        return self.linear(x.transpose(0, 3, 1, 2).reshape(len(x), -1))


@functools.partial(nnx.jit, static_argnums=4)
def train_step(
    net: nnx.Module, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array, fault: Fault | None
) -> tuple[jax.Array, jax.Array, nnx.State]:
    def loss_fn(net: Any) -> tuple[jax.Array, jax.Array]:
        logits = net(images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return _mean_of_means(losses) if fault is Fault.LOSS else losses.mean(), logits

    (loss, logits), gradients = nnx.value_and_grad(loss_fn, has_aux=True)(net)
    optimizer.update(net, gradients)
    return logits, loss, gradients


def _mean_of_means(losses: jax.Array) -> jax.Array:
    rows = math.ceil(len(losses) / len(jaxpar.devices()))
    return jnp.stack([losses[i : i + rows].mean() for i in range(0, len(losses), rows)]).mean()


class FlaxSide:
    def __init__(self, settings: Settings):
        self.fault = settings.fault
        # JAX's default generator, threefry, takes the CPU compiler seconds.
        rngs = nnx.Rngs(jax.random.key(settings.seed, impl="rbg"))
        net: Any = jaxpar.to(CNN(rngs, 0.9 if self.fault is Fault.BATCH_NORM else 0.1), dtype=jnp.float64)
        self.net = net if self.fault is Fault.WHOLE_BATCH else jaxpar.DataParallel(net)
        self.optimizer = nnx.Optimizer(self.net, optax.sgd(LEARNING_RATE, MOMENTUM), wrt=nnx.Param)

    def step(self, images: np.ndarray, labels: np.ndarray) -> None:
        results = train_step(self.net, self.optimizer, images, labels, self.fault)
        self.logits, self.loss, self.gradients = jax.block_until_ready(results)

    def seen(self) -> Seen:
        of_gradients = nnx.clone(self.net)
        nnx.update(of_gradients, self.gradients)  # in the places of the weights they get the weights' names
        tensors = self.state_dict()
        return {
            Kind.OUTPUT: {"logits": np.asarray(self.logits)},
            Kind.LOSS: {"cross_entropy": np.asarray(self.loss)},
            Kind.GRADIENT: _parameters(_state_dict(of_gradients)),
            Kind.STATE: {name: x for name, x in tensors.items() if name.endswith(BUFFERS)},
            Kind.WEIGHT: _parameters(tensors),
        }

    def predict(self, images: np.ndarray) -> np.ndarray:
        self.net.eval()
        logits = np.asarray(self.net(images))
        self.net.train()
        return logits

    def state_dict(self) -> Tensors:
        return _state_dict(self.net)

    def bytes_per_device(self) -> dict[str, dict[str, int]]:
        """For each device, the bytes of parameters, statistics and optimizer state that it holds."""
        parameters, state = nnx.state(self.net, nnx.Param, ...)
        kinds = {"parameters": parameters, "statistics": state, "optimizer": nnx.state(self.optimizer)}
        return {
            f"{device.platform}:{i}": {kind: _held(arrays, device) for kind, arrays in kinds.items()}
            for i, device in enumerate(jaxpar.devices())
        }


def _state_dict(net: nnx.Module) -> Tensors:
    """Of the model itself, whether it is wrapped or not."""
    return {name.removeprefix("module."): x for name, x in to_torch(net, numpy=True).items()}


def _parameters(tensors: Tensors) -> Tensors:
    return {name: x for name, x in tensors.items() if not name.endswith(BUFFERS)}


def _held(arrays: nnx.State, device: jax.Device) -> int:
    shards = [shard for x in jax.tree.leaves(arrays) for shard in x.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == device)
