"""Measure the share of a step that a tap takes, for a GPT and a ResNet-18 in torch and in JAX on CPUs.

    python benchmarks/runs/cost.py [--steps 20]

A tap has everything: batch, loss, gradients, parameters, rate, optimizer, and the ResNet's buffers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "ports"))

import gpt
import gpt_torch
import resnet
import resnet_torch

import jaxpar
from jaxpar import parity
from jaxpar.nn.functional import cross_entropy

GPT_SIZES = (65, 128, 4, 4, 192, 0.0)  # characters, length, layers, heads, width, dropout
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(0, 65, (16, 129))
IMAGES = RANDOM.standard_normal((32, 3, 64, 64)).astype(np.float32), RANDOM.integers(0, 10, 32)

Step = Callable[[], dict[str, Any]]


def torch_step(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step() -> dict[str, Any]:
        optimizer.zero_grad()
        output = net(x)
        output = output[0] if isinstance(output, tuple) else output
        loss = torch.nn.functional.cross_entropy(output.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        parts = {"gradients": net, "parameters": net, "optimizer": optimizer, "extra": net}
        return {"batch": (x, y), "loss": loss, "rate": 1e-3, **parts}

    return step


def jax_step(net: nnx.Module, x: np.ndarray, y: np.ndarray) -> Step:
    graph, params, rest = nnx.split(net, nnx.Param, ...)
    tx = jaxpar.optim.adamw(lr=1e-3)
    state = tx.init(params)

    @jax.jit
    def compiled(params: Any, rest: Any, state: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            module = nnx.merge(graph, params, rest, copy=True)
            output = module(x)
            output = output[0] if isinstance(output, tuple) else output
            loss = cross_entropy(output.reshape(-1, output.shape[-1]), y.reshape(-1))
            return loss, nnx.split(module, nnx.Param, ...)[2]

        (loss, after), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, state_after = tx.update(gradients, state, params)
        return jax.tree.map(lambda p, u: p + u, params, updates), after, state_after, loss, gradients

    def step() -> dict[str, Any]:
        nonlocal params, rest, state
        params, rest, state, loss, gradients = jax.block_until_ready(compiled(params, rest, state, x, y))
        buffers = nnx.filter_state(rest, nnx.BatchStat)
        parts = {"gradients": gradients, "parameters": params, "optimizer": state, "extra": buffers}
        return {"batch": (x, y), "loss": loss, "rate": 1e-3, **parts}

    return step


def sides() -> dict[str, Callable[[], Step]]:
    x, y = TOKENS[:, :-1], TOKENS[:, 1:]
    images, labels = IMAGES
    return {
        "GPT, torch": lambda: torch_step(gpt_torch.GPT(*GPT_SIZES), torch.from_numpy(x), torch.from_numpy(y)),
        "GPT, JAX": lambda: jax_step(gpt.GPT(*GPT_SIZES, rngs=nnx.Rngs(0)), x, y),
        "ResNet-18, torch": lambda: torch_step(
            resnet_torch.resnet18(num_classes=10), torch.from_numpy(images), torch.from_numpy(labels)
        ),
        "ResNet-18, JAX": lambda: jax_step(resnet.ResNet([2, 2, 2, 2], 64, 10, nnx.Rngs(0)), images, labels),
    }


def measured(make: Callable[[], Step], steps: int) -> tuple[float, float, int]:
    """Return the medians of a step's and a tap's seconds, and the bytes of a step's records."""
    step, step_seconds, tap_seconds = make(), [], []
    with tempfile.TemporaryDirectory() as folder, parity.Tap(folder) as tap:
        for i in range(steps + 3):
            begun = time.perf_counter()
            values = step()
            middle = time.perf_counter()
            tap(i, **values)
            ended = time.perf_counter()
            if i >= 3:  # the first ones compile, and write the tables of names
                step_seconds.append(middle - begun)
                tap_seconds.append(ended - middle)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    return statistics.median(step_seconds), statistics.median(tap_seconds), size // (steps + 3)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    print("| training | step, ms | tap, ms | share | bytes of a step |\n| --- | --- | --- | --- | --- |")
    for name, make in sides().items():
        step, tap, size = measured(make, options.steps)
        print(f"| {name} | {1e3 * step:.1f} | {1e3 * tap:.2f} | {tap / step:.1%} | {size:,} |", flush=True)


if __name__ == "__main__":
    main()
