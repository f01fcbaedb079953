"""Parse a compiled program's HLO text; a scheduled one lists its instructions in the order of starts."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Array:
    kind: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return math.ceil(self.size * _bits(self.kind) / 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation: `operands` are names of instructions, `attributes` the text after them."""

    name: str
    operation: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool = False

    @property
    def bytes(self) -> int:
        return sum(x.bytes for x in self.results)

    @functools.cached_property
    def target(self) -> str:
        return self._attribute(r'custom_call_target="([^"]*)"')

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """The called computations: a fusion's, a loop's body, a conditional's branches."""
        several = self._attribute(r"branch_computations=\{([^}]*)\}")
        if several:
            return tuple(name.strip(" %") for name in several.split(","))
        # A reduction's to_apply adds two numbers and is not counted; a call's is part of the program.
        keys = "calls|body|true_computation|false_computation" + "|to_apply" * (self.operation == "call")
        return tuple(re.findall(rf"\b(?:{keys})=%([\w.\-]+)", self.attributes))

    @functools.cached_property
    def turns(self) -> int | None:
        count = self._attribute(r'"known_trip_count":\s*\{"n":\s*"(\d+)"')
        return int(count) if count else None

    @functools.cached_property
    def origin(self) -> str:
        """The operation in the user's program, without the prefixes of jit and shard_map."""
        path = self._attribute(r'op_name="([^"]*)"')
        return re.sub(r"^(?:(?:jit\([^/]*\)|shard_map)/)+", "", path)

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """Return the numbers of `lhs_contracting_dims={1,2}` or of JSON's `"dimensions": ["1", "2"]`."""
        digits = self._attribute(rf'{attribute}"?[=:]\s*[{{\[]([\d,\s"]*)[}}\]]')
        return tuple(int(n) for n in re.findall(r"\d+", digits))

    def _attribute(self, pattern: str) -> str:
        match = re.search(pattern, self.attributes)
        return match.group(1) if match else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    instructions: Mapping[str, Instruction]

    @property
    def root(self) -> Instruction:
        return next(i for i in self.instructions.values() if i.root)

    def operand(self, instruction: Instruction, number: int) -> Array:
        return self.instructions[instruction.operands[number]].results[0]

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        readers: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for name in dict.fromkeys(instruction.operands):
                if name in readers:
                    readers[name].append(instruction)
        return readers


@dataclasses.dataclass(frozen=True)
class Module:
    computations: Mapping[str, Computation]
    entry: str


def read(text: str) -> Module:
    computations: dict[str, dict[str, Instruction]] = {}
    entry, computation = None, None
    for line in text.splitlines():
        # A computation's header is the only line that ends in a brace after a parameter list.
        if header := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            computation = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
        elif computation is not None and (parsed := instruction(line)):
            computation[parsed.name] = parsed
    if entry is None:
        raise ValueError(
            "estimate: the compiler's text has no ENTRY computation, so there is no program to read."
        )
    return Module({name: Computation(instructions) for name, instructions in computations.items()}, entry)


def instruction(line: str) -> Instruction | None:
    """Parse a line, or return None if it is not an instruction."""
    begin = re.match(r"\s+(ROOT )?%?([\w.\-]+) = ", line)
    if not begin:
        return None
    # A tuple's shape contains spaces and comments, so its end is found by counting brackets.
    middle = _closing(line, begin.end()) if line[begin.end()] == "(" else line.index(" ", begin.end())
    start = line.index("(", middle)
    end = _closing(line, start)
    return Instruction(
        name=begin.group(2),
        operation=line[middle:start].strip(),
        results=arrays(line[begin.end() : middle]),
        # Operands carry their shapes in some versions of XLA and not in others; the percent sign is in all.
        operands=tuple(re.findall(r"%([\w.\-]+)", line[start:end])),
        attributes=line[end:],
        root=bool(begin.group(1)),
    )


def arrays(text: str) -> tuple[Array, ...]:
    """Parse a shape."""
    matches = re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", text)
    return tuple(Array(kind, tuple(int(n) for n in shape.split(",") if n)) for kind, shape in matches)


def _closing(line: str, start: int) -> int:
    """Return the position after the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[position], 0)
        if not depth:
            return position + 1
    raise ValueError(f"estimate: a bracket stays open in the compiler's text: {line[:80]}")


def _bits(kind: str) -> int:
    # The only type without its width in the name; tokens and opaque values have no bytes.
    if kind == "pred":
        return 8
    digits = re.search(r"\d+", kind)
    return int(digits.group()) if digits else 0
