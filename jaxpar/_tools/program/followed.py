"""Follow arrays that devices pass on, collect and add by hand."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from ..estimate.hlo import Array, Computation, Instruction, Module
from .collectives import Groups, sources_of
from .combination import (
    Bases,
    Combination,
    Factors,
    NotFollowedError,
    alone,
    joined,
    total,
    zeros,
)
from .proof import SumProof
from .rules import COLLECTIVES, NoRuleError, reducing_operation
from .values import Dependence, Fact, Shares, Waypoint

BUDGET = 2**23
"""How many runs of elements are followed in a program."""
START = (
    *("reshape", "copy", "convert", "bitcast", "slice", "dynamic-slice", "pad", "concatenate", "broadcast"),
    "dynamic-update-slice",
)
"""From here on an array is followed; other instructions need an operand that is."""
ORDERED = ("transpose", "bitcast")
PASSING = {"all-gather", "all-to-all", "collective-permute", "reduce-scatter"}


class Followed:
    """`instruction` and `collective` return a result's value, with what following it proves.

    An array is known by its Fact: each result has an object of its own, in a loop for every turn.
    """

    def __init__(self, module: Module, shares: Shares) -> None:
        self.module, self.shares = module, shares
        self.factors, self.bases = Factors(shares.size), Bases()
        self.proof = SumProof(shares, self.factors, self.bases)
        self._combinations: dict[int, tuple[Fact, Combination]] = {}
        self._runs = 0
        operations = {i.operation for c in module.computations.values() for i in c.instructions.values()}
        self.active = bool({o.removesuffix("-start") for o in operations} & PASSING)

    def instruction(self, i: Instruction, values: list[Fact], value: Fact, computation: Computation) -> Fact:
        rule = RULES.get(i.operation)
        if not self.active or rule is None or not values:
            return value
        if i.operation not in START and not any(id(v) in self._combinations for v in values):
            return value
        arrays = [computation.instructions[o].results[0] for o in i.operands]
        try:
            return self._kept(i, rule(self, i, values, arrays), value)
        except (NotFollowedError, NoRuleError):
            return value

    def collective(
        self,
        i: Instruction,
        values: list[Fact],
        number: int,
        value: Fact,
        groups: Groups,
        computation: Computation,
    ) -> Fact:
        """Follow a collective's operand with this number."""
        operation = i.operation.removesuffix("-start")
        if not self.active or operation not in COLLECTIVES or len({len(g) for g in groups}) > 1:
            return value
        arrays = [computation.instructions[o].results[0] for o in i.operands]
        try:
            combination = self._passed(i, operation, values, number, groups, arrays)
        except (NotFollowedError, NoRuleError):
            return value
        marks = {Waypoint("sum", i.name, "add")}
        if arrays[number].kind in ("f16", "bf16"):
            marks.add(Waypoint("half", i.name, arrays[number].kind))
        combination = dataclasses.replace(combination, marks=combination.marks | marks)
        return self._kept(i, combination, value)

    def _passed(
        self,
        i: Instruction,
        operation: str,
        values: list[Fact],
        number: int,
        groups: Groups,
        arrays: list[Array],
    ) -> Combination:
        value, array = values[number], arrays[number]
        if operation == "collective-permute":
            return self._begun(value, array).from_devices(sources_of(i.attributes, self.shares.size))
        if operation == "all-gather":
            return self._begun(value, array).gathered(array.shape, i.numbers("dimensions")[0], groups)
        if operation == "all-to-all" and len(values) == 1:
            return self._begun(value, array).exchanged(array.shape, i.numbers("dimensions")[0], groups)
        if operation == "all-to-all":
            # The n-th operand goes to the n-th device of the group.
            terms = self._terms(values, arrays)
            pieces = joined(self.factors, [(t, (1, a.size)) for t, a in zip(terms, arrays, strict=True)], 0)
            sent = pieces.exchanged((len(terms), array.size), 0, groups)
            return sent.sliced((len(terms), array.size), 0, [number] * self.shares.size, 1)
        if operation not in ("all-reduce", "reduce-scatter") or reducing_operation(i, self.module) != "add":
            raise NotFollowedError
        combination = self._known(value)
        runs = combination.index[0][combination.index[0] >= 0]
        copies = operation == "reduce-scatter" and len(np.unique(runs)) < len(runs)
        if value.state == Dependence.COMPLETE:
            if combination.overlaps(groups):
                raise NotFollowedError
        elif not copies and not combination.marks:
            raise NotFollowedError  # a sum of arrays that were not passed on has a rule of its own
        combination = combination.over_groups(self.factors, groups)
        if operation == "all-reduce":
            return combination
        axis = i.numbers("dimensions")[0]
        length = array.shape[axis] // len(groups[0])
        offsets = {d: n * length for group in groups for n, d in enumerate(group)}
        return combination.sliced(array.shape, axis, [offsets[d] for d in range(self.shares.size)], length)

    # -------------------------------------------------------------------------------- which arrays there are

    def _known(self, value: Fact) -> Combination:
        if id(value) not in self._combinations:
            raise NotFollowedError
        return self._combinations[id(value)][1]

    def _begun(self, value: Fact, array: Array) -> Combination:
        if id(value) in self._combinations:
            return self._combinations[id(value)][1]
        plain = value.state == Dependence.FREE and value.same == self.shares.alike
        if plain or value.state == Dependence.UNKNOWN or value.constant is not None or not array.size:
            raise NotFollowedError
        return alone(self.bases, value, array.size, self.factors)

    def _terms(self, values: Sequence[Fact], arrays: Sequence[Array]) -> list[Combination]:
        """Return what operands are that are added or put together; one must be followed already, or zero."""
        if not any(id(v) in self._combinations or self._is_zero(v) for v in values):
            raise NotFollowedError
        return [
            zeros(self.shares.size, array.size) if self._is_zero(value) else self._begun(value, array)
            for value, array in zip(values, arrays, strict=True)
        ]

    def _is_zero(self, value: Fact) -> bool:
        return value.zeros == self.shares.all and value.constant is not None

    def _constants(self, value: Fact) -> list[float]:
        if value.constant is None:
            raise NotFollowedError
        return [float(value.constant.on(d)) for d in range(self.shares.size)]

    def _starts(self, value: Fact, length: int, size: int) -> list[int]:
        if length == size:
            return [0] * self.shares.size
        return [min(max(int(n), 0), size - length) for n in self._constants(value)]

    # ----------------------------------------------------------------------------------- one instruction each

    def _view(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        kinds = {arrays[0].kind, i.results[0].kind}
        if len(kinds) > 1 and not all(kind[0] in "fb" for kind in kinds):
            raise NotFollowedError  # rounding a sum is not the sum of what is rounded
        return self._begun(values[0], arrays[0])

    def _bitcast(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        combination, before, after = self._begun(values[0], arrays[0]), arrays[0], i.results[0]
        if before.kind != after.kind or before.size != after.size:
            raise NotFollowedError
        inwards = [_outermost_first(a) for a in (before, after)]
        combination = combination.transposed(before.shape, inwards[0])
        # The memory is read with the other array's axes, which are then put in their order.
        shape = tuple(after.shape[n] for n in inwards[1])
        return combination.transposed(shape, np.argsort(inwards[1]).tolist())

    def _transpose(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        return self._known(values[0]).transposed(arrays[0].shape, i.numbers("dimensions"))

    def _broadcast(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        axes, result, array = i.numbers("dimensions"), i.results[0], arrays[0]
        copies = result.size // max(array.size, 1)
        last_axes = tuple(range(len(result.shape)))[len(result.shape) - len(axes) :]
        if list(axes) != sorted(axes) or (copies > 1 and axes != last_axes) or copies > self.shares.size:
            raise NotFollowedError
        combination = self._begun(values[0], array)
        pieces = [(combination, (1, array.size))] * copies
        return joined(self.factors, pieces, 0) if copies > 1 else combination

    def _slice(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        combination, shape = self._begun(values[0], arrays[0]), list(arrays[0].shape)
        bounds = re.search(r"slice=\{([^}]*)\}", i.attributes)
        for axis, part in enumerate(re.findall(r"\[([\d:]+)\]", bounds.group(1) if bounds else "")):
            start, stop, step = ([int(n) for n in part.split(":")] + [1])[:3]
            if step != 1:
                raise NotFollowedError
            if stop - start < shape[axis]:
                combination = combination.sliced(tuple(shape), axis, [start] * self.shares.size, stop - start)
                shape[axis] = stop - start
        return combination

    def _dynamic_slice(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        combination, shape = self._begun(values[0], arrays[0]), list(arrays[0].shape)
        for axis, length in enumerate(i.results[0].shape):
            if length < shape[axis]:
                starts = self._starts(values[1 + axis], length, shape[axis])
                combination = combination.sliced(tuple(shape), axis, starts, length)
                shape[axis] = length
        return combination

    def _update(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        before, part = self._terms(values[:2], arrays[:2])
        shape, lengths = arrays[0].shape, arrays[1].shape
        if part.scale != before.scale:
            part = part.at_scale(self.factors, before.scale)
        axes = [n for n, length in enumerate(lengths) if length < shape[n]] or [0]
        if len(axes) > 1:
            raise NotFollowedError
        starts = self._starts(values[2 + axes[0]], lengths[axes[0]], shape[axes[0]])
        done = before.updated(shape, axes[0], starts, part, lengths[axes[0]])
        return dataclasses.replace(done, marks=before.marks | part.marks)

    def _concatenate(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        terms = self._terms(values, arrays)
        pairs = [(t, a.shape) for t, a in zip(terms, arrays, strict=True)]
        return joined(self.factors, pairs, i.numbers("dimensions")[0])

    def _pad(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        combination, shape = self._begun(values[0], arrays[0]), arrays[0].shape
        edges = re.search(r"padding=([\d_x\-]+)", i.attributes)
        if edges is None or any(self._constants(values[1])):
            raise NotFollowedError
        for axis, text in enumerate(edges.group(1).split("x")):
            low, high, *interior = (int(n) for n in text.split("_"))
            if min(low, high) < 0 or any(interior):
                raise NotFollowedError
            pieces = [(combination, shape)]
            for at, length in ((0, low), (len(pieces) + bool(low), high)):
                filled = (*shape[:axis], length, *shape[axis + 1 :])
                if length:
                    pieces.insert(at, (zeros(self.shares.size, math.prod(filled)), filled))
            combination = joined(self.factors, pieces, axis)
            shape = (*shape[:axis], shape[axis] + low + high, *shape[axis + 1 :])
        return combination

    def _add(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        first, second = self._terms(values, arrays)
        if i.operation == "subtract":
            second = second.scaled(self.factors, [-1.0] * self.shares.size)
        return total(self.factors, (first, second))

    def _scale(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        if i.operation == "negate":
            return self._known(values[0]).scaled(self.factors, [-1.0] * self.shares.size)
        first, second = values if i.operation == "divide" or values[1].constant else values[::-1]
        combination, scalars = self._known(first), self._constants(second)
        inexact = i.operation == "divide" and (0 in scalars or i.results[0].kind[0] not in "fbc")
        if inexact or not combination.marks:
            # Before anything is passed on, the product is an array like others.
            raise NotFollowedError
        return combination.scaled(
            self.factors, [1 / n for n in scalars] if i.operation == "divide" else scalars
        )

    def _select(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        chosen = self._constants(values[0])
        terms = self._terms(values[1:], arrays[1:])
        parts = [
            t.scaled(self.factors, [float(bool(x) == first) for x in chosen])
            for t, first in zip(terms, (True, False), strict=True)
        ]
        return total(self.factors, parts)

    def _reduce(self, i: Instruction, values: list[Fact], arrays: list[Array]) -> Combination:
        if len(values) != 2 or reducing_operation(i, self.module) != "add" or any(self._constants(values[1])):
            raise NotFollowedError
        combination, shape = self._known(values[0]), list(arrays[0].shape)
        for axis in sorted(i.numbers("dimensions"), reverse=True):
            combination = combination.reduced(self.factors, tuple(shape), axis)
            del shape[axis]
        return combination

    def _kept(self, i: Instruction, combination: Combination, value: Fact) -> Fact:
        self._runs += combination.index.size
        self.active = self._runs < BUDGET
        settled, fact = False, dataclasses.replace(value)
        if combination.marks:
            settled, fact = self.proof.of(combination, value, i.name, i.operation in ORDERED)
        if not settled:
            self._combinations[id(fact)] = fact, combination
        return fact


def _outermost_first(array: Array) -> list[int]:
    axes = array.order if array.order is not None else tuple(reversed(range(len(array.shape))))
    if len(axes) != len(array.shape):
        raise NotFollowedError
    return list(reversed(axes))


Rule = Callable[[Followed, Instruction, list[Fact], list[Array]], Combination]
RULES: dict[str, Rule] = {
    **dict.fromkeys(("reshape", "copy", "convert", "reduce-precision"), Followed._view),
    **dict.fromkeys(("add", "subtract"), Followed._add),
    **dict.fromkeys(("multiply", "divide", "negate"), Followed._scale),
    "bitcast": Followed._bitcast,
    "transpose": Followed._transpose,
    "broadcast": Followed._broadcast,
    "slice": Followed._slice,
    "dynamic-slice": Followed._dynamic_slice,
    "dynamic-update-slice": Followed._update,
    "concatenate": Followed._concatenate,
    "pad": Followed._pad,
    "select": Followed._select,
    "reduce": Followed._reduce,
}
