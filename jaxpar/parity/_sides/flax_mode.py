"""The mode of a Flax model: the flag of its `__call__` that torch's `train()` and `eval()` stand for.

An NNX module keeps the mode in its layers, and `train()` and `eval()` set it. Linen's modules, and NNX
modules that are written like them, are told at each call.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen

from .._weights.tree import FlaxModule
from .call_arguments import Call
from .step_data import Task

IN_TRAINING = ("train", "training", "is_training")
IN_EVALUATION = ("deterministic", "use_running_average")
"""Names of flags that are true in training, and of those that are true in evaluation."""

DROPOUT = "rngs['dropout']"
"""The place in a call of the stream that a Linen module is given."""

RNGS, MUTABLE, METHOD, CAPTURE = "rngs", "mutable", "method", "capture_intermediates"
"""Arguments of `linen.Module.apply`, and not of the module."""


def in_mode(module: FlaxModule, call: Call, task: Task) -> Call:
    """The call with the flags of the mode that it does not give, and dropout's stream for Linen."""
    options: dict[str, Any] = {**flags(module, call, task.training)}
    # In DataParallel replicas have streams of their own; dropout is refused there.
    if task.replicas == 1:
        options |= _stream(module, call, task.training)
    return call.with_kwargs(Call.of((), options))


def flags(module: FlaxModule, call: Call, training: bool) -> dict[str, bool]:
    """The flags that the module takes, and the call does not give."""
    try:
        return _missing(module, call.args, call.kwargs, training)
    except (TypeError, ValueError, AttributeError):
        return {}  # the call itself will say what is wrong with it


def _stream(module: FlaxModule, call: Call, training: bool) -> dict[str, Any]:
    """In training the random stream of dropout that a Linen module is given.

    Also where the call has one: what is drawn from it must not matter, for it is not what torch draws.
    """
    rngs = call.kwargs.get(RNGS, {})
    if not training or not isinstance(module, linen.Module) or not isinstance(rngs, dict):
        return {}
    return {RNGS: {**rngs, "dropout": np.asarray(jax.random.key_data(jax.random.key(0)))}}


def of_init(module: FlaxModule, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call that `init` takes as well."""
    return _without(module, kwargs, (RNGS, MUTABLE, CAPTURE))


def _without(module: FlaxModule, kwargs: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Of a Linen module; an NNX module may have arguments of these names itself."""
    if not isinstance(module, linen.Module):
        return dict(kwargs)
    return {name: x for name, x in kwargs.items() if name not in names}


def _missing(module: FlaxModule, args: tuple, kwargs: Mapping[str, Any], training: bool) -> dict[str, bool]:
    method = kwargs.get("method") if isinstance(module, linen.Module) else None
    function = getattr(type(module), method or "__call__") if not callable(method) else method
    signature = inspect.signature(function)
    named = _without(module, kwargs, (RNGS, MUTABLE, METHOD, CAPTURE))
    passed = signature.bind_partial(module, *args, **named).arguments
    values = {}
    for name, parameter in signature.parameters.items():
        if name in passed or name not in (*IN_TRAINING, *IN_EVALUATION):
            continue
        # A layer whose own attribute decides does not want to be told at the call as well.
        if parameter.default is None and getattr(module, name, None) is not None:
            continue
        values[name] = training if name in IN_TRAINING else not training
    return values
