"""Undefined numbers: where roundings, or which of equal values `topk` takes, decide torch's own results."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from .._sides.step_data import factors, real_parts
from .._sides.torch_float64 import Rounding
from .._sides.torch_side import named_leaves
from .._sides.uncompiled_mode import without_compiler
from .._stochastic_arithmetic import OUTPUTS
from .variants import mapped

EQUAL = 1e-12
"""The distance that roundings make between equal numbers, relative to the largest of the row."""
Tensors = dict[str, torch.Tensor]


def moved_by_rounding(
    net: nn.Module,
    example: Sequence[Any],
    kwargs: Mapping[str, Any],
    training: bool = True,
    keeps_ties: bool = True,
) -> float:
    """Return how far roundings move torch's outputs in float64, relatively; equal numbers may move alike."""

    def outputs(context: AbstractContextManager[Any]) -> Tensors:
        arguments, keywords = mapped(_in_float64, (tuple(example), dict(kwargs)))
        with torch.no_grad(), context:
            return _called(net, arguments, keywords, training)

    try:
        return _apart(outputs(nullcontext()), outputs(Rounding(1, keeps_ties)))
    except Exception:  # a module that computes in float32 whatever it is given
        return 0.0


def depends_on_choice(
    net: nn.Module, example: Sequence[Any], kwargs: Mapping[str, Any], training: bool = True
) -> bool:
    """Return whether torch's outputs or gradients depend on which of equal values `topk` takes."""

    def results(context: AbstractContextManager[Any]) -> Tensors:
        arguments, keywords = mapped(_in_float64, (tuple(example), dict(kwargs)))
        leaves = [x for x in jax.tree.leaves((arguments, keywords)) if _is_floating(x)]
        for x in leaves:
            x.requires_grad_()
        # Copies, because a module may write to its arguments, and torch refuses that for leaves.
        arguments, keywords = mapped(lambda x: x.clone() if _is_floating(x) else x, (arguments, keywords))
        with context:
            outputs = _called(net, arguments, keywords, training)
        if context is choice and not choice.chooses:
            return outputs
        gradients = torch.autograd.grad(loss(outputs), leaves, allow_unused=True)
        return outputs | {f"gradient {i}": x for i, x in enumerate(gradients) if x is not None}

    choice = _OtherChoice()
    try:
        others = results(choice)
        return choice.chooses and _apart(results(nullcontext()), others) > OUTPUTS
    except Exception:  # as above, or nothing has a gradient
        return False


def loss(outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the sum of outputs with the factors of `compare`'s own loss."""
    drawn = factors({name: tuple(x.shape) for name, x in outputs.items()}, 0)
    terms = [(x * torch.as_tensor(drawn[name]).to(x.dtype)).sum() for name, x in outputs.items()]
    return sum(terms, torch.zeros((), requires_grad=True))


@without_compiler
class _OtherChoice(TorchDispatchMode):
    """Turns the inputs of `topk` around, which then takes others of equal values, if it meets any.

    Values that are equal up to roundings, as the autocorrelations of a constant, count as equal.
    """

    chooses = False

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        x = args[0] if operation is torch.ops.aten.topk.default else None
        if x is None or not x.ndim:
            return operation(*args, **(kwargs or {}))
        axis = args[2] if len(args) > 2 else -1
        rounded = (x / x.abs().amax(axis, keepdim=True).clamp(min=1e-300) / EQUAL).round()
        self.chooses |= bool((rounded.sort(axis).values.diff(dim=axis) == 0).any())
        indices = x.shape[axis] - 1 - operation(rounded.flip(axis), *args[1:], **(kwargs or {}))[1]
        return x.gather(axis, indices), indices


def _called(net: nn.Module, arguments: Any, keywords: Any, training: bool) -> Tensors:
    module = copy.deepcopy(net).double().train(training)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return real_parts(named_leaves(module(*arguments, **keywords)))


def _apart(before: Tensors, after: Tensors) -> float:
    """Return the largest difference, relative to the largest number of its tensor."""
    rows = [(x.detach().double(), after[name].detach().double()) for name, x in before.items() if x.numel()]
    return max((float((x - y).abs().max() / x.abs().max().clamp(min=1e-300)) for x, y in rows), default=0.0)


def _is_floating(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _in_float64(x: Any) -> Any:
    return x.detach().double().clone() if _is_floating(x) else copy.deepcopy(x)
