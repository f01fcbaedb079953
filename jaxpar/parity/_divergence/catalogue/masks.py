"""Mistakes with attention masks, where they are created, combined and applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch

from ..torch_trace import Op
from .variation import Variation, afterwards, applying, arguments_of, calling, replacing

Mask: TypeAlias = torch.Tensor


def triangle(op: Op) -> Iterator[Variation]:
    """tril and triu."""
    diagonal = op.args[1] if len(op.args) > 1 else op.kwargs.get("diagonal", 0)
    for other in (diagonal + 1, diagonal - 1):
        text = f"the diagonal of {op.name} is {diagonal} (it is {other}: the mask is off by one)"
        yield applying(text, lambda x, *args, other=other, **kwargs: op.function(x, other))
    turned = torch.triu if op.name.startswith("tril") else torch.tril
    text = f"the mask is {op.name} (it is {turned.__name__})"
    yield applying(text, lambda x, *args, **kwargs: turned(x, -diagonal))
    yield applying(f"{op.name} is done (it is left out: nothing is causal)", lambda x, *args, **kwargs: x)


OTHERS = {
    "lt": ("le", "gt"), "le": ("lt", "ge"), "gt": ("ge", "lt"), "ge": ("gt", "le"),
    "eq": ("ne",), "ne": ("eq",),
}  # fmt: skip
"""For each comparison: the same with or without equality, and the reversed one."""
SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def comparison(op: Op) -> Iterator[Variation]:
    """lt, le, ...: a causal or window mask, from positions compared with positions or a length."""
    name = op.name.strip("_")
    for other in OTHERS[name]:
        text = f"the mask compares by {SIGNS[name]} (it compares by {SIGNS[other]})"
        yield applying(text, getattr(torch, other))
    first, second = op.args[:2]
    all_integers = all(not isinstance(x, torch.Tensor) or not x.is_floating_point() for x in (first, second))
    for shift in (1, -1) if all_integers else ():
        text = f"the mask compares with torch's bound (with one that is {shift:+d}: a window off by one)"
        yield replacing(text, 1, lambda bound, shift=shift: bound + shift)
    yield afterwards("the condition is part of the mask (it is always met)", torch.ones_like)
    yield afterwards("the condition is part of the mask (it is never met)", torch.zeros_like)


def both(op: Op) -> Iterator[Variation]:
    """and, or: combined conditions, such as causal and not padded."""
    name = op.name.strip("_").removeprefix("r")
    for i in (0, 1):
        yield applying(
            f"both conditions are joined by {name.removeprefix('logical_')} (one is left out)",
            lambda *args, i=i, **kwargs: args[i].expand(torch.broadcast_shapes(*(x.shape for x in args[:2]))),
        )
    other = torch.logical_or if "and" in name else torch.logical_and
    yield applying(
        f"conditions are joined by {name.removeprefix('logical_')} (by {other.__name__[8:]})", other
    )


def inverted(op: Op) -> Iterator[Variation]:
    yield applying("the mask is inverted (it is not)", lambda x, *args, **kwargs: x)


def filled(op: Op) -> Iterator[Variation]:
    """masked_fill(x, mask, value)."""
    yield applying("the mask is applied (it is not)", lambda x, *args, **kwargs: x)
    polarity = "the mask has torch's polarity, True for what is filled (it is inverted)"
    yield replacing(polarity, 1, lambda mask: ~mask)
    for text, change in changes(~op.args[1]):
        yield replacing(text, 1, lambda mask, change=change: ~change(~mask))
    right = op.args[2] if len(op.args) > 2 else op.kwargs.get("value", 0.0)
    for value in (-1e9, -1e4, -1e30, float("-inf"), 0.0):
        if value != right:
            text = f"masked elements are {float(right):g} (they are {value:g})"
            # Not `value`, which masked_fill's own keyword would replace.
            yield applying(text, lambda *args, other=value, **kwargs: op.function(*args[:2], other))


def chosen(op: Op) -> Iterator[Variation]:
    """where(mask, a, b)."""
    for i in (1, 2):
        branch = ("", "first", "second")[i]
        yield applying(
            f"the mask of where is applied (the {branch} operand is taken everywhere)",
            lambda *args, i=i: torch.where(torch.full_like(args[0], i == 1), *args[1:3]),
        )
    yield replacing("the mask of where has torch's polarity (it is inverted)", 0, lambda mask: ~mask)
    for text, change in changes(op.args[0]):
        yield replacing(text, 0, change)


def changes(mask: Mask) -> Iterator[tuple[str, Callable[[Mask], Mask]]]:
    """Yield changes to a bool mask [..., queries, keys] that is True where a query sees a key."""
    if mask.dtype != torch.bool or mask.ndim < 2:
        return
    rows, columns = mask.shape[-2:]
    if columns > 1 and rows > 1:
        more = {
            "one key more than torch's, earlier": lambda m: m | _moved(m, -1),
            "one key more than torch's, later": lambda m: m | _moved(m, 1),
            "one key fewer than torch's, the earliest": lambda m: m & _moved(m, 1),
            "one key fewer than torch's, the latest": lambda m: m & _moved(m, -1),
        }
        for description, change in more.items():
            yield f"a query sees torch's keys (it sees {description}: a window off by one)", change
        causal = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        yield "the mask is not causal (it is)", lambda m: m & causal
        yield "the mask is causal (later keys are seen)", lambda m: m | ~causal
    if rows == columns and rows > 1:
        yield "the mask is [queries, keys] (it is transposed)", lambda m: m.mT


def _moved(mask: Mask, by: int) -> Mask:
    """Shift along the keys, without wrapping around."""
    moved = mask.roll(by, -1)
    moved[..., 0 if by > 0 else -1] = False
    return moved


def of_attention(name: str, op: Op) -> Iterator[Variation]:
    """Yield changes to an attention function's mask argument: bool, or 0 and -inf."""
    mask = arguments_of(op).get(name)
    if not isinstance(mask, torch.Tensor):
        return
    visible = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not (visible | (mask < -1e3)).all():
        return
    for text, change in changes(visible):
        other = change(visible)
        if torch.equal(other, visible):
            continue
        if mask.dtype != torch.bool:
            other = torch.zeros_like(mask).masked_fill(~other, float(mask.min()) or -torch.inf)
        yield calling(text, **{name: other})
