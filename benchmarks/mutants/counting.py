"""Records which statements of jaxpar each test runs: the sitecustomize.py of covered.py's copy of the tree.

Python imports it there in every process that the tests start, before jaxpar, whose functions are then
compiled with a note before each statement. It is also the pytest plugin that reads the notes after each test.
Processes that a test starts write theirs when they end, under the name of that test.

A statement is `function:line`, the line counted from the first one of the function, so that a change
elsewhere in the file leaves it as it is. PYTEST_DONT_REWRITE: it is imported before pytest.
"""

from __future__ import annotations

import ast
import atexit
import importlib.machinery
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
FOLDER = os.environ.get("MUTANTS_COVERED", "")
RAN = "__ran__"
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef

recorded: dict[str, tuple[bytearray, dict[int, str]]] = {}
"""By file: a byte for each line, and the statements' names by line."""


def statements(tree: ast.AST, outer: str = "") -> Iterator[tuple[list[ast.stmt], int, str]]:
    """Each statement inside of a function: the list it stands in, its place there, and its name."""
    for node, function, first in functions(tree, outer):
        yield from _inside(node, function, first)


def functions(tree: ast.AST, outer: str = "") -> Iterator[tuple[Any, str, int]]:
    """Each function with its qualified name and first line."""
    for node in ast.iter_child_nodes(tree):
        name = outer
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            name = f"{outer}.{node.name}".lstrip(".")
        if isinstance(node, FUNCTIONS):
            yield node, name, node.lineno
        yield from functions(node, name)


def _inside(node: ast.AST, function: str, first: int) -> Iterator[tuple[list[ast.stmt], int, str]]:
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(node, field, [])
        for i, inner in enumerate(block if isinstance(block, list) else []):
            if isinstance(inner, ast.stmt):
                yield block, i, f"{function}:{inner.lineno - first}"
            if not isinstance(inner, (*FUNCTIONS, ast.ClassDef)):
                yield from _inside(inner, function, first)


def noted(source: bytes, path: str) -> Any:
    """The code of a file, with a note before each statement of its functions."""
    tree = ast.parse(source)
    names: dict[int, str] = {}
    places = list(statements(tree))
    for block, i, name in sorted(places, key=lambda place: -place[1]):
        statement = block[i]
        names[statement.lineno] = name
        note = ast.parse(f"{RAN}[{statement.lineno}] = 1").body[0]
        if not (i == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            block.insert(i, ast.copy_location(note, statement))
    file = str(Path(path).relative_to(ROOT))
    recorded[file] = bytearray(source.count(b"\n") + 2), names
    start = ast.parse(f"import sitecustomize\n{RAN} = sitecustomize.recorded[{file!r}][0]").body
    at = sum(isinstance(s, ast.ImportFrom) and s.module == "__future__" for s in tree.body)
    at += ast.get_docstring(tree) is not None
    tree.body[at:at] = start
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)) and not hasattr(node, "lineno"):
            ast.copy_location(node, start[0])
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def install() -> None:
    loader = importlib.machinery.SourceFileLoader
    original = loader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        path = self.get_filename(fullname)
        # Not from __pycache__: notes of compiled code would be in no array of this process.
        return (
            noted(self.get_data(path), path)
            if path.startswith(f"{ROOT}/jaxpar/")
            else original(self, fullname)
        )

    loader.get_code = get_code  # type: ignore[method-assign]


def take() -> dict[str, list[str]]:
    """What was run since the last call."""
    taken = {}
    for file, (ran, names) in list(recorded.items()):
        lines = [names[i] for i in range(len(ran)) if ran[i] and i in names]
        if lines:
            taken[file] = lines
        ran[:] = bytes(len(ran))
    return taken


def write(test: str, seconds: float) -> None:
    with (Path(FOLDER) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"test": test, "seconds": seconds, "ran": take()}) + "\n")


ROWS = 7
"""Of a table the first row and every seventh: the others run the same statements, but for a few."""

durations: dict[str, float] = {}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    rows: dict[tuple[Any, str], int] = {}
    kept = []
    for item in items:
        table = (item.path, getattr(item, "originalname", item.name))
        if rows.get(table, 0) % ROWS == 0:
            kept.append(item)
        rows[table] = rows.get(table, 0) + 1
    items[:] = kept


def pytest_runtest_logreport(report: Any) -> None:
    seconds = float("nan") if report.failed else report.duration
    durations[report.nodeid] = durations.get(report.nodeid, 0.0) + seconds


def pytest_runtest_logfinish(nodeid: str) -> None:
    write(nodeid, durations.pop(nodeid))


if FOLDER:
    install()
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test:
        atexit.register(write, test, 0.0)
