"""Writing: definitions and their imports as the text of a file, in an order in which Python can read them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .reading.building import Inexpressible
from .reading.counting import torch_lines
from .reading.runtime import of_runtime, stand_in_source
from .reading.scope import Scope, definition, import_of
from .reading.source import Function, Source, defined
from .reading.watching import Watched
from .rules import transformers_words as words
from .translating.definitions import class_text, function_text, not_run
from .translating.needs import Needs
from .translating.statements import Statements

HASHED = "{}.__hash__ = object.__hash__  # NNX hashes what a module keeps"
HOLE = '''def hole(line):
    """What torch does in this line has no counterpart here."""
    raise NotImplementedError(f"not ported: {line}")'''
OURS = {
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "nnx": "from flax import nnx",
    "struct": "from flax import struct",
    "nn": "from jaxpar.nn import {layers} as nn",
    "F": "from jaxpar.nn.{layers} import functional as F",
}
RUFF = (
    # The numbers of initial values are left over where the lines that used them are not written.
    ("check", "--fix", "--unsafe-fixes", "--exit-zero", "--quiet", "--select", "F841"),
    ("check", "--fix", "--exit-zero", "--quiet", "--extend-select", "I,F401"),
    ("format", "--quiet"),
)
LEFT = ("check", "--exit-zero", "--output-format", "json")
OF_STYLE = re.compile("(?!F[0-9])[A-Z]+[0-9]+")
"""Rules of ruff that the author may have another opinion of. The others, pyflakes', find mistakes."""


@dataclasses.dataclass(frozen=True)
class Written:
    """The text of a file, what is to be said of it, and which module of `jaxpar.nn` its layers are from."""

    text: str
    holes: tuple[str, ...]
    notes: tuple[str, ...]
    torch_lines: int
    layers: str


@dataclasses.dataclass(frozen=True)
class StandIn:
    """A definition that is copied instead of one of a library's runtime."""

    name: str


@dataclasses.dataclass(frozen=True)
class Piece:
    """A definition or a constant, written; `needs` are the files of what it refers to."""

    source: Source
    node: ast.stmt
    text: str
    needs: frozenset[str]


class Writer:
    """Writes everything that some classes and functions of the user need."""

    def __init__(self, watched: Watched):
        self.watched, self.needs = watched, Needs()
        self.pieces: dict[Any, Piece] = {}

    def write(self, roots: list[Any], title: str) -> Written:
        self.needs.definitions.update({id(root): root for root in roots})
        while missing := list(self._missing()):
            for key, value in missing:
                self.pieces[key] = self._piece(value)
        ordered = list(self._ordered())
        _require_names_of_their_own(ordered)
        body = "".join(self._apart(piece, i) + piece.text for i, piece in enumerate(ordered))
        if hashed := [HASHED.format(name) for name in self._configs()]:
            body = "\n".join([*hashed, "\n", body])
        if "hole(" in body:
            body = f"{HOLE}\n\n\n{body}"
        text = f'"""{title}{self._unproven(ordered)}"""\n\n{self._imports(body)}\n\n\n{body}\n'
        own = [(piece.source, piece.node) for piece in ordered if piece.source is not stand_in_source()]
        holes = tuple(each for each in self.needs.holes if repr(each) in body)
        return Written(text, holes, tuple(self.needs.notes), torch_lines(own), self.needs.layers)

    def _configs(self) -> list[str]:
        """Classes of settings that the file imports. They have an `==` and no hash."""
        found = [
            name for name, line in self.needs.imports.items() if line.startswith(f"from {words.LIBRARY}")
        ]
        return [name for name in found if len(found) == 1 or name != words.CONFIG]

    def _missing(self) -> Iterator[tuple[Any, Any]]:
        everything: dict[Any, Any] = {**self.needs.definitions, **self.needs.constants}
        everything.update({name: StandIn(name) for name in self.needs.stand_ins})
        return ((key, value) for key, value in everything.items() if key not in self.pieces)

    def _stand_in(self, name: str) -> Piece:
        """A definition that is copied, without methods that did not run under their name."""
        source = stand_in_source()
        there = {name: each for each in source.tree.body for name in defined(each)}
        used = {each.id for each in ast.walk(there[name]) if isinstance(each, ast.Name)}
        self.needs.stand_ins.update(dict.fromkeys(used & {*there} - {name}))
        found = {each: import_of(source, each) for each in used}
        self.needs.imports.update({each: line for each, line in found.items() if line})
        ran = {function.__name__ for function in self.watched.functions.values() if of_runtime(function)}
        return Piece(source, there[name], source.without(there[name], ran), frozenset())

    def _piece(self, value: Any) -> Piece:
        before = {*self.needs.definitions, *self.needs.constants}
        if isinstance(value, StandIn):
            return self._stand_in(value.name)
        if isinstance(value, tuple):
            source, node, module = value
            text = Statements(source, self.watched, Scope(dict(vars(module))), self.needs).statement(node)
        else:
            source, node = definition(value)
            write: Any = class_text if isinstance(node, ast.ClassDef) else function_text
            text = write(value, source, node, self.watched, self.needs)
        met = [each for key, each in self.needs.definitions.items() if key not in before]
        files = {definition(each)[0].path for each in met}
        files |= {each[0].path for key, each in self.needs.constants.items() if key not in before}
        return Piece(source, node, text, frozenset(files))

    def _ordered(self) -> Iterator[Piece]:
        """By file, a file behind those that it needs; in a file in its own order, which Python can read."""
        files: dict[str, list[Piece]] = {}
        for piece in self.pieces.values():
            files.setdefault(piece.source.path, []).append(piece)
        done: dict[str, None] = {}

        def visit(path: str) -> None:
            if path in done or path in under_way:
                return
            under_way.add(path)
            for needed in sorted({each for piece in files[path] for each in piece.needs}):
                visit(needed)
            done[path] = None

        under_way: set[str] = set()
        for path in sorted(files, key=lambda path: path != stand_in_source().path):
            visit(path)
        for path in done:
            yield from sorted(files[path], key=lambda piece: piece.node.lineno)

    def _apart(self, piece: Piece, place: int) -> str:
        if place == 0:
            return ""
        return "\n\n\n" if isinstance(piece.node, Function | ast.ClassDef) else "\n"

    def _unproven(self, pieces: list[Piece]) -> str:
        """What the file's docstring says of lines that did not run."""
        found: list[tuple[Source, ast.stmt]] = []
        for piece in pieces:
            if piece.source is not stand_in_source():
                say = functools.partial(_append, found, piece.source)
                not_run(piece.source, piece.node, self.watched, say)
        refused = self.needs.refused
        places = [source.place(each) for source, each in found if (source.path, each.lineno) not in refused]
        if not places:
            return ""
        said = ", ".join(places)
        self.needs.note(f"did not run, and is not proven: {said}")
        return "\n\n" + textwrap.fill(f"Not proven, for the example did not run it: {said}.", 88) + "\n"

    def _imports(self, body: str) -> str:
        """Python's own modules first, then those of others, as `ruff` sorts them."""
        names = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
        ours = {line.format(layers=self.needs.layers) for name, line in OURS.items() if name in names}
        used = {line for name, line in self.needs.imports.items() if name in names and name not in OURS}
        future = {line for line in used if line.startswith("from __future__")}
        standard = {line for line in used - future if _is_standard(line)}
        groups = (future, standard, (used - future - standard) | ours)
        return "\n\n".join("\n".join(sorted(group, key=_order)) for group in groups if group)


def _require_names_of_their_own(pieces: list[Piece]) -> None:
    """Refuses two definitions of one name, from two files: the later one would be both."""
    places: dict[str, str] = {}
    for piece in pieces:
        for name in _names(piece.node):
            place = piece.source.place(piece.node)
            if places.setdefault(name, place) != place:
                raise Inexpressible(f"{places[name]} and {place} both define {name}; rename one of them")


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, Function | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _append(found: list[tuple[Source, ast.stmt]], source: Source, node: ast.stmt) -> None:
    found.append((source, node))


def _is_standard(line: str) -> bool:
    return line.split()[1].split(".")[0] in sys.stdlib_module_names


def _order(line: str) -> tuple[bool, str]:
    """`import a` before `from a import b`."""
    return line.startswith("from"), line.split()[1]


def with_docstring(text: str, said: str) -> str:
    """A file whose docstring says one thing more."""
    own = ast.parse(text).body[0]
    assert isinstance(own, ast.Expr)
    lines = text.splitlines(keepends=True)[own.end_lineno or 1 :]
    more = textwrap.fill(said.replace("\\", "/").replace('"', "'"), 88)
    return f'"""{ast.literal_eval(own.value).rstrip()}\n\n{more}\n"""\n{"".join(lines)}'


def formatted(text: str, path: str) -> str:
    """The text as ruff writes it with the settings of the folder it is for; as it is without ruff."""
    ruff = shutil.which("ruff") or shutil.which("ruff", path=str(Path(sys.executable).parent))
    for arguments in RUFF if ruff else ():
        done = _ruff(str(ruff), arguments, text, path)
        if done.returncode:
            return text
        text = done.stdout
    return _with_its_style(text, _ruff(str(ruff), LEFT, text, path).stdout) if ruff else text


def _ruff(ruff: str, arguments: Sequence[str], text: str, path: str) -> subprocess.CompletedProcess[str]:
    command = [ruff, *arguments, "--stdin-filename", path, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def _with_its_style(text: str, left: str) -> str:
    """A line for ruff about what is the author's style and stays so, below the docstring."""
    codes = {str(each["code"]) for each in json.loads(left or "[]")}
    kept = sorted(code for code in codes if OF_STYLE.fullmatch(code))
    body = ast.parse(text).body
    if not kept or not body or not isinstance(body[0], ast.Expr):
        return text
    lines = text.splitlines(keepends=True)
    lines.insert(body[0].end_lineno or 1, f"\n# ruff: noqa: {', '.join(kept)} (as torch's source has it)\n")
    return "".join(lines)
