"""The catalogue of known causes: for each function of torch, what a port gets wrong about it.

An entry is a function from an `Op` to `Variation`s. A variation runs torch's function the wrong way;
if torch then gives what Flax gave, its text says what Flax should have done.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from .torch_trace import Change, Op


@dataclasses.dataclass(frozen=True)
class Variation:
    """A wrong way to call a function.

    Attributes:
      text: what is right, in Flax's words, and what Flax seems to do.
      change: the wrong way.
    """

    text: str
    change: Change


Entry = Callable[[Op], Iterator[Variation]]

EPSILONS = (
    1e-3,
    1e-5,
    1e-6,
    1e-8,
    1e-12,
    1e-7,
    1e-10,
    1e-9,
    0.0,
    1e-4,
    1.1e-5,
    torch.finfo(torch.float32).eps,
)

BUILTIN = {
    name: ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    for name in ("conv1d", "conv2d", "conv3d")
}
BUILTIN |= {
    name: ["input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"]
    for name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
}
BUILTIN |= {
    "linear": ["input", "weight", "bias"],
    "avg_pool2d": [
        "input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override",
    ],
    "avg_pool1d": ["input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"],
    "scaled_dot_product_attention": [
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa",
    ],
    "gelu": ["input", "approximate"],
    "softmax": ["input", "dim", "dtype"],
    "log_softmax": ["input", "dim", "dtype"],
}  # fmt: skip
"""The parameters of functions that are written in C++ and cannot be asked."""


def arguments(op: Op) -> dict[str, Any]:
    """The arguments by name, defaults included where they are known."""
    names = BUILTIN.get(op.name)
    if names:
        return dict(zip(names, op.args, strict=False)) | op.kwargs
    bound = inspect.signature(op.function).bind(*op.args, **op.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def calling(text: str, **other: Any) -> Variation:
    """The same function with some arguments otherwise."""

    def change(function: Any, args: tuple, kwargs: dict) -> Any:
        op = Op(0, function, args, kwargs)
        return function(**{**arguments(op), **other})

    return Variation(text, change)


def applying(text: str, instead: Callable[..., Any]) -> Variation:
    """Another function of the same arguments."""
    return Variation(text, lambda function, args, kwargs: instead(*args, **kwargs))


def afterwards(text: str, then: Callable[[Any], Any]) -> Variation:
    """The same function, and something done to its result."""
    return Variation(text, lambda function, args, kwargs: then(function(*args, **kwargs)))


def epsilons(op: Op) -> Iterator[Variation]:
    right = arguments(op).get("eps")
    if right is None:  # rms_norm: the type's own
        right = torch.finfo(op.args[0].dtype).eps
    for eps in EPSILONS:
        if eps != right:
            yield calling(f"epsilon={right:g} (it acts as {eps:g})", eps=eps)


def batch_norm(op: Op) -> Iterator[Variation]:
    yield from epsilons(op)
    given = arguments(op)
    momentum, training = given["momentum"], given["training"]
    if training and given["running_mean"] is not None:
        yield Variation(
            "the running variance is the unbiased one, n/(n-1) of what it is: jaxpar.nn.BatchNorm", _biased
        )
        for other in dict.fromkeys((1 - momentum, 0.1, 0.9, 0.99, 0.01, 0.5)):
            if other != momentum:
                text = (
                    f"momentum={momentum:g} as torch and jaxpar.nn count it, {1 - momentum:g} in flax "
                    f"(it acts as {other:g}, flax's {1 - other:g})"
                )
                yield calling(text, momentum=other)
                yield Variation(f"{text}, and the running variance is the unbiased one", _biased_with(other))
    mode = "train()" if training else "eval()"
    if given["running_mean"] is not None:
        yield calling(
            f"it is in the mode of {mode} (use_running_average={not training})", training=not training
        )


def _biased(function: Any, args: tuple, kwargs: dict) -> Any:
    return _biased_with(None)(function, args, kwargs)


def _biased_with(momentum: float | None) -> Change:
    def change(function: Any, args: tuple, kwargs: dict) -> Any:
        given = arguments(Op(0, function, args, kwargs))
        share = given["momentum"] if momentum is None else momentum
        x, var = given["input"], given["running_var"]
        before = var.clone()
        result = function(**{**given, "momentum": share})
        biased = x.detach().var([0, *range(2, x.ndim)], unbiased=False)
        var.copy_((1 - share) * before + share * biased)
        return result

    return change


def instance_norm(op: Op) -> Iterator[Variation]:
    yield from epsilons(op)


def group_norm(op: Op) -> Iterator[Variation]:
    yield from epsilons(op)
    channels, right = op.args[0].shape[1], arguments(op)["num_groups"]
    for groups in range(1, channels + 1):
        if channels % groups == 0 and groups != right:
            yield calling(f"num_groups={right} (it acts as {groups})", num_groups=groups)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
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
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "softplus": F.softplus,
    "mish": F.mish,
    "relu6": F.relu6,
    "hard_swish": F.hardswish,
    "hard_sigmoid": F.hardsigmoid,
    "hard_tanh": F.hardtanh,
    "clip(x / 6 + 0.5, 0, 1)": lambda x: torch.clamp(x / 6 + 0.5, 0, 1),
    "clip(0.2 * x + 0.5, 0, 1)": lambda x: torch.clamp(0.2 * x + 0.5, 0, 1),
    "no activation": lambda x: x,
}


def activation(op: Op) -> Iterator[Variation]:
    right = arguments(op).get("approximate") if op.name == "gelu" else None
    if op.name == "gelu":
        right = "approximate=False" if right in (None, "none") else "approximate=True"
    for name, other in ACTIVATIONS.items():
        yield Variation(f"{right or op.name} (it acts as {name})", partial(_of_the_input, other))


def _of_the_input(other: Callable[..., Any], function: Any, args: tuple, kwargs: dict) -> Any:
    return other(args[0] if args else kwargs["input"])


def softmax(op: Op) -> Iterator[Variation]:
    right = arguments(op)["dim"]
    for axis in range(op.args[0].ndim):
        if axis != right % op.args[0].ndim:
            yield calling(f"{op.name} over axis {right} (it acts on axis {axis})", dim=axis)


def dropout(op: Op) -> Iterator[Variation]:
    right = arguments(op)["p"]
    for p in dict.fromkeys((1 - right, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5)):
        if p != right and p < 1:
            # The mask is the same for both; only the factor depends on the rate.
            factor = (1 - right) / (1 - p)
            yield afterwards(f"rate={right:g} (it acts as {p:g})", partial(operator.mul, factor))
    yield afterwards("what is kept is divided by 1 - rate", lambda y: y * (1 - right))


def identity(op: Op) -> Iterator[Variation]:
    """The call is not there at all."""
    if isinstance(op.args[0] if op.args else None, torch.Tensor):
        yield Variation(f"{op.name} is done (it is left out)", lambda function, args, kwargs: args[0])
