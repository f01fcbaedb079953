"""The Flax model and its training, as a user of jaxpar writes them, and what can be seen of them."""

from __future__ import annotations

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpar

from .compare import Seen, Tensors
from .digits import Digits
from .settings import LEARNING_RATE, MOMENTUM, Fault, Settings


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, momentum: float = 0.1):
        conv = functools.partial(
            nnx.Conv, kernel_size=(3, 3), use_bias=False, param_dtype=jnp.float64, rngs=rngs
        )
        norm = functools.partial(jaxpar.nn.BatchNorm, momentum=momentum, param_dtype=jnp.float64)
        self.conv1, self.norm1 = conv(1, 8), norm(8)
        self.conv2, self.norm2 = conv(8, 16), norm(16)
        self.linear = nnx.Linear(16 * 4 * 4, 10, param_dtype=jnp.float64, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = images[..., None]
        x = nnx.relu(self.norm1(self.conv1(x)))
        x = nnx.relu(self.norm2(self.conv2(x)))
        x = nnx.avg_pool(x, (2, 2), (2, 2))
        # PyTorch flattens channels first.
        return self.linear(x.transpose(0, 3, 1, 2).reshape(len(x), -1))


@functools.partial(nnx.jit, static_argnums=4)
def train_step(
    net: nnx.Module, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array, fault: Fault | None
) -> tuple[jax.Array, jax.Array, nnx.State]:
    def loss_fn(net: Any) -> tuple[jax.Array, jax.Array]:
        outputs = net(images)
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
        if fault is Fault.LOSS:
            return losses @ _mean_of_means(len(labels), jaxpar.device_count()), outputs
        return losses.mean(), outputs

    (loss, outputs), gradients = nnx.value_and_grad(loss_fn, has_aux=True)(net)
    optimizer.update(net, gradients)
    return outputs, loss, gradients


class JaxSide:
    """The model, wrapped, with its optimizer."""

    def __init__(self, settings: Settings):
        self.fault = settings.fault
        # JAX's default generator, threefry, takes the CPU compiler seconds.
        rngs = nnx.Rngs(jax.random.key(settings.seed, impl="rbg"))
        net: Any = CNN(rngs, momentum=0.9 if self.fault is Fault.BATCH_NORM else 0.1)
        if self.fault is not Fault.WHOLE_BATCH:
            net = jaxpar.DataParallel(net)
        self.net = net
        self.optimizer = nnx.Optimizer(net, optax.sgd(LEARNING_RATE, MOMENTUM), wrt=nnx.Param)

    def step(self, batch: Digits) -> tuple[Seen, float]:
        start = time.perf_counter()
        step = train_step(self.net, self.optimizer, batch.images, batch.labels, self.fault)
        outputs, loss, gradients = jax.block_until_ready(step)
        seconds = time.perf_counter() - start
        weights, statistics = self.state()
        logits, loss = {"logits": np.asarray(outputs)}, {"cross_entropy": np.asarray(loss)}
        return Seen(logits, loss, _named(gradients), statistics, weights), seconds

    def predict(self, images: np.ndarray) -> np.ndarray:
        self.net.eval()
        outputs = np.asarray(self.net(images))
        self.net.train()
        return outputs

    def state(self) -> tuple[Tensors, Tensors]:
        """Weights and BatchNorm statistics."""
        weights, statistics = nnx.state(self.net, nnx.Param, ...)
        return _named(weights), _named(statistics)

    def sizes(self, rows: int) -> tuple[int, ...]:
        """How many of a batch's rows each replica gets."""
        ids = list(range(jaxpar.device_count()))
        return jaxpar.scatter(np.empty(rows), ids).sizes if ids else (rows,)

    def bytes_per_device(self) -> dict[str, dict[str, int]]:
        """For each device, the bytes of parameters, statistics and optimizer state that it holds."""
        weights, statistics = nnx.state(self.net, nnx.Param, ...)
        kinds = {"parameters": weights, "statistics": statistics, "optimizer": nnx.state(self.optimizer)}
        return {
            f"{device.platform}:{i}": {kind: _held(state, device) for kind, state in kinds.items()}
            for i, device in enumerate(jaxpar.devices())
        }


_TORCH_NAMES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}


def _named(state: nnx.State) -> Tensors:
    """A state as torch names it and lays it out."""
    named = {}
    for path, leaf in nnx.to_flat_state(state):
        *layers, last = (str(part) for part in path if part != "module")
        x = np.asarray(leaf[...])
        if last == "kernel":
            # Convolution: height, width, in, out to out, in, height, width. Linear: in, out to out, in.
            x = x.transpose(3, 2, 0, 1) if x.ndim == 4 else x.T
        named[".".join([*layers, _TORCH_NAMES.get(last, last)])] = x
    return named


def _held(state: nnx.State, device: jax.Device) -> int:
    shards = [shard for x in jax.tree.leaves(state) for shard in x.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == device)


def _mean_of_means(rows: int, replicas: int) -> jax.Array:
    """The weight of every row in Fault.LOSS."""
    replica = np.arange(rows) // -(-rows // max(1, replicas))
    counts = np.bincount(replica)
    return jnp.asarray(1 / (len(counts) * counts[replica]))
