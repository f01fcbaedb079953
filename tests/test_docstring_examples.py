"""Every example in a docstring runs, and prints what it shows."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FEWEST = 150
"""Public functions and classes with an example. optax has 90 of 551."""

FILES = [path for path in sorted((ROOT / "jaxpar").rglob("*.py")) if ">>> " in path.read_text()]


def examples(path: Path) -> list[doctest.DocTest]:
    """The examples of one file's docstrings, methods included."""
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    tests = doctest.DocTestFinder(exclude_empty=True).find(module)
    return [test for test in tests if test.examples]


def failures(tests: list[doctest.DocTest]) -> str:
    report: list[str] = []
    for test in tests:
        doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append)
    return "".join(report)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "jaxpar")))
def test_examples_print_what_they_show(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tests = examples(path)
    assert tests, f"doctest sees none of the examples in {path}"
    assert not failures(tests)


def with_example(source: str) -> list[str]:
    """The public functions and classes of a file whose docstrings show an example."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if ">>> " in (ast.get_docstring(node) or "")
    ]


def test_enough_public_definitions_have_an_example():
    assert sum(len(with_example(path.read_text())) for path in FILES) >= FEWEST


@pytest.mark.parametrize("text", [">>> 1 + 1\n3\n", ">>> 1 / 0\n", ">>> 1\n"])
def test_a_planted_wrong_example_is_found(text):
    test = doctest.DocTestParser().get_doctest(text, {}, "planted", None, 0)
    assert failures([test])


def test_definitions_are_counted():
    source = 'def f():\n    """F.\n\n    >>> 1\n    """\ndef _g():\n    """>>> 1"""\nclass A:\n    """A."""\n'
    assert with_example(source) == ["f"]
