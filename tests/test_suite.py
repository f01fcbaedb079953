"""The suite keeps its own rules: what `make quick` leaves out, and what it must not."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
STARTERS = {"ranks", "subprocess.run", "subprocess.Popen", "subprocess.check_output"}
FILES = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__)]


def unmarked(source: str) -> list[str]:
    """The tests that start a process, themselves or by a function or fixture of their file, and are neither
    slow nor long."""
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    starts = {name for name, node in functions.items() if uses(node) & STARTERS}
    while more := {name for name in functions.keys() - starts if uses(functions[name]) & starts}:
        starts |= more
    if any(is_slow(node.value) for node in tree.body if isinstance(node, ast.Assign) and names_marks(node)):
        return []
    tests = [functions[name] for name in sorted(starts) if name.startswith("test_")]
    return [test.name for test in tests if not any(map(is_slow, test.decorator_list))]


def uses(function: ast.FunctionDef) -> set[str]:
    """What a function calls, and the fixtures that it takes."""
    calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return calls | {argument.arg for argument in function.args.args}


def names_marks(node: ast.Assign) -> bool:
    return ast.unparse(node.targets[0]) == "pytestmark"


def is_slow(mark: ast.expr) -> bool:
    return any(f"mark.{word}" in ast.unparse(mark) for word in ("slow", "long"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_whatever_starts_a_process_is_slow(path):
    assert not unmarked(path.read_text())


PLANTED = {
    "itself": "def test_it():\n    subprocess.run(['ls'])\n",
    "by a function": "def go():\n    ranks(2, '')\ndef test_it():\n    go()\n",
    "by a fixture": "@pytest.fixture\ndef made():\n    ranks(2, '')\ndef test_it(made):\n    pass\n",
    "another mark": "@pytest.mark.timeout(9)\ndef test_it():\n    ranks(2, '')\n",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_process_is_found(name):
    assert unmarked(PLANTED[name]) == ["test_it"]


def test_marks_are_read():
    assert not unmarked("@pytest.mark.slow\ndef test_it():\n    ranks(2, '')\n")
    assert not unmarked("pytestmark = pytest.mark.slow\ndef test_it():\n    ranks(2, '')\n")
    assert not unmarked("def test_it():\n    run('in this process')\n")


TABLE = """
import pytest

@pytest.mark.parametrize("i", range(20))
def test_row(i):
    pass

@pytest.mark.sampled(3)
@pytest.mark.parametrize("i", range(10))
def test_third(i):
    pass

@pytest.mark.full
@pytest.mark.sampled(8)
@pytest.mark.parametrize("i", range(20))
def test_eighth(i):
    pass

@pytest.mark.full
def test_seconds():
    pass

def test_alone():
    pass
"""
SELECTED = {
    "not slow and not long and not full": {"test_row": [0, 7, 14], "test_third": [0, 7]},
    "not long": {
        "test_row": range(20),
        "test_third": [0, 3, 6, 7, 9],
        "test_eighth": [0, 8, 16],
        "test_seconds": [None],
    },
    "long": {"test_third": [1, 2, 4, 5, 8], "test_eighth": [i for i in range(20) if i % 8]},
    "not slow and (not long or full)": {
        "test_row": range(20),
        "test_third": range(10),
        "test_eighth": range(20),
        "test_seconds": [None],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("marks", SELECTED)
def test_the_rows_of_a_sampled_table_that_a_command_runs(marks, tmp_path):
    for name in ("conftest.py", "next_defaults.py"):
        (tmp_path / name).symlink_to(TESTS / name)
    (tmp_path / "test_table.py").write_text(TABLE)
    where = ["--rootdir", tmp_path, "-c", TESTS.parent / "pyproject.toml", tmp_path]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", marks, *where],
        capture_output=True,
        text=True,
    )
    selected = [line.split("::")[1] for line in run.stdout.splitlines() if "::" in line]
    rows = [
        name if i is None else f"{name}[{i}]" for name, numbers in SELECTED[marks].items() for i in numbers
    ]
    alone = ["test_alone"] * (marks != "long")
    assert selected == rows + alone, run.stdout + run.stderr
