"""Hypotheses on layers (exchanged, left out, with other weights) and on rearranged arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from ..._typing import PyTree
from .._comparison_data import Cause
from .._tensors import tensor_of, widened
from .catalogue.scales import described
from .departures import in_flax_layout
from .forward import AlignedForward
from .search import EQUAL, SINGLE, Explanation, Hypothesis, relative_error
from .torch_trace import Change, Departure, Function, LayerCall, Op

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


def norm_position(
    forward: AlignedForward, call: LayerCall | None, flax_array: np.ndarray
) -> list[Explanation]:
    """Recognize pre-norm in place of post-norm, or the reverse, from the layer's input in Flax."""
    explanations = []
    for other in forward.trace.calls if call is not None else []:
        assert call is not None
        if _is_norm(forward, call) == _is_norm(forward, other):
            continue
        for arrays, verb in ((other.outputs, "returns"), (other.inputs, "is given")):
            torch_arrays = in_flax_layout(forward, other, [tensor_of(x) for x in arrays[:1]])
            relative = relative_error(flax_array, torch_arrays[""]) if torch_arrays else np.inf
            if relative <= EQUAL:
                text = (
                    f"{forward.flax(call)} is given what torch's is (it is given what {forward.flax(other)} "
                    f"{verb}: is the norm in front of the branch, or behind the sum?)"
                )
                explanations.append(Explanation(Cause(text, relative)))
    return explanations[:1]


def _is_norm(forward: AlignedForward, call: LayerCall) -> bool:
    return "Norm" in forward.kind(call)


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


FEWEST = 4  # elements; a smaller array may be a multiple by chance


def array_changes(flax_array: np.ndarray, torch_array: np.ndarray) -> list[Explanation]:
    """Return the changes of torch's whole array that yield Flax's, the closest first."""
    if (
        flax_array.shape != torch_array.shape
        or flax_array.size < 2
        or not np.isfinite(widened(torch_array)).all()
    ):
        return []
    candidates = (Cause(text, relative_error(flax_array, x)) for text, x in _changes(flax_array, torch_array))
    causes = sorted((c for c in candidates if c.relative <= EQUAL), key=lambda c: c.relative)
    return [Explanation(cause) for cause in causes or _rounded(flax_array, torch_array)]


def _changes(flax_array: np.ndarray, torch_array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if torch_array.dtype.kind in "iu":
        shift = int(flax_array.flat[0]) - int(torch_array.flat[0])
        yield f"positions are torch's (they are shifted by {shift})", torch_array + shift
    elif torch_array.dtype.kind == "f" and flax_array.size >= FEWEST:
        # The ratio of the largest elements has the most correct digits.
        largest = np.unravel_index(np.abs(torch_array).argmax(), torch_array.shape)
        scale = float(flax_array[largest] / torch_array[largest]) if torch_array[largest] else 0.0
        text = f"there is no factor (it is multiplied by {described(scale, reversed(torch_array.shape))})"
        yield text, torch_array * scale
    for axis, length in enumerate(torch_array.shape):
        if length > 1:
            yield f"axis {axis} has torch's order (it is reversed)", np.flip(torch_array, axis)
            for by in (1, -1):
                yield (
                    f"axis {axis} has torch's places (rows are rolled by {by})",
                    np.roll(torch_array, by, axis),
                )
            yield from blocks(torch_array, axis)
    for a, b in itertools.combinations(range(torch_array.ndim), 2):
        if torch_array.shape[a] == torch_array.shape[b] > 1:
            yield f"axes are torch's (axes {a} and {b} are swapped)", torch_array.swapaxes(a, b)


def blocks(x: np.ndarray, axis: int) -> Iterator[tuple[str, np.ndarray]]:
    """Read an axis of (heads, size) as (size, heads), or of (3, heads, size) as (heads, 3, size)."""
    x = np.moveaxis(x, axis, -1)
    length = x.shape[-1]
    divisors = [n for n in range(2, length) if length % n == 0]
    for first, second in itertools.product(divisors, divisors):
        last = length // (first * second)
        # With a third factor, one of the two is a number of parts: real and imaginary, or q, k and v. Other
        # splits into three are implausible, and there are many.
        if length % (first * second) or (last > 1 and min(first, second) > 3):
            continue
        split = x.reshape(*x.shape[:-1], first, second, last)
        turned = split.swapaxes(-2, -3).reshape(x.shape)
        right, wrong = ((*pair, last)[: 2 + (last > 1)] for pair in ((second, first), (first, second)))
        yield f"axis {axis} is read as {right} (it is read as {wrong})", np.moveaxis(turned, -1, axis)


def _rounded(flax_array: np.ndarray, torch_array: np.ndarray) -> list[Cause]:
    """Recognize arrays that are equal except that one side's values are rounded to float32."""
    error = relative_error(flax_array, torch_array)
    if torch_array.dtype.kind != "f" or error > SINGLE:
        return []
    narrow = [np.array_equal(x.astype(np.float32).astype(x.dtype), x) for x in (flax_array, torch_array)]
    if narrow == [True, False]:
        return [Cause("it is in float64, as torch's is (its values are those of float32)", error)]
    if narrow == [False, True]:
        return [Cause("it is a float32 table, as torch's is (its values are those of float64)", error)]
    return []
