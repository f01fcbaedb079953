"""update_bn: an averaged model's running statistics, which no training step has updated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

MODES = ("use_running_average", "deterministic")
"""What `train()` and `eval()` set; torch has one flag for both."""


def update_bn(loader: Iterable[Any], model: nnx.Module, device: jax.Device | None = None) -> None:
    """Set BatchNorm statistics to their mean over a loader, as `torch.optim.swa_utils.update_bn`.

    Args:
      loader: batches; a tuple's or list's first item is the module's input.
      model: an NNX module, averaged or not. Modes and momenta are restored afterwards.
      device: where inputs are moved first.

    This covers the BatchNorm layers of Flax, whose variance has the divisor n and not torch's n - 1, and of
    `jaxpar.nn`. A module without such layers is not run.
    """
    norms = [node for _, node in nnx.iter_graph(model, graph=True) if _is_batch_norm(node)]
    if not norms:
        return
    with _restored_modes(model), _every_batch_alike(norms):
        model.train()
        for n, batch in enumerate(loader, 1):
            x = batch[0] if isinstance(batch, (list, tuple)) else batch
            statistics = [
                statistic
                for norm in norms
                if not _averages_itself(norm)
                for statistic in (norm.mean, norm.var)
            ]
            before = [statistic.get_value() for statistic in statistics]
            _forward(model, x if device is None else jax.device_put(x, device))
            for statistic, old in zip(statistics, before, strict=True):
                statistic.set_value((1 - 1 / n) * old + 1 / n * statistic.get_value())


@nnx.jit
def _forward(model: Any, x: Any) -> None:
    model(x)


def _is_batch_norm(node: Any) -> bool:
    # By name, because this package must not import `jaxpar.nn`; covers Flax's, ours and subclasses.
    named = isinstance(node, nnx.Module) and any("BatchNorm" in kind.__name__ for kind in type(node).__mro__)
    return named and isinstance(node.mean, nnx.Variable)


def _averages_itself(norm: Any) -> bool:
    """Return whether a layer counts its batches, as torch's do, and averages them without a momentum."""
    return hasattr(norm, "num_batches_tracked")


@contextlib.contextmanager
def _every_batch_alike(norms: list[Any]) -> Iterator[None]:
    """Reset the statistics, and make each batch replace them (Flax) or count equally (torch)."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.mean.set_value(jnp.zeros_like(norm.mean.get_value()))
        norm.var.set_value(jnp.ones_like(norm.var.get_value()))
        if _averages_itself(norm):
            norm.num_batches_tracked.set_value(jnp.zeros_like(norm.num_batches_tracked.get_value()))
        norm.momentum = None if _averages_itself(norm) else 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


@contextlib.contextmanager
def _restored_modes(model: nnx.Module) -> Iterator[None]:
    modes = [
        (node, mode, getattr(node, mode))
        for _, node in nnx.iter_graph(model, graph=True)
        for mode in MODES
        if isinstance(node, nnx.Module) and hasattr(node, mode)
    ]
    try:
        yield
    finally:
        for node, mode, value in modes:
            setattr(node, mode, value)
