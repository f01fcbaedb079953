"""Variation: one wrong way to call a torch function, and helpers that write one in a line."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ...._typing import PyTree
from ..torch_trace import Change, Function, Op

Kwargs = dict[str, Any]  # a call's arguments by parameter name


@dataclasses.dataclass(frozen=True)
class Variation:
    """A wrong way to call a function."""

    text: str  # the right behaviour in Flax's terms, and in parentheses what Flax seems to do
    change: Change


Entry = Callable[[Op], Iterator[Variation]]

_CONVOLUTION = ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
_TRANSPOSED = ["input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"]
BUILTIN = {
    **{f"conv{n}d": _CONVOLUTION for n in "123"},
    **{f"conv_transpose{n}d": _TRANSPOSED for n in "123"},
    "linear": ["input", "weight", "bias"],
    "avg_pool2d": [
        "input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override",
    ],
    "avg_pool1d": ["input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"],
    **{
        f"max_pool{n}d": ["input", "kernel_size", "stride", "padding", "dilation", "ceil_mode"] for n in "123"
    },
    "pixel_shuffle": ["input", "upscale_factor"],
    "roll": ["input", "shifts", "dims"],
    "scaled_dot_product_attention": [
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa",
    ],
    "gelu": ["input", "approximate"],
    "softmax": ["input", "dim", "dtype"],
    "log_softmax": ["input", "dim", "dtype"],
}  # fmt: skip
"""The parameters of functions that are implemented in C++ and have no signature."""


def arguments(function: Function, args: tuple, kwargs: Kwargs) -> Kwargs:
    """Return the arguments by name, including known defaults."""
    names = BUILTIN.get(getattr(function, "__name__", ""))
    if names:
        return dict(zip(names, args, strict=False)) | kwargs
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def arguments_of(op: Op) -> Kwargs:
    return arguments(op.function, op.args, op.kwargs)


def calling(text: str, **other: Any) -> Variation:
    """Call the same function with some arguments replaced."""
    return recalling(text, lambda bound: other)


def recalling(text: str, change: Callable[[Kwargs], Kwargs]) -> Variation:
    """Call the same function with some arguments computed from the new run's arguments."""

    def again(function: Function, args: tuple, kwargs: Kwargs) -> PyTree:
        bound = arguments(function, args, kwargs)
        # The first argument is positional, because a tensor's method accepts `self` only so.
        first, *others = {**bound, **change(bound)}.items()
        return function(first[1], **dict(others))

    return Variation(text, again)


def recalling_as(text: str, instead: Callable[[Kwargs], torch.Tensor]) -> Variation:
    """Compute the result in a different way from the new run's arguments."""
    return Variation(text, lambda function, args, kwargs: instead(arguments(function, args, kwargs)))


def recalling_then(text: str, other: Kwargs, then: Callable[[Any], Any]) -> Variation:
    """Call the same function with some arguments replaced, and change its result."""
    again = recalling(text, lambda bound: other).change
    return Variation(text, lambda function, args, kwargs: then(again(function, args, kwargs)))


def applying(text: str, instead: Function) -> Variation:
    """Call a different function with the same arguments."""
    return Variation(text, lambda function, args, kwargs: instead(*args, **kwargs))


def afterwards(text: str, then: Function) -> Variation:
    """Call the same function and change its result."""
    return Variation(text, lambda function, args, kwargs: then(function(*args, **kwargs)))


def replacing(text: str, index: int, change: Function) -> Variation:
    """Call the same function with the positional argument at `index` changed."""

    def again(function: Function, args: tuple, kwargs: Kwargs) -> PyTree:
        return function(*args[:index], change(args[index]), *args[index + 1 :], **kwargs)

    return Variation(text, again)


def acting_as(
    name: str,
    right: Any,
    values: Iterable[Any],
    shown: Callable[[Any], str] = str,
    label: str = "",
    **more: Any,
) -> Iterator[Variation]:
    """Yield a call with each value for one argument, described as "label=right (it acts as value)"."""
    for value in dict.fromkeys(values):
        if value != right:  # the unchanged run is known to differ
            text = f"{label or name}={shown(right)} (it acts as {shown(value)})"
            yield calling(text, **{name: value}, **more)


def orders(count: int) -> Iterator[tuple[int, ...]]:
    """Yield all wrong orders of `count` blocks or axes, such as query, key and value, or gates."""
    right = tuple(range(count))
    return (order for order in itertools.permutations(right) if order != right)


def reordered(x: torch.Tensor | None, order: tuple[int, ...]) -> torch.Tensor | None:
    """Reorder a tensor's blocks of rows."""
    return None if x is None else torch.cat([x.chunk(len(order))[i] for i in order])


short = "{:g}".format
