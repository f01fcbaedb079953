"""Train a small transformer with tapped steps, some of whose operations run in another type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from benchmarks.precision.nets import SYMBOLS, FlaxNet, TorchNet, Types, flax_loss, torch_loss
from jaxpar import parity

RATE, STEPS, WIDTH, LAYERS = 0.1, 6, 16, 2
UNIT = 2.0**-23
WORDS = {
    "embedding": "embedding",
    "scale": "arithmetic",
    "norm": "norm",
    "scores": "matmul",
    "softmax": "softmax",
    "residual": "addition",
    "mlp": "matmul",
    "activation": "activation",
    "pooling": "mean",
    "logits": "values",
    "loss": "loss",
}
"""The word for each operation in the sentence that names it."""


def batches(seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    random = np.random.RandomState(seed)
    for _ in range(STEPS):
        yield random.randint(0, SYMBOLS, (6, 7)), random.randint(0, SYMBOLS, 6)


def tapped(folder: Path, framework: str, types: Types, seed: int, nudged: bool = False) -> Path:
    """Train in the folder; `nudged` moves the parameters by one rounding."""
    torch.manual_seed(seed)
    reference = TorchNet(WIDTH, LAYERS, types)
    if nudged:
        with torch.no_grad():
            for p in reference.parameters():
                p.mul_(1 + UNIT * torch.sign(torch.randn(p.shape)))
    train = _train_torch if framework == "torch" else _train_flax
    train(folder, reference, types, seed)
    return folder


def _train_torch(folder: Path, net: TorchNet, types: Types, seed: int) -> None:
    loss_fn, optimizer = torch_loss(types), torch.optim.SGD(net.parameters(), lr=RATE)
    x, y = (torch.from_numpy(array) for array in next(batches(seed)))
    rows = parity.precisions(lambda x, y: loss_fn(net(x), y), x, y)
    with parity.Tap(folder, start=net, precisions=rows) as tap:
        for step, (x, y) in enumerate(batches(seed)):
            optimizer.zero_grad()
            loss = loss_fn(net(torch.from_numpy(x)), torch.from_numpy(y))
            loss.backward()
            optimizer.step()
            tap(step, batch=(x, y), loss=loss, gradients=net, parameters=net, rate=RATE)


def _train_flax(folder: Path, reference: TorchNet, types: Types, seed: int) -> None:
    net = FlaxNet(WIDTH, LAYERS, types)
    _load(net, reference)
    graph, params = nnx.split(net)

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        return flax_loss(types)(nnx.merge(graph, params)(x), y)

    rows = parity.precisions(loss_fn, params, *map(jnp.asarray, next(batches(seed))))
    step_fn = jax.jit(jax.value_and_grad(loss_fn))
    with parity.Tap(folder, start=nnx.to_pure_dict(params), precisions=rows) as tap:
        for step, (x, y) in enumerate(batches(seed)):
            loss, gradients = step_fn(params, jnp.asarray(x), jnp.asarray(y))
            params = jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
            trees = nnx.to_pure_dict(gradients), nnx.to_pure_dict(params)
            tap(step, batch=(x, y), loss=loss, gradients=trees[0], parameters=trees[1], rate=RATE)


def _load(net: FlaxNet, reference: TorchNet) -> None:
    def array(x: torch.Tensor) -> Any:
        return jnp.asarray(x.detach().numpy())

    layers = [(net.head, reference.head)]
    for block, other in zip(net.blocks, reference.blocks, strict=True):
        layers += [(getattr(block, k), getattr(other, k)) for k in ("query", "key", "value", "up", "down")]
        block.norm.scale.set_value(array(other.norm.weight))
        block.norm.bias.set_value(array(other.norm.bias))
    for layer, other in layers:
        layer.kernel.set_value(array(other.weight).T)
        layer.bias.set_value(array(other.bias))
    net.table.embedding.set_value(array(reference.table.weight))
