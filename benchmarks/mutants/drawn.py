"""Mutants that nobody chooses: a mechanical list over the syntax of jaxpar/, of which a seed draws some.

A mutant exchanges an operator or a comparison, adds one to a number, negates a condition, turns `and` into
`or`, exchanges two arguments, leaves a statement out, or returns None. Docstrings, annotations and texts are
not in the list. Its tests are those that run its statement, as covered.py records them, and then whole
files of them.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

from .counting import statements
from .covered import Runs
from .equivalents import EQUIVALENTS
from .plant import Plant
from .tree import ROOT

TESTS, SECONDS = 30, 60.0
"""How many test functions a mutant is run against, and how long they may take: those that run the fewest
statements besides.
"""

RUNNING, ALIKE = 4, 2
"""How many whole files come after them: of their files, and by words."""

OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), 
    ast.FloorDiv: ("//", "/"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
REMOVED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break)
NOT_VISITED = ("annotation", "returns", "type_params")
Edit = tuple[ast.AST, int, int, str]
"""The node, from which byte to which, and what takes their place."""


class Source:
    """A file as bytes, with the places of its nodes."""

    def __init__(self, text: str):
        self.bytes = text.encode()
        self.tree = ast.parse(text)
        self.lines = [0, *(match.end() for match in re.finditer(b"\n", self.bytes))]

    def span(self, node: ast.AST) -> tuple[int, int]:
        first = self.lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return first, self.lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def text(self, node: ast.AST) -> str:
        first, last = self.span(node)
        return self.bytes[first:last].decode()

    def edits(self) -> Iterator[Edit]:
        yield from self._visit(self.tree)

    def _visit(self, node: ast.AST) -> Iterator[Edit]:
        if isinstance(node, ast.JoinedStr) or _is_for_type_checkers(node):
            return
        yield from self._of(node)
        for field, value in ast.iter_fields(node):
            if field not in NOT_VISITED:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from self._visit(child)

    def _of(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.BinOp(left, op, right):
                yield from self._operator(node, left, op, right)
            case ast.Compare(left, ops, right):
                for one, op, other in zip([left, *right], ops, right, strict=False):
                    yield from self._operator(node, one, op, other)
            case ast.BoolOp(op, values):
                for one, other in itertools.pairwise(values):
                    yield from self._operator(node, one, op, other)
            case ast.Constant(bool() as value):
                yield node, *self.span(node), str(not value)
            case ast.Constant(int() | float() as value):
                yield node, *self.span(node), str(value + 1)
            case ast.Call(_, [one, other, *_]) if not isinstance(one, ast.Starred) and not isinstance(
                other, ast.Starred
            ):
                middle = self.bytes[self.span(one)[1] : self.span(other)[0]].decode()
                if self.text(one) != self.text(other):
                    exchanged = self.text(other) + middle + self.text(one)
                    yield node, self.span(one)[0], self.span(other)[1], exchanged
            case ast.If(test) | ast.While(test) | ast.IfExp(test=test):
                yield node, *self.span(test), f"not ({self.text(test)})"
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield test, *self.span(test), f"not ({self.text(test)})"
            case ast.Return(ast.expr() as value) if self.text(value) != "None":
                yield node, *self.span(value), "None"
        if isinstance(node, REMOVED) and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            yield node, *self.span(node), "pass"

    def _operator(self, node: ast.AST, left: ast.expr, op: ast.AST, right: ast.expr) -> Iterator[Edit]:
        if type(op) in OPERATORS:
            pattern, other = OPERATORS[type(op)]
            pattern = pattern if pattern[0].isalpha() else re.escape(pattern)
            start = self.span(left)[1]
            place = re.search(pattern, self.bytes[start : self.span(right)[0]].decode())
            if place:
                yield node, start + place.start(), start + place.end(), other


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def frame(root: Path = ROOT) -> list[tuple[str, int]]:
    """All possible mutants: a file, and which of its edits."""
    files = sorted(path for path in (root / "jaxpar").rglob("*.py"))
    return [
        (path.relative_to(root).as_posix(), i)
        for path in files
        for i, _ in enumerate(Source(path.read_text()).edits())
    ]


def draw(possible: list[tuple[str, int]], n: int, seed: int, runs: Runs, root: Path = ROOT) -> list[Plant]:
    drawn = random.Random(seed).sample(possible, n)
    return [mutant(file, i, (root / file).read_text(), runs) for file, i in drawn]


def mutant(file: str, i: int, text: str, runs: Runs) -> Plant:
    """A plant whose text is all lines of the edit."""
    source = Source(text)
    node, first, last, new = list(source.edits())[i]
    start = source.bytes.rfind(b"\n", 0, first) + 1
    end = source.bytes.find(b"\n", last)
    old = source.bytes[start:end].decode()
    changed = source.bytes[start:first].decode() + new + source.bytes[last:end].decode()
    before = source.bytes[:start].decode()
    nth = before.count(old) + 1 if text.count(old) > 1 else 0
    why = EQUIVALENTS.get((file, " ".join(old.split()), " ".join(changed.split())), "")
    return Plant(file, old, changed, tests(file, source.tree, node.lineno, runs), nth, why)  # type: ignore[attr-defined]


def tests(file: str, tree: ast.AST, line: int, runs: Runs) -> str:
    """The tests that run the statement of a line; where there are none, those that run one near it.

    Those that run the fewest statements besides come first; of a statement of the module, the most.
    """
    inside = [(b[i].lineno, b[i].end_lineno, name) for b, i, name in statements(tree)]
    around = [(last - first, name) for first, last, name in inside if first <= line <= (last or first)]
    name = min(around)[1] if around else ""
    function = name.partition(":")[0]
    candidates = (
        runs.get((file, name), {}),
        {
            t: n
            for (f, s), by in runs.items()
            if f == file and s.partition(":")[0] == function
            for t, n in by.items()
        },
        {t: n for (f, _), by in runs.items() if f == file for t, n in by.items()},
    )
    chosen: dict[str, str] = {}
    seconds = 0.0
    running = next(filter(None, candidates), {})
    few_first = 1 if name else -1
    for test, (_, took) in sorted(running.items(), key=lambda item: (few_first * item[1][0], item[0])):
        function = test.partition("[")[0]
        if function not in chosen and '"' not in test and (not chosen or seconds + took < SECONDS):
            chosen[function] = f'"{test}"'
            seconds += took
    return " ".join(list(chosen.values())[:TESTS])


def in_whole_files(plant: Plant, root: Path = ROOT) -> Plant:
    """The mutant with whole files of tests, slow ones too, where single tests saw nothing: the first files of
    those tests, and those whose names and then whose texts have most words in common with the mutant's file.
    """
    tree = ast.parse((root / plant.file).read_text())
    path = {word for part in Path(plant.file).with_suffix("").parts[1:] for word in part.split("_") if word}
    words = path | {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    ranked = []
    for file in (root / "tests").glob("test_*.py"):
        common = words & set(re.findall(r"[A-Za-z0-9]+", file.read_text()))
        ranked.append(
            (-len(path & set(file.stem.split("_"))), -len(common), file.relative_to(root).as_posix())
        )
    running = dict.fromkeys(re.findall(r"tests/[^:]+", plant.tests))
    files = dict.fromkeys([*list(running)[:RUNNING], *(file for _, _, file in sorted(ranked)[:ALIKE])])
    return dataclasses.replace(plant, tests=f'-m "not long or full" {" ".join(files)}')
