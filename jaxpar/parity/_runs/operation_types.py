"""Which operation of a program runs in which type, and where two programs differ in that."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

LEAST = 6
"""Nonzero values that must be representable: a few are so by chance."""

FLOATS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
"""Significant bits of each type."""

SHOWN = 3  # places in a sentence
FUSED = ("addition", "arithmetic")
"""Operations that one framework has alone where the other fuses them: a bias, a scale."""
TAILS = (*FUSED, "mean", "sum")
Pair = tuple[int | None, "OperationType | None"]


@dataclass(frozen=True)
class OperationType:
    """The type in which one operation of a program runs.

    Attributes:
      operation: "matmul", "convolution", "softmax", "norm", "loss", "embedding", "activation", "addition",
        "arithmetic", "mean", "sum"; "rounding" is a cast to fewer bits and back.
      inputs, output: the type of its inputs, "float32", and of its result.
      where: the path of the torch module, or the line of the user's code.
      precision: of a matmul in float32, what the program asks for: "highest", "high", "default".

    >>> from jaxpar.parity import OperationType
    >>> str(OperationType("softmax", "bfloat16", "bfloat16", "net.py:31"))
    'softmax: bfloat16 (net.py:31)'
    """

    operation: str
    inputs: str
    output: str
    where: str
    precision: str = ""

    @property
    def label(self) -> str:
        """Return the type as a sentence has it."""
        # Of the others, the result's type tells what is lost: torch's kernels compute in float32 inside.
        is_product = self.operation in ("matmul", "convolution")
        return f"{self.inputs} to {self.output}" if is_product and self.inputs != self.output else self.output

    def __str__(self) -> str:
        precision = f", precision {self.precision}" if self.precision else ""
        return f"{self.operation}: {self.label}{precision} ({self.where})"


@dataclass(frozen=True)
class TypeDifference:
    """Operations of one kind that run in other types in A (JAX) than in B (torch).

    `a` and `b` are the types; "" if an operation has no counterpart. `indices` are the operations of A,
    `to` their inputs' and outputs' types in B. `stored` means arrays between steps.
    """

    operations: tuple[str, ...]
    a: str
    b: str
    where: tuple[tuple[str, ...], tuple[str, ...]]
    indices: tuple[int, ...] = ()
    to: tuple[str, str] = ("float32", "float32")
    stored: bool = False

    @property
    def verb(self) -> str:
        """Return how a sentence goes on: "runs in", for several operations "run in"."""
        if self.operations == ("rounding",):
            return "are rounded to"
        return "are kept in" if self.stored else "runs in" if len(self.operations) == 1 else "run in"

    def text(self, a: str, b: str) -> str:
        """Return the difference as a sentence; `a` and `b` are the programs' names: "in JAX", "in run A"."""
        names = ["values" if name == "rounding" else name for name in self.operations]
        shown = ", ".join(names[:-1]) + (" and " if names[:-1] else "") + names[-1]
        preposition = self.verb.rpartition(" ")[2]
        where = [_listed(names) for names in self.where]
        if self.a and self.b:
            return f"{shown} {self.verb} {self.a} {a}{where[0]} and {preposition} {self.b} {b}{where[1]}"
        side, other, label, at = (a, b, self.a, where[0]) if self.a else (b, a, self.b, where[1])
        return f"{shown} {self.verb} {label} {side}{at}, and nothing like it {other}"


def _listed(where: Sequence[str]) -> str:
    names = [name for name in dict.fromkeys(where) if name]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f" ({', '.join(names[:SHOWN])}{more})" if names else ""


def differences(a: Sequence[OperationType], b: Sequence[OperationType]) -> list[TypeDifference]:
    """Return where the types differ; operations are paired in order."""
    matcher = difflib.SequenceMatcher(None, [x.operation for x in a], [y.operation for y in b], False)
    blocks = matcher.get_matching_blocks()
    pairs = {block.a + k: block.b + k for block in blocks for k in range(block.size)}
    backwards = {j: i for i, j in pairs.items()}
    groups: dict[tuple[str, str, str], list[Pair]] = {}
    last: tuple[str, str, str] | None = None
    for i, x in enumerate(a):
        if i in pairs:
            y = b[pairs[i]]
            last = (x.operation, x.label, y.label)
            if x.label != y.label:
                groups.setdefault(last, []).append((i, y))
        elif last in groups and x.label == last[1] and x.operation in TAILS:
            groups[last].append((i, None))  # the other framework computes it in one kernel with the last one
        elif _counts_alone(x, b):
            groups.setdefault((x.operation, x.label, ""), []).append((i, None))
    for j, y in enumerate(b):
        if j not in backwards and _counts_alone(y, a):
            # A rounding that A lacks is tried on the result of A's operation before.
            before = backwards.get(j - 1) if y.operation == "rounding" else None
            groups.setdefault((y.operation, "", y.label), []).append((before, y))
    return [_grouped(a, key, rows) for key, rows in groups.items()]


def _grouped(a: Sequence[OperationType], key: tuple[str, str, str], rows: Sequence[Pair]) -> TypeDifference:
    indices = tuple(i for i, _ in rows if i is not None)
    others = [y for _, y in rows if y is not None]
    to = (others[0].inputs, others[0].output) if others else ("float32", "float32")
    where = tuple(a[i].where for i in indices) if key[1] else (), tuple(y.where for y in others)
    return TypeDifference((key[0],), key[1], key[2], where, indices, to)


def _counts_alone(x: OperationType, others: Iterable[OperationType]) -> bool:
    if FLOATS.get(x.output, 64) >= FLOATS["float32"] and x.operation != "rounding":
        return False
    return x.operation not in FUSED or all(x.output not in (y.inputs, y.output) for y in others)


def together(rows: Iterable[TypeDifference]) -> Iterator[TypeDifference]:
    """Join differences between the same two types into one.

    Operations without a counterpart join others of their type: a mean may be a part of a loss elsewhere.
    """
    groups: dict[tuple[str, ...], list[TypeDifference]] = {}
    for x in sorted(rows, key=lambda x: not (x.a and x.b)):
        alone = x.operations if x.stored or x.operations == ("rounding",) else ()
        key = (x.a, x.b, *alone)
        if not (alone or (x.a and x.b)):
            pairs = (k for k in groups if len(k) == 2 and all(k) and k[bool(x.b)] == (x.b or x.a))
            key = next(pairs, key)
        groups.setdefault(key, []).append(x)
    for members in groups.values():
        operations = tuple(dict.fromkeys(name for row in members for name in row.operations))
        where = tuple(tuple(x for row in members for x in row.where[side]) for side in (0, 1))
        yield replace(members[0], operations=operations, where=(where[0], where[1]))


def asked_precisions(a: Sequence[OperationType], b: Sequence[OperationType]) -> list[str]:
    """Return the precisions that matmuls in float32 ask for on each side; [] if both ask for one."""
    requested = [sorted({x.precision for x in rows if x.precision}) for rows in (a, b)]
    return (
        [", ".join(names) for names in requested] if all(requested) and requested[0] != requested[1] else []
    )


def rows_of(plain: Iterable[Mapping[str, Any]]) -> tuple[OperationType, ...]:
    """Return operations that `vars` made plain."""
    return tuple(OperationType(**{key: str(value) for key, value in row.items()}) for row in plain)


def representable(x: np.ndarray) -> str:
    """Return "bfloat16" or "float16" if that type holds all values, which wider types hold by chance only."""
    values = np.unique(np.abs(x[np.isfinite(x) & (x != 0)]))
    mantissas, exponents = np.frexp(values)
    # Integers and simple fractions are representable in any type.
    if len(values) < LEAST or np.array_equal(mantissas * 16, np.round(mantissas * 16)):
        return ""
    for kind in ("bfloat16", "float16"):
        bits = FLOATS[kind]
        # float16 has no values between the multiples of 2**-24.
        scaled = np.ldexp(mantissas, np.minimum(bits, exponents + 24) if kind == "float16" else bits)
        if np.array_equal(scaled, np.round(scaled)):
            return kind
    return ""


def is_sum_of_bfloat16(x: np.ndarray) -> bool:
    """Return whether values that float16 holds rarely need its last bit, which half of its values do."""
    mantissas, exponents = np.frexp(np.unique(np.abs(x[np.isfinite(x) & (x != 0)])))
    scaled = np.ldexp(mantissas, FLOATS["float16"])[exponents > -13]  # smaller values have fewer bits
    integers = scaled[scaled == np.round(scaled)]
    return bool(len(integers) and np.mean(integers % 2) < 0.25)
