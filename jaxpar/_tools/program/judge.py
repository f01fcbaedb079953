"""From a value for each result to verdicts and findings."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, NamedTuple

from .arguments import Step, StepArray
from .interpreter import Interpreter
from .report import OPEN, RIGHT, WRONG, Exchange, Finding, LeafVerdict, ProgramReport
from .slices import disordered
from .source import Sources
from .values import REPEATED, Dependence, Fact, Labels, Shares, Waypoint, join, labels_of, numbers

FOUND = WRONG, "see the findings"
SLICES = {
    "alike": "the batch changes its slices alike, as by a reduction along the axis that divides it",
    "scaled": "each slice is combined with a number of its own, such as its norm",
}


class Interpreted(NamedTuple):
    """A program's text, interpreted: a value for each result."""

    interpreter: Interpreter
    sources: Sources
    values: list[Fact]

    def line(self, at: str) -> str:
        instruction = self.interpreter.instructions.get(at)
        return self.sources.line(instruction) if instruction else ""


class Judge:
    """`report()` judges each result by its value; `sharded` and `local` are as for `program`.

    `sums` is the step compiled without XLA's algebra. It decides which sums of equal terms are means: its
    divisors are separate, and in the program that runs one can be a part of a learning rate.
    """

    def __init__(
        self, step: Step, shares: Shares, program: Interpreted, sums: Interpreted, sharded: str, local: str
    ) -> None:
        self.step, self.shares, self.program, self.sums = step, shares, program, sums
        self.interpreter, self.values = program.interpreter, program.values
        self.sharded, self.local = sharded, local
        self.undivided = step.devices > 1 and len(set(shares.of_device)) == 1
        self.findings: dict[tuple[str, str, str], list[str]] = {}

    def report(self) -> ProgramReport:
        step = self.step
        judged = tuple(self._leaf(n) for n in range(len(step.results)))
        if self.undivided and not self.interpreter.divides:
            text = "no argument is divided between the devices, so that all compute the same"
            self._find("undivided", "", text)
        for at, decision in self.interpreter.stuck.items():
            text = f"{at} is in {decision}, which not all devices of its group take alike: they wait for ever"
            self._find("stuck", "", text, at)
        self._donations()
        findings = tuple(
            Finding(kind, tuple(p), line, text) for (kind, text, line), p in self.findings.items()
        )
        shares = len(set(self.shares.of_device))
        return ProgramReport(
            step.name, step.platform, step.devices, shares, judged, findings, self._exchanges()
        )

    def _find(self, kind: str, path: str, text: str, at: str = "") -> None:
        self._find_at(kind, path, text, self._line(at))

    def _find_at(self, kind: str, path: str, text: str, line: str) -> None:
        paths = self.findings.setdefault((kind, text, line), [])
        if path:
            paths.append(path)

    def _line(self, at: str) -> str:
        return self.program.line(at)

    # ------------------------------------------------------------------------------------------- a leaf

    def _leaf(self, n: int) -> LeafVerdict:
        array, value, replaced = self.step.results[n], self.values[n], self.step.state.get(n)
        copies = replaced is not None and self.step.copies
        needed = self.shares.alike if copies else labels_of(list(array.part))
        alike = join(needed, value.same) == needed
        sums = tuple(sorted({m.at for m in value.marks if m.kind == "sum"}))
        if replaced is None:
            return self._result(f"result{array.path}", value, alike, sums)
        before = self.step.arguments[replaced]
        self._costs(before.path, array, value)
        if self.sharded and re.search(self.sharded, before.path) and not array.divided:
            text = "should be divided between the devices, and every device holds all of it"
            self._find("unsharded", before.path, text)
        elif before.divided and not array.divided:
            text = "arrives divided between the devices and is returned whole on each"
            self._find("unsharded", before.path, text)
        may_differ = bool(self.local and re.search(self.local, before.path)) or n in self.step.buffers
        verdict, why = self._verdict(n, before.path, value, alike, may_differ)
        if not copies and not may_differ and self._judge_slices(before, value):
            verdict, why = FOUND
        if verdict == RIGHT and (at := self._disorder(before, value)) is not None:
            verdict, why = OPEN, f"slices meet in another order than they were cut {self._line(at)}".strip()
        if verdict == RIGHT and n in self.step.retyped:
            types = f"comes as {before.type} and is returned as {array.type}"
            verdict, why = OPEN, f"{types}, so that the next step is another program"
        return LeafVerdict(before.path, True, verdict, why, sums)

    def _result(self, path: str, value: Fact, alike: bool, sums: tuple[str, ...]) -> LeafVerdict:
        if alike:
            return LeafVerdict(path, False, RIGHT, "equal on all devices that hold it", sums)
        if value.state == Dependence.UNKNOWN:
            return LeafVerdict(path, False, OPEN, self._why(value), sums)
        text = "should be the same on several devices by its sharding, and each returns its own numbers"
        self._find("differs", path, text)
        return LeafVerdict(path, False, WRONG, text, sums)

    def _verdict(self, n: int, path: str, value: Fact, alike: bool, may_differ: bool) -> tuple[str, str]:
        keys = [m for m in value.marks if m.kind == "keys"]
        again, copies, passed = (
            [m for m in self.sums.values[n].marks if m.kind == kind] for kind in REPEATED
        )
        for m in again:
            text = f"depends on a reduction that adds on {m.text} devices what is a sum over them already"
            self._find_at("again", path, text, self.sums.line(m.at))
        slices = sorted(m for m in value.marks if m.kind == "slices")
        for m in slices:
            self._find("slices", path, f"is put together of slices: {SLICES[m.text]}", m.at)
        for m in keys:
            text = "depends on random numbers that are equal on devices with different rows"
            self._find("keys", path, text, m.at)
        if value.state == Dependence.UNKNOWN:
            return self._unknown(path, value)
        if self.undivided and self.interpreter.divides:
            return OPEN, "the program divides the batch itself, and which rows a device has is not followed"
        if may_differ and value.state == Dependence.LOCAL:
            return RIGHT, "a device's own rows, as it may be"
        if value.state in (Dependence.LOCAL, Dependence.PARTIAL):
            return self._incomplete(n, path, value, alike)
        if not alike:
            text = "is not the same on the devices that should hold equal numbers"
            self._find("differs", path, text, self._root(n))
        if not alike or again or keys or slices:
            return FOUND
        if copies:
            m = copies[0]
            why = f"a reduction adds {m.text} equal numbers, which is right only with a factor elsewhere"
            return OPEN, f"{why} {self.sums.line(m.at)}".strip()
        program = self.sums
        if not passed and program.values[n].state != Dependence.COMPLETE:
            # Without XLA's algebra not all loops are followed: the program that runs may show such a sum.
            program, passed = self.program, sorted(m for m in value.marks if m.kind in REPEATED)
        if passed:
            why = "a sum over the devices is passed on, and may be added to itself"
            return OPEN, f"{passed[0].at}: {why} {program.line(passed[0].at)}".strip()
        return (
            RIGHT,
            "complete sums" if value.state == Dependence.COMPLETE else "it does not depend on the batch",
        )

    def _judge_slices(self, array: StepArray, value: Fact) -> bool:
        """Add a finding if the batch changes different slices alike, or scales each by a number of its own.

        Stacks of copies, one for each share of the batch, change alike, and members of an ensemble do not. A
        number for each device may do both.
        """
        if not array.divided or math.prod(array.part_shape) == 1 or value.state != Dependence.COMPLETE:
            return False
        influence = value.same if value.influence is None else value.influence
        devices = list(zip(array.part, self.shares.of_device, strict=True))
        alike = _by_label(influence, devices)
        if array.stacked:
            shares = [Counter(share for _, share in members) for members in alike]
            several = any(n > 1 for counts in shares for n in counts.values())
        else:
            several = any(len({part for part, _ in members}) > 1 for members in alike)
        if several:
            self._find(
                "slices", array.path, f"is divided: {SLICES['alike']}", self._sum_of_slices(array, value)
            )
        scaled = bool(value.scalars) and not array.stacked
        if scaled:
            at = max((m.at for m in value.marks if m.kind == "scalar"), default="")
            self._find("slices", array.path, f"is divided: {SLICES['scaled']}", at)
        return several or scaled

    def _disorder(self, array: StepArray, value: Fact) -> str | None:
        """Return where slices meet in different orders, or are put together in a new one; else None."""
        marks = sorted(m.at for m in value.marks if m.kind == "order")
        if not marks and disordered(array.slices | value.slices):
            return ""
        return marks[0] if marks else None

    def _sum_of_slices(self, array: StepArray, value: Fact) -> str:
        """Return the last reduction over devices with different slices."""
        sums = {m.at for m in value.marks if m.kind == "sum"}
        exchanged = self.interpreter.exchanged
        across = (
            at
            for at in exchanged
            if at in sums and any(len({array.part[d] for d in group}) > 1 for group in exchanged[at].groups)
        )
        return max(across, key=list(exchanged).index, default="")

    def _unknown(self, path: str, value: Fact) -> tuple[str, str]:
        extremes = [m for m in value.marks if m.kind == "extreme"]
        if not extremes or any(m.kind == "sum" for m in value.marks):
            return OPEN, self._why(value)
        m = extremes[0]
        self._find("extreme", path, f"gets the batch by {m.text} over devices, not by a sum", m.at)
        return FOUND

    def _incomplete(self, n: int, path: str, value: Fact, alike: bool) -> tuple[str, str]:
        parts, most = self.shares.everything.bit_count(), max(r.bit_count() for r in value.rows)
        if value.state == Dependence.LOCAL and set(value.rows) == {self.shares.everything}:
            return OPEN, "each device computes it from the whole batch, which is collected or passed on"
        at = self._root(n)
        if all(r in (1 << k, 0) for r, k in zip(value.rows, self.shares.of_device, strict=True)):
            text = "gets each device's own gradient, which is not reduced over the devices"
            self._find("missing", path, text, at)
        elif len(set(value.rows)) == 1 and alike:
            text = f"is the same everywhere and depends on {most} of {parts} parts of the batch"
            self._find("rows", path, text, at)
        else:
            text = f"is reduced over {most} of {parts} parts of the batch, and differs between devices"
            self._find("part", path, text, at)
        return FOUND

    def _costs(self, path: str, array: StepArray, value: Fact) -> None:
        for mark in sorted(value.marks):
            text = self._cost(mark, array)
            if text:
                self._find(mark.kind, path, text, mark.at)

    def _cost(self, mark: Waypoint, array: StepArray) -> str:
        if mark.kind == "half" and array.type not in ("bfloat16", "float16"):
            return f"is {array.type}, and {mark.at} reduces in {mark.text}"
        if mark.kind == "loop" and not array.divided:
            return f"is reduced by {mark.at} in every turn of a loop that adds up"
        if mark.kind == "gathered" and mark.text == "batch":
            return f"depends on {mark.at}, which collects rows of the batch on every device"
        return ""

    def _why(self, value: Fact) -> str:
        mark = min(m for m in value.marks if m.kind == "unknown")
        return f"{mark.at}: {mark.text} {self._line(mark.at)}".strip()

    def _root(self, n: int) -> str:
        root = self.interpreter.module.computations[self.interpreter.module.entry].root
        return root.operands[n] if root.operation == "tuple" else root.name

    # -------------------------------------------------------------------------------- the whole program

    def _donations(self) -> None:
        header = self.step.text.split("\n", 1)[0]
        aliased = {int(n) for n in re.findall(r"\{[\d, ]*\}: \((\d+), \{", header)}
        for position, number in enumerate(self.step.parameters):
            array = self.step.arguments[number]
            if array.donated and position not in aliased and number in self.step.state.values():
                self._find("donation", array.path, "is donated, and no result takes its memory")

    def _exchanges(self) -> tuple[Exchange, ...]:
        exchanges = []
        for at, e in self.interpreter.exchanged.items():
            kinds, groups, size = "+".join(dict.fromkeys(e.kinds)), len(e.groups), len(e.groups[0])
            exchanges.append(
                Exchange(at, e.operation, kinds, e.bytes, groups, size, e.context, self._line(at))
            )
        return tuple(exchanges)


def _by_label(labels: Labels, devices: list[Any]) -> list[set[Any]]:
    """Return what devices with one label hold; nothing for `UNIFORM`."""
    members: dict[int, set[Any]] = {}
    for label, device in zip(numbers(labels), devices, strict=bool(labels)):
        members.setdefault(label, set()).add(device)
    return list(members.values())
