"""Instructions that every device computes by itself."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from ..estimate.hlo import Array, Computation, Instruction, Module
from . import constants
from .collectives import Exchanged
from .rules import (
    ELEMENTWISE,
    FUNCTIONS,
    LAYOUT,
    LINEAR,
    LINEAR_GEMM,
    PLACED,
    PRODUCTS,
    PURE,
    RANDOM,
    SCALED,
    SUMS,
    NoRuleError,
    kind_of,
)
from .slices import cut_again, disordered, independent, numbered
from .values import (
    UNIFORM,
    Dependence,
    Fact,
    Labels,
    Shares,
    Slices,
    Waypoint,
    join,
    numbers,
    with_influence,
)

EPSILON = 1e-3
"""How far a constant may be from 1 / N: XLA rounds it to the array's type, of 8 bits at least."""
PLAIN = ("add", "subtract", "select", "concatenate", "pad", "dynamic-update-slice")
"""If an operand has a complete sum as a term, the result has it as a term or as a part."""


class Arithmetic:
    """`value(instruction, operands, computation, loop)`: the result of an instruction on one device.

    `exchanged` is the collectives so far, `row_counts` the lengths of axes that hold a device's rows.
    """

    def __init__(
        self, module: Module, shares: Shares, exchanged: Mapping[str, Exchanged], row_counts: frozenset[int]
    ) -> None:
        self.module, self.shares, self.exchanged, self.row_counts = module, shares, exchanged, row_counts

    def value(self, i: Instruction, values: list[Fact], computation: Computation, loop: str) -> Fact:
        value = self._by_piece(i, values, computation) or self._value(i, values, computation, loop)
        if value.state == Dependence.COMPLETE and value.same == self.shares.alike:
            # Any function of complete sums is one term on all devices, and must not be added over them.
            return dataclasses.replace(value, total=True)
        return value

    def _value(self, i: Instruction, values: list[Fact], computation: Computation, loop: str = "") -> Fact:
        shares, operation = self.shares, i.operation
        kind = i.results[0].kind if i.results else ""
        if operation in ("partition-id", "replica-id"):
            return shares.of_known(range(shares.size))
        if operation == "constant":
            literal = constants.constant(i.literal, kind)
            if literal and len(set(literal)) == 1 and len(literal) in (1, i.results[0].size):
                return shares.of_known(literal[:1])
            return dataclasses.replace(shares.free, table=literal)
        if operation == "custom-call":
            return self._library(i, values)
        if operation not in (*LINEAR, *SUMS, *PRODUCTS, *FUNCTIONS):
            raise NoRuleError(f"there is no rule for {operation}")
        kinds = [
            computation.instructions[o].results[0].kind
            for o in i.operands
            if computation.instructions[o].results
        ]
        scalars = (
            constants.evaluate(operation, i.attributes, kind, values, kinds)
            if len(kinds) == len(values)
            else None
        )
        if scalars is not None:
            return shares.of_known(scalars)
        if operation == "select" and values[0].constant is not None:
            return shares.chosen(i.name, values[0], (values[2], values[1]))
        if operation == "dynamic-slice" and (looked_up := self._looked_up(i, values)):
            return looked_up
        value = self._flagged(
            i, values, shares.combined(i.name, values, kind_of(i, self.module, kinds)), loop
        )
        value = self._influenced(i, values, value, computation)
        if operation == "dynamic-slice":
            cut = self._offsets(i, i.results[0], values[1:], computation)
            value = dataclasses.replace(value, slices=cut_again(value.slices, cut))
        elif operation == "dynamic-update-slice":
            part = computation.instructions[i.operands[1]].results[0]
            starts = self._offsets(i, part, values[2:], computation)
            value = _put(value, values[0].slices, values[1].slices, starts, i.name)
        elif operation in ELEMENTWISE and disordered(value.slices):
            value = value.marked(Waypoint("order", i.name))
        return value

    def _offsets(
        self, i: Instruction, part: Array, starts: Sequence[Fact], computation: Computation
    ) -> Slices:
        """Return the numbers of the slices that the devices take or replace, where these differ."""
        shape, slices = computation.instructions[i.operands[0]].results[0].shape, Slices()
        for length, size, start in zip(part.shape, shape, starts, strict=True):
            if length < size and start.constant is not None:
                offsets = [int(start.constant.on(d)) for d in range(self.shares.size)]
                slices |= numbered([min(max(n, 0), size - length) for n in offsets], length)
        return slices

    def _by_piece(self, i: Instruction, values: list[Fact], computation: Computation) -> Fact | None:
        """Follow small arrays that XLA, or a user, puts into one vector for one reduction."""
        if i.operation == "concatenate" and len(i.results[0].shape) == 1:
            lengths = [computation.instructions[o].results[0].size for o in i.operands]
            pieces = [p for n, v in zip(lengths, values, strict=True) for p in (v.pieces or ((n, v),))]
            return self.joined(i, pieces)
        if not values or not values[0].pieces:
            return None
        pieces = list(values[0].pieces)
        if i.operation == "slice" and (bounds := re.search(r"slice=\{\[(\d+):(\d+)\]\}", i.attributes)):
            return self._cut_out(i, pieces, *map(int, bounds.groups()))
        plain = all(not v.pieces and v.state == Dependence.FREE for v in values[1:])
        if plain and i.operation in ("copy", "convert", "multiply", "divide", "negate"):
            return self.joined(i, [(n, self._value(i, [v, *values[1:]], computation)) for n, v in pieces])
        return None

    def joined(self, i: Instruction, pieces: Sequence[tuple[int, Fact]]) -> Fact:
        values = [v for _, v in pieces]
        total = any(v.total for v in values)
        value = self.shares.combined(i.name, values, "sum")
        return dataclasses.replace(value, total=total, pieces=tuple(pieces))

    def _cut_out(self, i: Instruction, pieces: Sequence[tuple[int, Fact]], start: int, stop: int) -> Fact:
        overlaps, first = [], 0
        for length, value in pieces:
            low, high = max(first, start), min(first + length, stop)
            if low < high:
                overlaps.append((high - low, value))
            first += length
        return overlaps[0][1] if len(overlaps) == 1 else self.joined(i, overlaps)

    def _flagged(self, i: Instruction, values: list[Fact], value: Fact, loop: str) -> Fact:
        """Add what is followed from instruction to instruction and is not part of the proof."""
        operation, size = i.operation, i.results[0].size if i.results else 0
        if operation == "select":
            value = dataclasses.replace(value, zeros=values[1].zeros & values[2].zeros)
        drawn = [v for v in values if v.random and v.state == Dependence.FREE]
        begins = (operation == "xor" and i.results[0].kind[0] == "u") or operation == "rng-bit-generator"
        if value.state == Dependence.FREE and (begins or drawn) and RANDOM.search(i.attributes):
            return self._random(value)
        if operation in LAYOUT:
            first = values[0]
            if first.fresh and i.results[0].kind in ("f16", "bf16"):
                # XLA's compiler for CPUs reduces in float32 what the program reduces in 16 bits.
                value = value.marked(Waypoint("half", first.fresh, i.results[0].kind))
            copied = {f: getattr(first, f) for f in ("random", "batch", "carry", "grows", "fresh", "total")}
            return dataclasses.replace(value, **copied)
        if operation in ("multiply", "divide"):
            value = self._averaged(i, values, value)
        if operation in SCALED or operation in PLAIN:
            value = dataclasses.replace(
                value, total=_holds_a_total(operation, values, value, self.shares.alike)
            )
        if operation == "add":
            value = self._accumulated(values, value, loop)
        if operation in ("add", "subtract") and self._adds_a_sum_from_elsewhere(values):
            value = value.marked(Waypoint("passed", i.name))
        if not drawn or operation in ("reduce", "dot", "convolution"):
            return value
        if operation == "broadcast" and not self._keeps_rows(i):
            return value
        if value.state == Dependence.FREE:
            return dataclasses.replace(value, random=True)
        rowwise = bool(self.row_counts & set(i.results[0].shape)) if size > 1 else False
        if (
            rowwise
            and any(v.state == Dependence.LOCAL for v in values)
            and any(self._alike(v) for v in drawn)
        ):
            value = value.marked(Waypoint("keys", i.name))
        return value

    def _influenced(self, i: Instruction, values: list[Fact], value: Fact, computation: Computation) -> Fact:
        """Follow what the batch adds to an array, where arrays are combined element by element."""
        first, size = values[0] if values else value, i.results[0].size
        sizes = [sum(a.size for a in computation.instructions[o].results) for o in i.operands]
        if i.operation in PLACED:
            return dataclasses.replace(value, influence=first.influence, scalars=first.scalars)
        if i.operation == "broadcast" and sizes[0] == 1 < size:
            if first.state == Dependence.COMPLETE and first.same != self.shares.alike:
                value = dataclasses.replace(value.marked(Waypoint("scalar", i.name)), scalars=first.same)
            return dataclasses.replace(value, influence=UNIFORM)
        if i.operation == "broadcast":
            return dataclasses.replace(value, influence=first.influence, scalars=first.scalars)
        if i.operation not in ELEMENTWISE or size == 1:
            return value
        arrays = [v for v, n in zip(values, sizes, strict=True) if n == size]
        scalars = functools.reduce(join, (v.scalars for v in arrays), UNIFORM)
        return with_influence(dataclasses.replace(value, scalars=scalars), arrays)

    def _keeps_rows(self, i: Instruction) -> bool:
        """Return whether what is repeated has a number for each row: the first axis as long as the rows."""
        lengths = enumerate(i.results[0].shape)
        first = next((axis for axis, length in lengths if length in self.row_counts), None)
        return first in i.numbers("dimensions")

    def _random(self, value: Fact) -> Fact:
        """Random numbers belong to the rows that they meet: with others it is the same function."""
        return dataclasses.replace(value, form=self.shares.alike, random=True)

    def _alike(self, value: Fact) -> bool:
        """Return whether devices with different rows hold the same numbers."""
        shares: dict[int, set[int]] = {}
        for label, share in zip(numbers(value.same), self.shares.of_device, strict=True):
            shares.setdefault(label, set()).add(share)
        return any(len(rows) > 1 for rows in shares.values())

    def _accumulated(self, values: list[Fact], value: Fact, loop: str) -> Fact:
        """Mark a sum over the batch that a loop adds up in its state, in every turn."""
        for before, added in (values, values[::-1]):
            sums = [m.at for m in added.marks if m.kind == "sum" and loop in self.exchanged[m.at].context]
            if before.carry is not None and sums and added.state == Dependence.COMPLETE:
                marks = [Waypoint("loop", at) for at in sums]
                return dataclasses.replace(value.marked(*marks), grows=before.carry)
        return value

    def _adds_a_sum_from_elsewhere(self, values: list[Fact]) -> bool:
        """Return whether a part of a sum that a device received may be added to the same part of its own."""
        if not all(v.total and v.state == Dependence.COMPLETE and v.zeros != self.shares.all for v in values):
            return False
        first, second = ({m.at for m in v.marks if m.kind == "sum"} for v in values)
        return bool(first & second) and any(m.kind == "moved" for v in values for m in v.marks)

    def _averaged(self, i: Instruction, values: list[Fact], value: Fact) -> Fact:
        """A second sum that is divided by its number of terms at once was a mean of equal numbers."""
        for total, factor in (values, values[::-1] if i.operation == "multiply" else values):
            if total.fresh is None or factor.constant is None or len(factor.constant.numbers) != 1:
                continue
            n = float(factor.constant.numbers[0])
            divisor = n if i.operation == "divide" else 1 / n if n else 0
            again = {m for m in total.marks if m.kind in ("again", "copies") and m.at == total.fresh}
            group = len(self.exchanged[total.fresh].groups[0])
            if again and any(abs(divisor / k - 1) < EPSILON for k in (group, *(int(m.text) for m in again))):
                return dataclasses.replace(value, marks=value.marks - again)
        return value

    def _looked_up(self, i: Instruction, values: list[Fact]) -> Fact | None:
        """A number that each device takes out of a small constant."""
        table, index = values[0].table, values[1].constant
        if table is None or index is None or len(values) != 2 or i.results[0].size != 1:
            return None
        last = len(table) - 1
        return self.shares.of_known([table[min(max(int(n), 0), last)] for n in index.numbers])

    def _library(self, i: Instruction, values: list[Fact]) -> Fact:
        if not i.target.startswith(PURE):
            raise NoRuleError(f"nothing is known of the function {i.target!r}")
        if "threefry" in i.target and all(v.state == Dependence.FREE for v in values):
            return self._random(self.shares.combined(i.name, values))
        plain = i.target.startswith(LINEAR_GEMM) and '"epilogue":"DEFAULT"' in i.attributes.replace(" ", "")
        return self.shares.combined(i.name, values, "product" if plain and len(values) == 2 else "any")


def _holds_a_total(operation: str, values: list[Fact], value: Fact, alike: Labels) -> bool:
    """Return whether a complete sum is a term of the result, with a factor that is the same for all rows."""
    if operation in PLAIN:
        return any(v.total for v in values)
    if value.state != Dependence.COMPLETE and sum(v.state != Dependence.FREE for v in values) > 1:
        return False
    # A gradient that is clipped by its norm is still the gradient; the square of a part is not.
    factors = values if operation == "multiply" else values[:1]
    parts = sum(v.total and v.same != alike for v in factors)
    return parts == 1 or (parts == 0 and any(v.total for v in factors))


def _put(value: Fact, before: Slices, moved: Slices, starts: Slices, at: str) -> Fact:
    """Return an array in which devices replace slices; those that come from other starts are not in order."""
    if not starts:
        return value
    strange = any(disordered((a, b)) for a in moved for b in starts)
    value = dataclasses.replace(value, slices=before | independent(moved, starts))
    return value.marked(Waypoint("order", at)) if strange else value
