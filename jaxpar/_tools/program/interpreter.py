"""Interpret a compiled program: a `Fact` for each result, by a rule for each instruction."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence

from ..estimate.hlo import Array, Computation, Instruction, Module, exchanged_bytes
from . import collectives
from .arithmetic import Arithmetic
from .collectives import Exchanged
from .followed import Followed
from .rules import COLLECTIVES, NoRuleError, called, reducing_operation
from .values import Dependence, Fact, Result, Shares, Waypoint, join, leaves, numbers

TURNS = 40
"""A loop's state only gets less certain, so it settles in a few turns; after these it is unknown."""

MOST_TURNS = 256


class Interpreter:
    """`run(values)` evaluates the entry; afterwards `exchanged` and `stuck` hold what was met on the way."""

    def __init__(self, module: Module, shares: Shares, row_counts: frozenset[int] = frozenset()) -> None:
        self.module, self.shares = module, shares
        self.exchanged: dict[str, Exchanged] = {}
        self.arithmetic = Arithmetic(module, shares, self.exchanged, row_counts)
        self.followed = Followed(module, shares)
        self.instructions: dict[str, Instruction] = {}
        self.stuck: dict[str, str] = {}
        """The loop or branch of each collective that some devices of a group reach and others do not."""
        self.divides = False
        """Whether some sum has terms that differ."""
        self._decisions: list[tuple[str, bytes]] = []
        """The loops and branches around the current instruction, and the devices that take them alike."""

    def run(self, arguments: Sequence[Fact]) -> Result:
        return self._computation(self.module.entry, tuple(arguments))

    def _computation(self, name: str, arguments: tuple[Result, ...]) -> Result:
        computation = self.module.computations[name]
        results: dict[str, Result] = {}
        for instruction in computation.instructions.values():
            if instruction.operation == "parameter":
                results[instruction.name] = arguments[int(instruction.literal)]
                continue
            operands = [results[o] for o in instruction.operands if o in results]
            self.instructions[instruction.name] = instruction
            try:
                results[instruction.name] = self._instruction(instruction, operands, computation)
            except NoRuleError as error:
                results[instruction.name] = self._unknown(instruction, str(error), operands)
        return results[computation.root.name]

    def _unknown(self, instruction: Instruction, why: str, operands: Sequence[Result]) -> Result:
        """A value of which nothing is proven; of a tuple it is each element."""
        return self.shares.unknown(instruction.name, why, *(v for o in operands for v in leaves(o)))

    def _instruction(self, i: Instruction, operands: list[Result], computation: Computation) -> Result:
        operation = i.operation
        if operation == "tuple":
            return tuple(operands)
        if operation == "get-tuple-element":
            operand, index = operands[0], re.search(r"index=(\d+)", i.attributes)
            return operand[int(index.group(1))] if index and isinstance(operand, tuple) else operand
        if operation in ("fusion", "call", "async-start"):
            return self._computation(i.called[0], tuple(operands))
        if operation == "while":
            return self._loop(i, operands[0])
        if operation == "conditional":
            return self._branch(i, operands)
        if operation in PASSED or operation.endswith("-done"):
            return operands[0]
        if operation in ("after-all", "outfeed"):
            return self.shares.free
        values = [v for o in operands for v in leaves(o)]
        if operation.removesuffix("-start") in COLLECTIVES:
            return self._collective(i, values, computation)
        loop = next((name for name, _ in reversed(self._decisions) if name.startswith("loop")), "")
        value = self.arithmetic.value(i, values, computation, loop)
        if i.is_tuple:
            return tuple(dataclasses.replace(value) for _ in i.results)
        return self.followed.instruction(i, values, value, computation)

    # --------------------------------------------------------------------------------------- collectives

    def _collective(self, i: Instruction, values: list[Fact], computation: Computation) -> Result:
        shares, operation = self.shares, i.operation.removesuffix("-start")
        if operation == "collective-permute":
            groups: collectives.Groups = (tuple(range(shares.size)),)
        else:
            groups = collectives.device_groups(i.attributes, shares.size)
        self._meet(i, groups, exchanged_bytes(i, computation))
        arrays = [computation.instructions[o].results[0] for o in i.operands]
        done = [self._exchanged(i, operation, v, groups, a) for v, a in zip(values, arrays, strict=True)]
        if operation == "all-to-all" and len(done) > 1:
            done = [shares.combined(i.name, done) for _ in done]
        done = [
            self.followed.collective(i, values, n, value, groups, computation) for n, value in enumerate(done)
        ]
        return tuple(done) if len(done) > 1 else done[0]

    def _exchanged(
        self, i: Instruction, operation: str, value: Fact, groups: collectives.Groups, array: Array
    ) -> Fact:
        """Return one operand's result; `array` is its shape and type."""
        shares, kind = self.shares, array.kind
        if value.pieces and operation in ("all-reduce", "collective-permute"):
            pieces = [(n, self._exchanged(i, operation, v, groups, array)) for n, v in value.pieces]
            return self.arithmetic.joined(i, pieces)
        if operation == "collective-permute":
            return collectives.permuted(shares, i.name, value, i.attributes)
        if operation == "all-gather":
            single = array.shape[i.numbers("dimensions")[0]] == 1
            return collectives.gathered(shares, i.name, value, groups, single=single)
        if operation in ("all-to-all", "collective-broadcast"):
            return collectives.gathered(shares, i.name, value, groups, placed=operation == "all-to-all")
        self.divides = self.divides or value.same != shares.alike
        by = reducing_operation(i, self.module)
        reduced = collectives.reduction(shares, i.name, value, groups, by, kind[0] in "fbc")
        if kind in ("f16", "bf16") and reduced.rows != value.rows:
            reduced = reduced.marked(Waypoint("half", i.name, kind))
        return collectives.scattered(shares, reduced, groups) if operation == "reduce-scatter" else reduced

    def _meet(self, i: Instruction, groups: collectives.Groups, size: int) -> None:
        context = tuple(name for name, _ in self._decisions)
        kinds = tuple(a.kind for a in i.results)
        self.exchanged[i.name] = Exchanged(i.operation.removesuffix("-start"), groups, kinds, size, context)
        for name, alike in self._decisions:
            numbered = numbers(alike)
            if any(len({numbered[d] for d in group}) > 1 for group in groups):
                self.stuck[i.name] = name

    # ---------------------------------------------------------------------------------- loops and branches

    def _loop(self, i: Instruction, start: Result) -> Result:
        body, condition = (called(i, name) for name in ("body", "condition"))
        if (unrolled := self._unrolled(i, body, condition, start)) is not None:
            return unrolled
        state, alike = start, self.shares.alike
        for _ in range(TURNS):
            self._decisions.append((f"loop {i.name}", alike))
            decision = self._computation(condition, (_fresh(state),))
            done = self._computation(body, (_carried(state),))
            self._decisions.pop()
            if not isinstance(decision, Fact):
                break
            after = self.shares.merged(i.name, state, _plain(done))
            if decision.same != self.shares.alike or decision.state != Dependence.FREE:
                # The number of turns is a number like others, and some devices may take more than others.
                alike = join(alike, decision.same)
                changed = functools.partial(self._decided, i.name, decision)
                after = _pairs(changed, after, state)
            if after == state:
                return _fresh(_pairs(_with_marks_of_growth, state, done))
            state = after
        return self._unknown(i, "its loop's state does not settle", [start])

    def _unrolled(self, i: Instruction, body: str, condition: str, start: Result) -> Result | None:
        """Evaluate the turns of a ring one by one; None if their number is not constant, or too large."""
        if not self.followed.active or not self._passes(body) or (i.turns or 0) > MOST_TURNS:
            return None
        state = start
        for _ in range(MOST_TURNS + 1):
            decision = self._computation(condition, (state,))
            if not isinstance(decision, Fact) or decision.constant is None:
                return None
            if len(decision.constant.numbers) > 1:
                return None
            if not decision.constant.numbers[0]:
                return state
            self._decisions.append((f"loop {i.name}", self.shares.alike))
            state = self._computation(body, (state,))
            self._decisions.pop()
        return None

    def _passes(self, name: str) -> bool:
        """Return whether a computation passes something on, outside of its loops."""
        instructions = self.module.computations[name].instructions.values()
        return any(
            i.operation.startswith("collective-permute")
            or (i.operation in ("fusion", "call", "conditional") and any(map(self._passes, i.called)))
            for i in instructions
        )

    def _decided(self, at: str, decision: Fact, after: Fact, before: Fact) -> Fact:
        if after == before:
            return after
        return dataclasses.replace(self.shares.combined(at, (after, decision), "linear"), total=after.total)

    def _branch(self, i: Instruction, operands: list[Result]) -> Result:
        index, *arguments = operands
        assert isinstance(index, Fact), i.name
        names = i.called
        if "true_computation" in i.attributes:
            names = tuple(called(i, f"{x}_computation") for x in ("true", "false"))
        done = []
        for name, argument in zip(names, arguments, strict=True):
            self._decisions.append((f"branch {i.name}", index.same))
            done.append(self._computation(name, (argument,)))
            self._decisions.pop()
        if "true_computation" in i.attributes:
            done.reverse()
        return self._chosen(i, index, done)

    def _chosen(self, i: Instruction, index: Fact, options: Sequence[Result]) -> Result:
        if all(isinstance(o, tuple) for o in options):
            return tuple(self._chosen(i, index, parts) for parts in zip(*options, strict=True))
        values = [v for o in options for v in leaves(o)]
        if index.constant is not None:
            return self.shares.chosen(i.name, index, values)
        merged: Result = values[0]
        for value in values[1:]:
            merged = self.shares.merged(i.name, merged, value)
        assert isinstance(merged, Fact)
        value = self.shares.combined(i.name, (merged, index), "linear")
        return dataclasses.replace(
            value, total=merged.total, influence=merged.influence, scalars=merged.scalars
        )


PASSED = {*("opt-barrier", "optimization-barrier", "async-update", "domain", "copy-start", "add-dependency")}
"""The result is the first operand."""


def _with_marks_of_growth(state: Fact, done: Fact) -> Fact:
    return state.marked(*done.marks) if done.grows is not None else state


def _carried(state: Result) -> Result:
    if isinstance(state, Fact):
        return state
    return tuple(
        dataclasses.replace(v, carry=n, grows=None) if isinstance(v, Fact) else v for n, v in enumerate(state)
    )


def _fresh(result: Result) -> Result:
    """Copy the values: an object is one array, and a loop's next turn has a new one."""
    return tuple(map(_fresh, result)) if isinstance(result, tuple) else dataclasses.replace(result)


def _plain(result: Result) -> Result:
    if isinstance(result, tuple):
        return tuple(_plain(r) for r in result)
    return dataclasses.replace(result, carry=None, grows=None)


def _pairs(f: Callable[[Fact, Fact], Fact], first: Result, second: Result) -> Result:
    if isinstance(first, Fact) and isinstance(second, Fact):
        return f(first, second)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return tuple(_pairs(f, a, b) for a, b in zip(first, second, strict=True))
    # A tuple that is unknown as a whole has one value.
    return first if isinstance(first, Fact) else second
