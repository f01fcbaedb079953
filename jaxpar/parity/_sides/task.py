"""Task: what both sides are asked to do. Seen: what they show. Neither knows a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .layout import Layout

Named = dict[str, np.ndarray]
"""Arrays by name: a leaf's path, or a place in the outputs."""

Loss = tuple[Callable[..., Any], Callable[..., Any]]
"""(torch's, JAX's), both called with (outputs, *targets)."""

Optimizer = tuple[Callable[..., Any], Any]
"""(parameters -> torch optimizer, optax transformation)."""


@dataclass(frozen=True)
class Task:
    """What is computed in a step, the same for both sides.

    Args:
      training: training or evaluation mode.
      loss: None for a fixed random projection of the outputs.
      optimizer: None for no update.
      replicas: N of DataParallel; 1 for the bare modules.
      layout: how torch's arrays are laid out for Flax.
      torch_kwargs, flax_kwargs: for every call of the model.
      seed: of the projection and of dropout masks.
    """

    training: bool = True
    loss: Loss | None = None
    optimizer: Optimizer | None = None
    replicas: int = 1
    layout: Layout = field(default_factory=Layout)
    torch_kwargs: Mapping[str, Any] = field(default_factory=dict)
    flax_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """The rows of one step, in torch's layout."""

    inputs: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True)
class Seen:
    """What one step shows. `state` and `weights` are those after it."""

    outputs: Named
    loss: Named
    """Empty where the loss is only the projection, which says nothing that the outputs do not say."""
    input_gradients: Named
    gradients: Named
    state: Named
    weights: Named
    masks: tuple[np.ndarray, ...] = ()
    """Dropout's factors (0 or 1/(1-p)) in the order of the calls, in torch's layout."""
