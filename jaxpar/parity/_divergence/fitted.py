"""Fit a number in torch's code, such as an epsilon or a slope, until torch computes Flax's array.

The catalogue has the values that libraries use; others are found by Gauss and Newton's method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from .._sides.step_data import Named
from .catalogue.variation import arguments_of, calling, replacing, short
from .search import EQUAL, Hypothesis, Quick, relative_error
from .torch_trace import Change, Departure, Op

ENOUGH = 8  # elements of an array that one number can only reach if it is the cause
NUMBERS = 24  # that are fitted for one site, the last ones of the code
ITERATIONS = 12
SMALL = 1e-2  # positive numbers below stay positive
STEP = 1e-4  # of a number, for the derivative by it
DIGITS = 6
LABELS = {"eps": "epsilon"}

Number = tuple[str, float, Callable[[float], Change]]  # its name, torch's value, a call that takes a value


def fitted(
    ops: Sequence[Op], quick: Quick, flax: Named, repeated: Sequence[Op] = ()
) -> Iterator[list[Hypothesis]]:
    """Yield one stage: for each number of the calls that can be fitted, the value that fits best.

    The number is changed in all calls among `repeated` that have the same line, too.
    """
    target = next(iter(flax.values()))
    if target.size < ENOUGH or target.dtype.kind not in "fc" or not np.isfinite(target).all():
        return
    numbers = [(op, number) for op in reversed(ops) for number in _numbers(op)][:NUMBERS]
    groups = ([op, *(x for x in repeated if (x.line, x.name) == (op.line, op.name))] for op, _ in numbers)
    hypotheses = (
        _hypothesis(group, number, quick, target) for group, (_, number) in zip(groups, numbers, strict=True)
    )
    yield [hypothesis for hypothesis in hypotheses if hypothesis]


def _hypothesis(ops: Sequence[Op], number: Number, quick: Quick, target: np.ndarray) -> Hypothesis | None:
    name, value, changed = number

    def departure(other: float) -> Departure:
        return Departure({op.index: changed(other) for op in ops})

    def array(other: float) -> np.ndarray:
        return next(iter(quick(departure(other)).values()))

    try:
        other = _fit(array, value, target)
    except Exception:
        return None  # it needs a run, or torch rejects a value; the model's code may raise anything
    if other is None:
        return None
    text = f"{LABELS.get(name, name)}={short(value)} (it acts as {short(other)})"
    return Hypothesis(text, departure(other))


def _numbers(op: Op) -> Iterator[Number]:
    """Yield the floating numbers among a call's arguments."""
    try:
        named = arguments_of(op)
    except (TypeError, ValueError):  # a function that is implemented in C++ has no signature
        named = dict(op.kwargs)
    names = [*named] if len(named) >= len(op.args) + len(op.kwargs) else []
    for index, x in enumerate(op.args):
        if _is_float(x):
            name = names[index] if names else f"the number of {op.name}"
            yield name, x, partial(_positional, index)
    # Arguments are in the order of the parameters, so the positional ones are the first.
    for name in names[len(op.args) :] or op.kwargs:
        # torch's max pooling renames an argument.
        if name in named and _is_float(x := named[name]):
            yield name, x, partial(_keyword, name)


def _positional(index: int, other: float) -> Change:
    return replacing("", index, lambda x: other).change


def _keyword(name: str, other: float) -> Change:
    return calling("", **{name: other}).change


def _is_float(x: object) -> bool:
    return isinstance(x, float) and math.isfinite(x)


def _fit(array: Callable[[float], np.ndarray], value: float, target: np.ndarray) -> float | None:
    """Return the number that makes the array the target, with as few digits as that needs, or None."""
    x = array(value)
    for _ in range(ITERATIONS):
        if x.shape != target.shape:
            return None
        step = STEP * (abs(value) or 1.0)
        slope = ((array(value + step) - x) / step).ravel()
        power = float(np.vdot(slope, slope).real)
        if not power or not math.isfinite(power):
            return None
        change = float(np.vdot(slope, (x - target).ravel()).real) / power
        # A norm of a negative epsilon may be NaN.
        value = value / 2 if 0 < value < SMALL and value <= change else value - change
        x = array(value)
        if relative_error(target, x) <= EQUAL:
            return _shortest(array, value, target)
    return None


def _shortest(array: Callable[[float], np.ndarray], value: float, target: np.ndarray) -> float:
    for digits in range(1, DIGITS):
        short_value = float(f"{value:.{digits}g}")
        if relative_error(target, array(short_value)) <= EQUAL:
            return short_value
    return value
