"""Mistakes with norms, activations, softmax, dropout, linear layers and embeddings."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch.nn import functional as F

from ...._typing import PyTree
from ..torch_trace import Change, Function, Op
from .variation import (
    Kwargs,
    Variation,
    acting_as,
    afterwards,
    applying,
    arguments,
    arguments_of,
    calling,
    orders,
    recalling,
    recalling_as,
    reordered,
    replacing,
    short,
)

EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12, 1e-7, 1e-10, 1e-9, 0.0, 1e-4, 1.1e-5, 2.0**-23)
"""Defaults of libraries; the last is the machine epsilon of float32."""
LARGEST = max(EPSILONS)


def epsilons(op: Op) -> Iterator[Variation]:
    # The default of Flax's LayerNorm and GroupNorm is 1e-6, torch's 1e-5. Training hides the difference.
    right = arguments_of(op).get("eps")
    if right is None:  # rms_norm defaults to the dtype's machine epsilon
        right = torch.finfo(op.args[0].dtype).eps
    yield from acting_as("eps", right, EPSILONS, short, "epsilon")
    if (weight := arguments_of(op).get("weight")) is not None:
        yield calling("the weight multiplies as it is (1 is added to it first)", weight=1 + weight)


def deviation(op: Op) -> Iterator[Variation]:
    """layer_norm written by hand: with a different variance, or with epsilon outside the root."""
    bound = arguments_of(op)
    x, eps = bound["input"], bound["eps"]
    axes = tuple(range(x.ndim - len(bound["normalized_shape"]), x.ndim))
    corrections = {
        "the variance divides by n (it divides by n - 1)": (1, False),
        "epsilon is added to the variance (it is added to the deviation)": (0, True),
        "epsilon is added to the variance, of n (it is added to the deviation, of n - 1)": (1, True),
    }
    for text, (correction, outside) in corrections.items():
        yield recalling_as(text, partial(_normalised, axes, eps, correction, outside))


def _normalised(
    axes: tuple[int, ...], eps: float, correction: int, outside: bool, bound: Kwargs
) -> torch.Tensor:
    x = bound["input"]
    variance = x.var(axes, correction=correction, keepdim=True)
    y = (x - x.mean(axes, keepdim=True)) / (variance.sqrt() + eps if outside else (variance + eps).sqrt())
    y = y if bound.get("weight") is None else y * bound["weight"]
    return y if bound.get("bias") is None else y + bound["bias"]


def added_epsilon(op: Op) -> Iterator[Variation]:
    """x + 1e-6 in a handwritten norm."""
    for index, right in enumerate(op.args[:2]):
        if isinstance(right, float) and 0 < right <= LARGEST:
            for value in EPSILONS:
                if value != right:
                    text = f"epsilon={right:g} (it acts as {value:g})"
                    yield replacing(text, index, lambda x, value=value: value)


def batch_norm(op: Op) -> Iterator[Variation]:
    yield from epsilons(op)
    bound = arguments_of(op)
    momentum, training = bound["momentum"], bound["training"]
    if bound["running_mean"] is None:
        return
    if training:
        # Flax's momentum is the weight of the old value, torch's the weight of the new value.
        unbiased = "the running variance is the unbiased one"
        yield Variation(f"{unbiased}, n/(n-1) of what it is: jaxpar.nn.BatchNorm", _biased(None))
        for other in dict.fromkeys((1 - momentum, 0.1, 0.9, 0.99, 0.01, 0.5)):
            if other != momentum:
                text = (
                    f"momentum={momentum:g} as torch and jaxpar.nn count it, {1 - momentum:g} in flax "
                    f"(it acts as {other:g}, flax's {1 - other:g})"
                )
                yield calling(text, momentum=other)
                yield Variation(f"{text}, and {unbiased}", _biased(other))
    mode = "train()" if training else "eval()"
    yield calling(f"it is in the mode of {mode} (use_running_average={not training})", training=not training)


def _biased(momentum: float | None) -> Change:
    """Update the running variance as Flax does, with the variance that divides by n instead of n - 1."""

    def change(function: Function, args: tuple, kwargs: Kwargs) -> PyTree:
        bound = arguments(function, args, kwargs)
        share = bound["momentum"] if momentum is None else momentum
        x, var = bound["input"], bound["running_var"]
        before = var.clone()
        result = function(**{**bound, "momentum": share})
        biased = x.detach().var([0, *range(2, x.ndim)], unbiased=False)
        var.copy_((1 - share) * before + share * biased)
        return result

    return change


def group_norm(op: Op) -> Iterator[Variation]:
    yield from epsilons(op)
    channels = op.args[0].shape[1]
    divisors = (groups for groups in range(1, channels + 1) if channels % groups == 0)
    yield from acting_as("num_groups", arguments_of(op)["num_groups"], divisors)


# The first is named first where several act alike, as hard_tanh does on numbers within its bounds.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "no activation": lambda x: x,
    "relu": torch.relu,
    "gelu(approximate=False)": F.gelu,
    "gelu(approximate=True)": lambda x: F.gelu(x, approximate="tanh"),
    "x * sigmoid(1.702 * x)": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "leaky_relu(negative_slope=0.01)": F.leaky_relu,
    "leaky_relu(negative_slope=0.2)": lambda x: F.leaky_relu(x, 0.2),
    "leaky_relu(negative_slope=0.1)": lambda x: F.leaky_relu(x, 0.1),
    "leaky_relu(negative_slope=0.3)": lambda x: F.leaky_relu(x, 0.3),
    "leaky_relu(negative_slope=0.05)": lambda x: F.leaky_relu(x, 0.05),
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "softplus": F.softplus,
    "mish": F.mish,
    "relu6": F.relu6,
    "hard_swish": F.hardswish,
    "hard_sigmoid": F.hardsigmoid,
    "hard_tanh": F.hardtanh,
    "relu squared": lambda x: torch.relu(x) ** 2,
    "log_sigmoid": F.logsigmoid,
    "soft_sign": F.softsign,
    "clip(x / 6 + 0.5, 0, 1)": lambda x: torch.clamp(x / 6 + 0.5, 0, 1),
    "clip(0.2 * x + 0.5, 0, 1)": lambda x: torch.clamp(0.2 * x + 0.5, 0, 1),
}


def activation(op: Op) -> Iterator[Variation]:
    for name, other in ACTIVATIONS.items():
        right = op.name
        if name.startswith("gelu") and op.name == "gelu":
            # Flax's default is the tanh approximation, torch's the exact function.
            right = f"approximate={arguments_of(op).get('approximate') not in (None, 'none')}"
        text = f"{right} (it acts as {name})"
        yield applying(text, lambda input, *args, other=other, **kwargs: other(input))


def identity(op: Op) -> Iterator[Variation]:
    """Leave the call out."""
    if op.args and isinstance(op.args[0], torch.Tensor):
        yield applying(f"{op.name} is done (it is left out)", lambda x, *args, **kwargs: x)


def crossed(ops: Sequence[Op], index: int, activations: frozenset[str]) -> Iterator[Variation]:
    """relu(a + b), of which Flax computes relu(a) + b. The sum and the activation are wrong together."""
    op = ops[index]
    for other in ops[max(0, index - 2) : index + 3]:
        first, then = (op, other) if other.index > op.index else (other, op)
        takes_sum = bool(then.args) and then.args[0] is first.result
        if first.name in SUMS and then.name in activations and takes_sum:
            for position in range(len(first.args[:2])):
                text = f"{then.name} follows the sum (it is applied to operand {position} of it)"
                if op is then:
                    yield applying(text, lambda x, *args, **kwargs: x)
                elif isinstance(op.args[position], torch.Tensor):
                    yield replacing(text, position, partial(_activated, then))


SUMS = ("add", "add_", "__add__", "__radd__", "__iadd__")


def _activated(call: Op, x: torch.Tensor) -> torch.Tensor:
    return call.function(x.clone(), *call.args[1:], **call.kwargs)  # it may work in place


def softmax(op: Op) -> Iterator[Variation]:
    right = arguments_of(op)["dim"]
    for axis in range(op.args[0].ndim):
        if axis != right % op.args[0].ndim:
            yield calling(f"{op.name} over axis {right} (it acts on axis {axis})", dim=axis)
    for name, other in OF_SCORES.items():
        if name != op.name:
            text = f"{op.name} (it acts as {name})"
            yield applying(text, lambda input, *args, other=other, **kwargs: other(input, right))


OF_SCORES: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "sigmoid": lambda x, axis: torch.sigmoid(x),
    "x / x.sum()": lambda x, axis: x / x.sum(axis, keepdim=True),
}


def dropout(op: Op) -> Iterator[Variation]:
    right = arguments_of(op)["p"]
    for p in dict.fromkeys((1 - right, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5)):
        if p != right and p < 1:
            # Both sides use the same mask, so only the factor depends on the rate.
            factor = (1 - right) / (1 - p)
            yield afterwards(f"rate={right:g} (it acts as {p:g})", partial(operator.mul, factor))
    yield afterwards("what is kept is divided by 1 - rate", lambda y: y * (1 - right))


def linear(op: Op) -> Iterator[Variation]:
    bound = arguments_of(op)
    weight = bound["weight"]
    if weight.shape[0] == weight.shape[1]:  # a transposed kernel that is not square fails to load
        yield calling("the kernel is the transpose of torch's weight (it is not transposed)", weight=weight.T)
    if bound.get("bias") is not None:
        yield calling("the bias is added (it is not)", bias=None)
        yield calling("the bias is added once (it is added twice)", bias=2 * bound["bias"])
    for count in (2, 3, 4):
        for order in orders(count) if weight.shape[0] % count == 0 else ():
            text = f"the {count} blocks of the kernel are in torch's order (they are in order {order})"
            yield recalling(text, partial(_blocks, order))


def _blocks(order: tuple[int, ...], bound: Kwargs) -> Kwargs:
    return {name: reordered(bound.get(name), order) for name in ("weight", "bias")}


def embedding(op: Op) -> Iterator[Variation]:
    bound = arguments_of(op)
    weight = bound["weight"]
    yield afterwards(
        "the embedding is not scaled (it is multiplied by the root of its size)",
        lambda y: y * weight.shape[1] ** 0.5,
    )
    # Clamped, because torch raises on an index out of range.
    last = weight.shape[0] - 1
    for shift in (1, -1):
        yield calling(
            f"indices start at 0 (they are shifted by {shift})", input=(bound["input"] + shift).clamp(0, last)
        )
