"""Recognize handwritten activations by their values, whatever functions compute them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..torch_trace import Op
from .layers import ACTIVATIONS
from .variation import Variation

REACH = 16  # how many calls back the activation's argument may be; gelu's tanh form takes eight
SAMPLE = 64


def by_hand(ops: Sequence[Op], end: int, direct: frozenset[str]) -> Iterator[Variation]:
    """Yield wrong activations for ops[end] if it computes one; those named in `direct` have an entry."""
    op = ops[end]
    y = op.result
    if op.name in direct or not _is_real(y):
        return
    tried: set[int] = set()
    for earlier in reversed(ops[max(0, end - REACH) : end + 1]):
        for x in (*earlier.args, earlier.result if earlier is not op else None):
            if _is_real(x) and x.shape == y.shape and x is not y and id(x) not in tried:
                tried.add(id(x))
                yield from _others(x.detach(), y.detach())


def _is_real(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel() > 3


def _others(x: torch.Tensor, y: torch.Tensor) -> Iterator[Variation]:
    sample = slice(None, None, max(1, x.numel() // SAMPLE))
    x_sample, y_sample = x.flatten()[sample], y.flatten()[sample]
    for name, function in ACTIVATIONS.items():
        # Any function that returns its argument would match the identity. The sample is cheaper.
        if name == "no activation" or not (_close(function(x_sample), y_sample) and _close(function(x), y)):
            continue
        argument = x.clone()
        for other, wrong in ACTIVATIONS.items():
            if other != name and not _close(wrong(argument), y):
                text = f"{name}, written by hand (it acts as {other})"
                yield Variation(text, lambda *call, wrong=wrong, x=argument: wrong(x))
        return


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-12 * b.abs().max().clamp(1e-30))
