"""Writing: definitions and their imports as the text of a file, in an order in which Python can read them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn

from .scope import Scope, definition
from .source import Function, Source, end_of, start_of
from .statements import DELETED, Statements
from .translation import Needs, positioned
from .watching import Watched

HOLE = '''def hole(line):
    """What torch does in this line has no counterpart here."""
    raise NotImplementedError(f"not ported: {line}")
'''
OURS = {
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "nnx": "from flax import nnx",
    "nn": "from jaxpar.nn import channels_first as nn",
    "F": "from jaxpar.nn.channels_first import functional as F",
}


@dataclasses.dataclass(frozen=True)
class Written:
    """The text of a file, and what is to be said of it."""

    text: str
    holes: tuple[str, ...]
    notes: tuple[str, ...]
    torch_lines: int


class Writer:
    """Writes everything that some classes and functions of the user need."""

    def __init__(self, watched: Watched):
        self.watched, self.needs = watched, Needs()
        self.texts: dict[int, str] = {}
        self.order: list[int] = []
        self.lines = 0

    def write(self, roots: list[Any], title: str) -> Written:
        for root in roots:
            self._define(root)
        constants = self._constants()
        body = "\n\n\n".join(
            [*([HOLE.rstrip()] if self.needs.holes else []), *(self.texts[i] for i in self.order)]
        )
        body = "\n".join([*constants, "", "", body]) if constants else body
        text = f'"""{title}"""\n\n{self._imports(body)}\n\n\n{body}\n'
        return Written(formatted(text), tuple(self.needs.holes), tuple(self.needs.notes), self.lines)

    def _define(self, value: Any) -> None:
        """A definition behind those that it needs when it is read: bases and decorators and defaults."""
        if id(value) in self.texts:
            return
        self.texts[id(value)] = ""
        source, node = definition(value)
        before = dict(self.needs.definitions)
        text = (
            self._class(value, source, node)
            if isinstance(node, ast.ClassDef)
            else self._function(value, source, node)
        )
        self.texts[id(value)] = text
        self.lines += _lines(source, node)
        for needed in [each for key, each in self.needs.definitions.items() if key not in before]:
            self._define(needed)
        self.order.append(id(value))

    def _function(self, value: FunctionType, source: Source, node: ast.stmt) -> str:
        assert isinstance(node, Function)
        value = inspect.unwrap(value)
        there = Statements(source, self.watched, Scope(value.__globals__), self.needs)
        return there.function(node, there.needs_rngs(value))

    def _class(self, value: type, source: Source, node: ast.ClassDef) -> str:
        module = sys.modules[value.__module__]
        kind = value if issubclass(value, nn.Module) else None
        there = Statements(source, self.watched, Scope(vars(module)), self.needs, kind)
        body, left_out = [], []
        for each in node.body:
            if isinstance(each, Function) and kind is not None and not self._kept(value, source, each, there):
                left_out.append(each)
                continue
            body.append(each)
        self._say_left_out(value, left_out, there)
        return self._head(there, node) + self._body(there, value, body)

    def _kept(self, value: type, source: Source, node: Function, there: Statements) -> bool:
        function = vars(value).get(node.name)
        function = getattr(function, "__func__", getattr(function, "fget", function))
        function = inspect.unwrap(function) if callable(function) else function
        ran = any((source.path, line) in self.watched.lines for line in {each.lineno for each in node.body})
        return ran and not there.gives_initial_values(function)

    def _say_left_out(self, value: type, nodes: list[Function], there: Statements) -> None:
        for node in nodes:
            function = vars(value).get(node.name)
            if not there.gives_initial_values(getattr(function, "__func__", function)):
                self.needs.note(f"{value.__name__}.{node.name} is not ported: the example does not run it")

    def _head(self, there: Statements, node: ast.ClassDef) -> str:
        """`class Net(nnx.Module):` up to its first statement."""
        written, at = "", start_of(node)
        decorators = "".join(f"@{there.text(each)}\n" for each in node.decorator_list)
        parts = [
            each
            for each in positioned(node)
            if not isinstance(each, ast.stmt) and each not in node.decorator_list
        ]
        for part in sorted(parts, key=start_of):
            written += there.source.between(at, start_of(part)) + there.text(part)
            at = end_of(part)
        first = node.body[0]
        begins = min(
            [start_of(first), *((d.lineno, d.col_offset - 1) for d in getattr(first, "decorator_list", []))]
        )
        return decorators + written + there.source.between(at, begins)

    def _body(self, there: Statements, value: type, body: list[ast.stmt]) -> str:
        written: list[str] = []
        after: ast.stmt | None = None
        for node in body:
            if isinstance(node, Function):
                function = vars(value).get(node.name)
                function = getattr(function, "__func__", getattr(function, "fget", function))
                rngs = node.name == "__init__" and issubclass(value, nn.Module)
                rngs = rngs or (isinstance(function, FunctionType) and there.needs_rngs(function))
                text = there.function(node, rngs)
            else:
                text = there.statement(node)
            if text == DELETED:
                continue
            apart = isinstance(node, Function) or isinstance(after, Function)
            written.append(("\n" if apart and after is not None else "") + text)
            after = node
        column = body[0].col_offset if body else 4
        return ("\n" + " " * column).join(written).replace(
            "\n" + " " * column + "\n", "\n\n" + " " * column
        ) or "pass"

    def _constants(self) -> list[str]:
        """Constants of modules; each may need others and definitions."""
        done: dict[str, str] = {}
        while missing := [name for name in self.needs.constants if name not in done]:
            for name in missing:
                done[name] = ""
                source, node, module = self.needs.constants[name]
                there = Statements(source, self.watched, Scope(vars(module)), self.needs)
                text = there.statement(node)
                done.pop(name)
                done[name] = text
                self.lines += _lines(source, node)
        for needed in list(self.needs.definitions.values()):
            self._define(needed)
        return list(done.values())[::-1]

    def _imports(self, body: str) -> str:
        """Python's own modules first, then those of others, as `ruff` sorts them."""
        names = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
        ours = [line for name, line in OURS.items() if name in names]
        own = {
            line for name, line in self.needs.imports.items() if name in names and line not in OURS.values()
        }
        future = sorted(line for line in own if line.startswith("from __future__"))
        standard = sorted((line for line in own - set(future) if _is_standard(line)), key=_order)
        others = sorted([*(own - set(standard) - set(future)), *ours], key=_order)
        return "\n\n".join("\n".join(group) for group in (future, standard, others) if group)


def _lines(source: Source, node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_standard(line: str) -> bool:
    return line.split()[1].split(".")[0] in sys.stdlib_module_names


def _order(line: str) -> tuple[bool, str]:
    """`import a` before `from a import b`."""
    return line.startswith("from"), line.split()[1]


def formatted(text: str, path: str = "port.py") -> str:
    """The text as `ruff format` writes it, if ruff is installed."""
    ruff = shutil.which("ruff") or _beside_python("ruff")
    if ruff is None:
        return text
    for arguments in (
        ["check", "--fix", "--exit-zero", "--quiet", "--select", "I,F401,E,W", "--stdin-filename", path, "-"],
        ["format", "--quiet", "--stdin-filename", path, "-"],
    ):
        done = subprocess.run([ruff, *arguments], input=text, capture_output=True, text=True)
        if done.returncode:
            return text
        text = done.stdout
    return text


def _beside_python(name: str) -> str | None:
    path = Path(sys.executable).with_name(name)
    return str(path) if path.exists() else None
