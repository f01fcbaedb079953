"""The sides in JAX: the steps of train_step/jax_sides.py with the models of published.py.

The batch lies on the devices. Parameters are float32; with bfloat16 the layers compute in it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ask import Ask, Images
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from side import Step

import jaxpar
import jaxpar.distributed as dist

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "train_step")]

import jax_sides  # noqa: E402
import published  # noqa: E402


class GPT(published.Transformer):
    """Its answer is logits: a wrapper of DataParallel shows no `words`."""

    def __call__(self, tokens):
        return self.words.attend(super().__call__(tokens))


def next_word(net, tokens, targets):
    return published.cross_entropy(net(tokens).astype(jnp.float32), targets).mean()


def by_hand(ask: Ask) -> Step:
    return alone(ask, jax_sides.by_hand)


def named_sharding(ask: Ask) -> Step:
    return alone(ask, jax_sides.named_sharding)


def data_parallel(ask: Ask) -> Step:
    return alone(ask, jax_sides.ours(jaxpar.DataParallel))


def distributed(ask: Ask) -> Step:
    return alone(ask, jax_sides.ours(jaxpar.DistributedDataParallel))


def distributed_ranks(ask: Ask) -> Step:
    """One of the processes, each with one card and its own rows."""
    dist.init_process_group()
    make = jax_sides.ours(jaxpar.DistributedDataParallel)
    return step_of(ask, 1, make, seed=dist.get_rank(), together=dist.barrier)


def alone(ask: Ask, make: Callable) -> Step:
    """A side whose one process has all devices."""
    found = jaxpar.device_count()
    if found < ask.devices:
        raise RuntimeError(f"{ask.devices} devices are asked for, and JAX sees {found}")
    return step_of(ask, ask.devices, make)


def step_of(ask: Ask, N: int, make: Callable, *, seed: int = 0, **rest: Callable) -> Step:
    jax.config.update("jax_default_matmul_precision", "float32" if ask.precision == "float32" else None)
    model, loss, tx = model_of(ask)
    x, t = jax.device_put(batch_of(ask, N, seed), NamedSharding(jax_sides.mesh_of(N), P("d")))
    once = make(N, model, x, t, loss=loss, tx=tx)
    return Step(once, lambda loss: float(np.mean(loss)), functools.partial(fullest, N), **rest)


def fullest(N: int) -> int | None:
    """Bytes at most so far on the fullest device; CPU devices do not count them."""
    peaks = [jaxpar.memory_stats(d)["peak_bytes_in_use"] for d in jaxpar.devices()[:N]]
    return max((peak for peak in peaks if peak is not None), default=None)


def model_of(ask: Ask) -> tuple[nnx.Module, Callable, optax.GradientTransformation]:
    """Model, loss and optimizer as published.py has them."""
    shape, dtype = ask.shape, jnp.bfloat16 if ask.precision == "bfloat16" else jnp.float32
    if isinstance(shape, Images):
        return published.ResNet50(dtype, shape.depths), published.classified, optax.sgd(0.1, momentum=0.875)
    # cuDNN's attention is for half precision and for GPUs.
    fused = "cudnn" if dtype == jnp.bfloat16 and jax.default_backend() == "gpu" else "xla"
    sizes = shape.words, shape.length, shape.width, shape.depth, shape.heads, dtype
    return GPT(*sizes, before=True, fused=fused, causal=True), next_word, optax.adamw(6e-4)


def batch_of(ask: Ask, N: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows for N devices, drawn on the host."""
    shape, random, rows = ask.shape, np.random.default_rng(seed), N * ask.rows
    if isinstance(shape, Images):
        dtype = jnp.bfloat16 if ask.precision == "bfloat16" else np.float32
        images = random.random((rows, shape.size, shape.size, 3), np.float32).astype(dtype)
        return images, random.integers(1000, size=rows, dtype=np.int32)
    tokens = random.integers(shape.words, size=(rows, shape.length + 1), dtype=np.int32)
    return tokens[:, :-1], tokens[:, 1:]
