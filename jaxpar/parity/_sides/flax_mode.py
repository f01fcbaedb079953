"""Training and evaluation mode of a Flax model: the `__call__` flags that correspond to torch's `train()`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen

from .._weights.pytree_model import is_of_torch
from .._weights.tree import FlaxModule
from .call_arguments import Call, not_passed
from .step_data import Task

IN_TRAINING = ("train", "training", "is_training")
IN_EVALUATION = ("deterministic", "use_running_average")

DROPOUT = "rngs['dropout']"  # Name in `Call.arrays` of the dropout key that a Linen module takes

RNGS, MUTABLE, METHOD, CAPTURE = "rngs", "mutable", "method", "capture_intermediates"  # of Linen's apply


def in_mode(module: FlaxModule, call: Call, task: Task) -> Call:
    if is_of_torch(module):
        return call  # its mode is an attribute
    options: dict[str, Any] = {**flags(module, call, task.training)}
    # Replicas of a DataParallel have separate streams, so dropout is refused there.
    if task.replicas == 1:
        options |= _stream(module, call, task.training)
    return call.with_kwargs(Call.of((), options))


def flags(module: FlaxModule, call: Call, training: bool) -> dict[str, bool]:
    values: dict[str, bool] = {}
    if is_of_torch(module):
        return values
    for name, parameter in ((x.name, x) for x in parameters(module, call)):
        if name not in (*IN_TRAINING, *IN_EVALUATION):
            continue
        # The layer's attribute sets the mode, and Flax raises if the call passes the flag as well.
        if parameter.default is None and getattr(module, name, None) is not None:
            continue
        values[name] = training if name in IN_TRAINING else not training
    return values


def parameters(module: FlaxModule, call: Call) -> list[inspect.Parameter]:
    """Return the parameters of the model's function that a call does not pass."""
    method = call.kwargs.get("method") if isinstance(module, linen.Module) else None
    function = method if callable(method) else getattr(type(module), method or "__call__", None)
    named = _without(module, call.kwargs, (RNGS, MUTABLE, METHOD, CAPTURE))
    return not_passed(function, (module, *call.args), named) if function else []


def _stream(module: FlaxModule, call: Call, training: bool) -> dict[str, Any]:
    # Drawn values must not matter, because torch draws different ones.
    rngs = call.kwargs.get(RNGS, {})
    if not training or not isinstance(module, linen.Module) or not isinstance(rngs, dict):
        return {}
    return {RNGS: {**rngs, "dropout": np.asarray(jax.random.key_data(jax.random.key(0)))}}


def of_init(module: FlaxModule, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return _without(module, kwargs, (RNGS, MUTABLE, CAPTURE))


def _without(module: FlaxModule, kwargs: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """An NNX module may use these names of `apply`'s arguments itself."""
    if not isinstance(module, linen.Module):
        return dict(kwargs)
    return {name: x for name, x in kwargs.items() if name not in names}
