"""Hypotheses on layers (exchanged, left out, with other weights) and on rearranged arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..._typing import PyTree
from .._tensors import tensor_of
from .array_changes import blocks
from .search import Hypothesis
from .torch_trace import Change, Departure, Function, LayerCall, Op

if TYPE_CHECKING:
    from .forward import AlignedForward

RECENT = 6  # layer calls before a divergence that may have been exchanged


def exchanges(
    forward: AlignedForward, call: LayerCall | None, layer_differs: bool = False
) -> Iterator[list[Hypothesis]]:
    """Yield hypotheses in stages for a call whose inputs or result differ; None for the model's outputs."""
    if layer_differs and call is not None:
        yield [*_weights_of_others(forward, call)]
        return
    calls = forward.trace.calls
    before = calls[: calls.index(call)] if call is not None else calls
    recent = before[-RECENT:]
    yield [*_in_the_place_of_another(forward, recent, call)]
    yield [*_left_out(forward, recent)]
    yield [*_rearranged(forward, recent[-3:])]
    start = before[-1].last if before else 0
    end = call.first if call is not None else forward.trace.model_ops
    yield [*_other_operands(forward, forward.trace.ops[start:end], recent)]


def _in_the_place_of_another(
    forward: AlignedForward, recent: list[LayerCall], call: LayerCall | None
) -> Iterator[Hypothesis]:
    pairs = [*itertools.combinations(recent, 2)]
    if call is not None:
        pairs += [(call, other) for other in forward.trace.calls]
    tried: set[frozenset[str]] = set()
    for a, b in pairs:
        names = frozenset((a.path, b.path))
        if len(names) == 2 and names not in tried and _alike(forward, a, b):
            tried.add(names)
            text = (
                f"{forward.flax(a)} and {forward.flax(b)} are where torch has them (they are exchanged, "
                "in the calls or in the mapping)"
            )
            yield Hypothesis(text, Departure(exchanged={a.path: b.path, b.path: a.path}))


def _alike(forward: AlignedForward, a: LayerCall, b: LayerCall) -> bool:
    """Whether the layers' outputs and parameters have equal shapes."""
    if [x.shape for x in a.outputs] != [x.shape for x in b.outputs]:
        return False
    shapes = ({name: x.shape for name, x in _parameters(forward, call).items()} for call in (a, b))
    return next(shapes) == next(shapes)


def _parameters(forward: AlignedForward, call: LayerCall) -> dict[str, torch.Tensor]:
    return dict(forward.module.get_submodule(call.path).named_parameters())


def _weights_of_others(forward: AlignedForward, call: LayerCall) -> Iterator[Hypothesis]:
    own_parameters = _parameters(forward, call)
    for path, link in forward.links.items():
        other_parameters = dict(forward.module.get_submodule(path).named_parameters())
        shapes = {name: x.shape for name, x in other_parameters.items()}
        if path != call.path and shapes and shapes == {name: x.shape for name, x in own_parameters.items()}:
            instead = {id(own_parameters[name]): other_parameters[name] for name in own_parameters}
            changes: dict[int, Change] = {op.index: partial(_with, instead) for op in forward.ops(call)}
            yield Hypothesis(f"it has its own weights (it has those of {link.flax})", Departure(changes))


def _with(instead: dict[int, torch.Tensor], function: Function, args: tuple, kwargs: dict) -> PyTree:
    def other(x: object) -> object:
        return instead.get(id(x), x)

    return function(*map(other, args), **{name: other(x) for name, x in kwargs.items()})


def _left_out(forward: AlignedForward, recent: list[LayerCall]) -> Iterator[Hypothesis]:
    for call in recent:
        if call.inputs and call.outputs and call.inputs[0].shape == call.outputs[0].shape:
            text = f"{forward.flax(call)} is applied (what it is given is used as it is)"
            yield Hypothesis(text, Departure(outputs={call.key: [call.inputs[0]]}))


def _rearranged(forward: AlignedForward, recent: list[LayerCall]) -> Iterator[Hypothesis]:
    """Yield a layer's output with the factors of its last axis in a different order: heads, size, parts."""
    for call in recent:
        if call.outputs and call.outputs[0].ndim > 1:
            for text, array in blocks(call.outputs[0], call.outputs[0].ndim - 1):
                label = f"what {forward.flax(call)} returns: {text}"
                yield Hypothesis(label, Departure(outputs={call.key: [array]}))


SUMS = ("add", "add_", "__add__", "__radd__", "__iadd__")


def _other_operands(forward: AlignedForward, ops: list[Op], recent: list[LayerCall]) -> Iterator[Hypothesis]:
    """Yield sums whose residual operand is a different array, such as the norm's output."""
    for op in ops:
        if op.name not in SUMS or not isinstance(op.result, torch.Tensor):
            continue
        for call in recent:
            for array, what in ((call.inputs[:1], "is given"), (call.outputs[:1], "returns")):
                if array and array[0].shape == tuple(op.result.shape) and array[0].dtype.kind == "f":
                    text = f"the sum has torch's operands (one is what {forward.flax(call)} {what})"
                    for index in (0, 1):
                        change = partial(_operand, index, array[0])
                        yield Hypothesis(text, Departure({op.index: change}))
        yield Hypothesis(
            "the second operand is added once (it is added twice)",
            Departure({op.index: lambda function, args, kwargs: args[0] + 2 * args[1]}),
        )


def _operand(index: int, array: np.ndarray, function: Function, args: tuple, kwargs: dict) -> PyTree:
    other = tensor_of(np.array(array, order="C")).to(args[0].dtype)
    return args[1 - index] + other
