"""A reader of scheduled HLO text, and what must hold of a program for GPUs.

`read` takes what `compiled.as_text()` gives: computations, each a list of instructions in the order in which
they are launched. Each `check_` raises an AssertionError that names the instructions; test_hlo.py plants a
fault for every one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
HOST = ("send", "recv", "infeed", "outfeed")
HOST_CALLS = ("callback", "MoveToHost", "PinToHost", "MoveToDevice", "annotate_device_placement")
HOST_MEMORY = "S(5)"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line: `%name = shape opcode(operands), rest`."""

    name: str
    shape: str
    opcode: str
    rest: str

    @property
    def collective(self) -> str | None:
        """Which collective ends here: its shape is the result, while that of a start may hold operands."""
        kind = self.opcode.removesuffix("-done")
        return kind if kind in COLLECTIVES else None

    @property
    def nbytes(self) -> int:
        """Bytes of its result."""
        return sum(_nbytes(kind, shape) for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", self.shape))

    @property
    def target(self) -> str:
        """What a custom call calls; empty for other instructions."""
        found = re.search(r'custom_call_target="([^"]*)"', self.rest)
        return found[1] if found else ""

    @property
    def is_product(self) -> bool:
        """A matrix product: cuBLAS's, or one in a kernel of XLA's own."""
        return self.opcode == "dot" or "gemm" in self.target

    def called(self) -> list[str]:
        """The computations that it runs or applies."""
        text = self.rest.partition("metadata=")[0]
        lists = re.findall(r"(?:branch_computations|called_computations|calls)=\{([^}]*)\}", text)
        single = re.findall(
            r"(?:calls|to_apply|body|condition|true_computation|false_computation)=(%[\w.\-]+)", text
        )
        return [name.strip().lstrip("%") for part in (*lists, *single) for name in part.split(",")]


@dataclasses.dataclass(frozen=True)
class Program:
    """Attributes:
    computations: by name; entry: the name of the one that is run.
    aliases: how many results lie in the memory of an argument.
    """

    computations: dict[str, tuple[Instruction, ...]]
    entry: str
    aliases: int

    @functools.cached_property
    def instructions(self) -> list[Instruction]:
        """Those of all computations."""
        return [each for found in self.computations.values() for each in found]

    @property
    def collectives(self) -> list[tuple[str, int]]:
        """Each with its bytes, in no order that means anything."""
        return sorted((each.collective, each.nbytes) for each in self.instructions if each.collective)

    @property
    def schedule(self) -> list[str]:
        """The order of what takes time: starts and ends of collectives, and matrix products between them."""
        found = []
        for each in self.computations[self.entry]:
            if each.collective or each.opcode.removesuffix("-start") in COLLECTIVES:
                found.append(each.opcode)
            elif each.is_product or any(inner.is_product for inner in self.inside(each)):
                found.append("product")
        return found

    @property
    def size(self) -> int:
        """The number of instructions."""
        return len(self.instructions)

    def inside(self, instruction: Instruction) -> list[Instruction]:
        """The instructions of all computations that one runs, at any depth."""
        todo, seen = instruction.called(), set()
        while todo:
            name = todo.pop()
            if name in seen or name not in self.computations:
                continue
            seen.add(name)
            todo += [called for each in self.computations[name] for called in each.called()]
        return [each for name in seen for each in self.computations[name]]


def read(text: str) -> Program:
    """The program of a text of scheduled HLO.

    Raises:
      ValueError: it is none.
    """
    header, _, _ = text.partition("\n")
    if "is_scheduled=true" not in header:
        raise ValueError("read: this is no scheduled HLO; give compiled.as_text().")
    computations: dict[str, tuple[Instruction, ...]] = {}
    entry, name, lines = "", "", list[Instruction]()
    for line in text.splitlines()[1:]:
        if found := re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{$", line):
            name, lines = found[2], []
            entry = name if found[1] else entry
        elif line.startswith("}"):
            computations[name] = tuple(lines)
        elif found := re.match(r"\s+(?:ROOT )?%([\w.\-]+) = (.*)", line):
            lines.append(_instruction(found[1], found[2]))
    return Program(computations, entry, len(re.findall(r"(?:may|must)-alias", header)))


def _instruction(name: str, text: str) -> Instruction:
    depth = end = 0
    while depth or text[end] != " ":  # the shape of a tuple holds blanks
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    opcode, _, rest = text[end + 1 :].partition("(")
    return Instruction(name, text[:end], opcode, rest)


def _nbytes(kind: str, shape: str) -> int:
    bits = 8 if kind == "pred" else int((re.findall(r"\d+", kind) or ["0"])[0])
    return math.prod(int(n) for n in shape.split(",") if n) * bits // 8


# ------------------------------------------------------------------------------------- what must hold


def check_collectives(program: Program, *expected: tuple[str, int]) -> None:
    """The program has these collectives of so many bytes and no others."""
    assert program.collectives == sorted(expected), f"{program.collectives} and not {sorted(expected)}"


def check_only_sums(program: Program) -> None:
    """Nothing is gathered: all-reduces are the only collectives."""
    others = [each.name for each in program.instructions if each.collective not in (None, "all-reduce")]
    assert not others, f"not sums: {others}"


def check_no_collective_in_branches(program: Program) -> None:
    """A collective in a branch that other devices do not take would wait for ever."""
    found = [
        (each.name, inner.name)
        for each in program.instructions
        if each.opcode == "conditional"
        for inner in program.inside(each)
        if inner.collective
    ]
    assert not found, f"collectives in branches: {found}"


def check_stays_on_device(program: Program) -> None:
    """Nothing goes to the host or comes from it while the program runs."""
    found = [
        each.name
        for each in program.instructions
        if each.opcode.partition("-")[0] in HOST
        or HOST_MEMORY in each.shape
        or any(word in each.target for word in HOST_CALLS)
    ]
    assert not found, f"the host takes part: {found}"


def check_donates(program: Program, arrays: int) -> None:
    """That many results take the memory of an argument."""
    assert program.aliases == arrays, f"{program.aliases} of {arrays} arrays are donated"


def check_same_schedule(ours: Program, by_hand: Program) -> None:
    """The same collectives, started and awaited at the same places between the same products."""
    assert ours.schedule == by_hand.schedule, f"{ours.schedule}\nand by hand\n{by_hand.schedule}"


def check_overlaps(program: Program) -> None:
    """All but the last collective have a matrix product between start and end."""
    schedule = program.schedule
    starts = [i for i, what in enumerate(schedule) if what.endswith("-start")]
    ends = [i for i, what in enumerate(schedule) if what.endswith("-done")]
    assert len(starts) > 1, f"there is nothing to overlap: {schedule}"
    behind = ["product" in schedule[start:end] for start, end in zip(starts, ends, strict=True)]
    assert all(behind[:-1]), f"not behind the backward pass: {schedule}"
