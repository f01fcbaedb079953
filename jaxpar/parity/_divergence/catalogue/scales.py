"""Mistakes with scales: a missing or different root of a size, as in attention and embeddings."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from functools import partial
from numbers import Real

import torch

from ..array_changes import roots
from ..torch_trace import Op
from .variation import Variation, afterwards, replacing


def sizes_of(*tensors: object) -> list[int]:
    """Return the lengths of axes from last to first, then the products of two, such as heads x size."""
    lengths = [n for x in tensors if isinstance(x, torch.Tensor) for n in reversed(x.shape)]
    lengths = list(dict.fromkeys(lengths))
    return lengths + [a * b for a, b in itertools.combinations(lengths, 2)]


def product(op: Op) -> Iterator[Variation]:
    """matmul, einsum: attention scores, or logits of a tied embedding, that torch does not scale."""
    if not isinstance(op.result, torch.Tensor):
        return
    tensors = [x for x in op.args if isinstance(x, torch.Tensor)]
    width = [n for x in tensors[:2] for n in (x.shape[-1], x.shape[-1] * x.shape[-3] if x.ndim > 2 else 0)]
    for scale_name, scale in roots(width).items():
        text = f"the product is not scaled (it is multiplied by {scale_name})"
        yield afterwards(text, partial(torch.mul, torch.tensor(scale, dtype=op.result.dtype)))


def addition(op: Op) -> Iterator[Variation]:
    """add: an operand that Flax scales, as embeddings are in some models before a norm that hides it."""
    for index, operand in enumerate(op.args[:2]):
        if isinstance(operand, torch.Tensor) and operand.is_floating_point() and operand.ndim:
            # A smaller operand looks like a sum whose second operand lost its scale.
            for scale_name, scale in (pair for pair in roots(operand.shape[-1:]).items() if pair[1] > 1):
                text = f"the operands of a sum are not scaled (one is multiplied by {scale_name})"
                yield replacing(text, index, partial(operator.mul, scale))


def factor(op: Op) -> Iterator[Variation]:
    """mul, div: x * scale and x / scale, for a scalar."""
    numbers = [i for i, x in enumerate(op.args[:2]) if isinstance(x, Real) or _is_number(x)]
    if len(numbers) != 1 or len(op.args) < 2:
        return
    (index,) = numbers
    divided = "div" in op.name
    if divided and index == 0:
        return
    right = float(op.args[index])
    other = op.args[1 - index]
    shown = f"1 / {right:.6g}" if divided else f"{right:.6g}"
    squares = [right * right, 1 / (right * right or math.inf)]  # infinite for what masks are made of
    for scale_name, scale in roots([*sizes_of(other), *map(round, filter(math.isfinite, squares))]).items():
        value = 1 / scale if divided else scale
        if not math.isclose(value, right):
            text = f"the scale is {shown} (it is {scale_name})"
            yield replacing(text, index, lambda x, value=value: value)
    if right not in (0.0, 1.0):
        yield replacing(f"the scale is {shown} (it is left out)", index, lambda x: 1.0)


def _is_number(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim == 0 and not x.requires_grad
