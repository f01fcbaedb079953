"""Writing: the text of a file from definitions and their imports, in an order that Python can run."""

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
from .reading.runtime import of_runtime, stand_in_sources
from .reading.scope import definition, import_of
from .reading.source import Function, Source, defined, torch_lines
from .reading.watching import Watched
from .rules import transformers_names as runtime_names
from .translating.definitions import constant_text, definition_text, not_run
from .translating.needs import Needs

UNTYPED = "  # type: ignore[assignment]"
HASHED = "{}.__hash__ = object.__hash__  # NNX hashes what a module keeps"
HOLE = '''def hole(line):
    """What torch does in this line has no counterpart here."""
    raise NotImplementedError(f"not ported: {line}")'''
PROJECT_IMPORTS = {
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "nnx": "from flax import nnx",
    "struct": "from flax import struct",
    "initialise": "from jaxpar.random import initialise",
    "distributions": "from jaxpar import distributions",
    "nn": "from jaxpar.nn import {layers} as nn",
    "F": "from jaxpar.nn.{layers} import functional as F",
}
RUFF = (
    # The numbers of initial values remain where the lines that used them are not written.
    ("check", "--fix", "--unsafe-fixes", "--exit-zero", "--quiet", "--select", "F841"),
    ("check", "--fix", "--exit-zero", "--quiet", "--extend-select", "I,F401"),
    ("format", "--quiet"),
)
LINT = ("check", "--exit-zero", "--output-format", "json")
STYLE_RULES = re.compile("(?!F[0-9])[A-Z]+[0-9]+")
"""ruff's rules about style, on which authors differ. The others, pyflakes', find mistakes."""


@dataclasses.dataclass(frozen=True)
class Written:
    """The text of a file, its holes and notes, and the module of `jaxpar.nn` that has its layers.

    `unread` are the attributes, by class and name, that calls change and no later call reads.
    """

    text: str
    holes: tuple[str, ...]
    notes: tuple[str, ...]
    torch_lines: int
    layers: str
    unread: frozenset[tuple[type | None, str]]


@dataclasses.dataclass(frozen=True)
class StandIn:
    """A definition of ours that is copied in place of one from a library's runtime."""

    name: str


@dataclasses.dataclass(frozen=True)
class Piece:
    source: Source
    node: ast.stmt
    text: str
    needs: frozenset[str]  # the files of the definitions it refers to

    def named(self, defined_name: str, name: str) -> Piece:
        """Return the piece with `name` in its first line."""
        if name == defined_name:
            return self
        text = re.sub(
            rf"^((?:@.*\n)*(?:async def |def |class |)){defined_name}\b", rf"\1{name}", self.text, count=1
        )
        return dataclasses.replace(self, text=text)

    @functools.cached_property
    def tree(self) -> list[ast.stmt]:
        return ast.parse(self.text).body

    @functools.cached_property
    def defines(self) -> list[str]:
        return [name for statement in self.tree for name in defined(statement)]


class Writer:
    def __init__(self, watched: Watched):
        self.watched, self.needs = watched, Needs()
        self.pieces: dict[Any, Piece] = {}

    def write(self, roots: list[Any], title: str, end: str = "") -> Written:
        """Write the definitions that the roots need, and a text after them."""
        self.needs.definitions.update({id(root): root for root in roots})
        for root in roots:
            self.needs.name_for(id(root), root.__name__)
        # Writing a definition can reveal further ones, so this repeats until none is new.
        while unwritten := list(self._missing()):
            for key, value in unwritten:
                piece = self._piece(value)
                for name in defined(piece.node):
                    piece = piece.named(
                        name, next((n for n, k in self.needs.names.items() if k == key), name)
                    )
                self.pieces[key] = piece
        ordered = self._ordered()
        _require_names_of_their_own(ordered)
        body = "".join(self._separator(piece, i) + piece.text for i, piece in enumerate(ordered))
        if hashed := [HASHED.format(name) for name in self._configs()]:
            body = "\n".join([*hashed, "\n", body])
        body = f"{body}\n\n\n{end}" if end else body
        if "hole(" in body:
            body = f"{HOLE}\n\n\n{body}"
        text = f'"""{title}{self._unproven(ordered)}"""\n\n{self._imports(body)}\n\n\n{body}\n'
        pieces = [(piece.source, piece.node) for piece in ordered if piece.source not in stand_in_sources()]
        # A hole may have been recorded for a text that was discarded.
        holes = tuple(hole for hole in self.needs.holes if repr(hole) in body)
        unread = frozenset(self.needs.unread)
        return Written(text, holes, tuple(self.needs.notes), torch_lines(pieces), self.needs.layers, unread)

    def _configs(self) -> list[str]:
        """They define `==` but no hash."""
        library = f"from {runtime_names.LIBRARY}"
        configs = [name for name, line in self.needs.imports.items() if line.startswith(library)]
        return [name for name in configs if len(configs) == 1 or name != runtime_names.CONFIG]

    def _missing(self) -> Iterator[tuple[Any, Any]]:
        everything: dict[Any, Any] = {**self.needs.definitions, **self.needs.constants}
        everything.update({name: StandIn(name) for name in self.needs.stand_ins})
        return ((key, value) for key, value in everything.items() if key not in self.pieces)

    def _stand_in(self, name: str) -> Piece:
        """Copy a stand-in; transformers' ones have only the methods that its runtime ran."""
        for source in stand_in_sources():
            statements = {key: statement for statement in source.tree.body for key in defined(statement)}
            if name in statements:
                break
        used = {child.id for child in ast.walk(statements[name]) if isinstance(child, ast.Name)}
        self.needs.stand_ins.update(dict.fromkeys(used & {*statements} - {name}))
        imports = {child: import_of(source, child) for child in used}
        self.needs.imports.update({child: line for child, line in imports.items() if line})
        methods = {function.__name__ for function in self.watched.functions.values() if of_runtime(function)}
        if source is stand_in_sources()[0]:
            methods |= {method.name for method in ast.walk(statements[name]) if isinstance(method, Function)}
        text = source.with_methods(statements[name], methods).replace(UNTYPED, "")
        return Piece(source, statements[name], text, frozenset())

    def _piece(self, value: Any) -> Piece:
        before = {*self.needs.definitions, *self.needs.constants}
        if isinstance(value, StandIn):
            return self._stand_in(value.name)
        if isinstance(value, tuple):
            source, node, module = value
            text = constant_text(source, node, module, self.watched, self.needs)
        else:
            source, node, text = definition_text(value, self.watched, self.needs)
        met = [value for key, value in self.needs.definitions.items() if key not in before]
        files = {definition(value)[0].path for value in met}
        files |= {constant[0].path for key, constant in self.needs.constants.items() if key not in before}
        return Piece(source, node, text, frozenset(files))

    def _ordered(self) -> list[Piece]:
        files: dict[str, list[Piece]] = {}
        for piece in self.pieces.values():
            files.setdefault(piece.source.path, []).append(piece)
        done: dict[str, None] = {}

        def visit(path: str) -> None:
            # Python allows files that import each other; `under_way` ends the recursion in such a circle.
            if path in done or path in under_way:
                return
            under_way.add(path)
            # Sorted, because the order of a set changes from process to process.
            for needed in sorted({path_ for piece in files[path] for path_ in piece.needs}):
                visit(needed)
            done[path] = None

        under_way: set[str] = set()
        first = [source.path for source in stand_in_sources()]
        for path in sorted(files, key=lambda path: path not in first):
            visit(path)
        ordered = [
            piece for path in done for piece in sorted(files[path], key=lambda piece: piece.node.lineno)
        ]
        return in_order(ordered)

    def _separator(self, piece: Piece, index: int) -> str:
        if index == 0:
            return ""
        return "\n\n\n" if isinstance(piece.node, Function | ast.ClassDef) else "\n"

    def _unproven(self, pieces: list[Piece]) -> str:
        statements: list[tuple[Source, ast.stmt]] = []
        for piece in pieces:
            if piece.source not in stand_in_sources():
                skipped: list[ast.stmt] = []
                not_run(piece.source, piece.node, self.watched, skipped.append)
                statements += [(piece.source, statement) for statement in skipped]
        refused = self.needs.refused
        unproven = [(source, x) for source, x in statements if (source.path, x.lineno) not in refused]
        locations = [source.place(statement) for source, statement in unproven]
        if not locations:
            return ""
        listed = ", ".join(locations)
        self.needs.note(f"did not run, and is not proven: {listed}")
        return "\n\n" + textwrap.fill(f"Not proven, for the example did not run it: {listed}.", 88) + "\n"

    def _imports(self, body: str) -> str:
        """Write Python's own modules first, then third-party ones, as `ruff` sorts them."""
        # By the names in the final text: a discarded text may have requested imports, too.
        names = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
        project_imports = {
            line.format(layers=self.needs.layers) for name, line in PROJECT_IMPORTS.items() if name in names
        }
        used = {
            line for name, line in self.needs.imports.items() if name in names and name not in PROJECT_IMPORTS
        }
        future = {line for line in used if line.startswith("from __future__")}
        standard = {
            line for line in used - future if line.split()[1].split(".")[0] in sys.stdlib_module_names
        }
        groups = (future, standard, (used - future - standard) | project_imports)
        return "\n\n".join("\n".join(sorted(sorted(group), key=_order)) for group in groups if group)


def in_order(pieces: list[Piece]) -> list[Piece]:
    """Move definitions that others need when Python defines them, as a base or a default, before those."""
    by_name = {name: piece for piece in pieces for name in piece.defines}
    done: dict[int, Piece] = {}
    under_way: set[int] = set()

    def visit(piece: Piece) -> None:
        if id(piece) in done or id(piece) in under_way:
            return
        under_way.add(id(piece))
        for name in [name for statement in piece.tree for name in _at_once(statement)]:
            if name in by_name:
                visit(by_name[name])
        done[id(piece)] = piece

    for piece in pieces:
        visit(piece)
    return list(done.values())


def _at_once(node: ast.AST) -> Iterator[str]:
    """Yield the names that are read when a statement runs, without those in the bodies of functions."""
    if isinstance(node, ast.Name):
        yield node.id
    children: list[Any] = [*ast.iter_child_nodes(node)]
    if isinstance(node, Function):
        children = [node.args, *node.decorator_list, *filter(None, [node.returns])]
    elif isinstance(node, ast.Lambda):
        children = [node.args]
    for child in children:
        yield from _at_once(child)


def _require_names_of_their_own(pieces: list[Piece]) -> None:
    """The later one of two definitions would replace the earlier."""
    first_uses: dict[str, str] = {}
    for piece in pieces:
        for name in piece.defines:
            location = piece.source.place(piece.node)
            if first_uses.setdefault(name, location) != location:
                raise Inexpressible(
                    f"{first_uses[name]} and {location} both define {name}; rename one of them"
                )


def _order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line.split()[1]


def with_docstring(text: str, remark: str) -> str:
    docstring = ast.parse(text).body[0]
    assert isinstance(docstring, ast.Expr)
    lines = text.splitlines(keepends=True)[docstring.end_lineno or 1 :]
    more = textwrap.fill(remark.replace("\\", "/").replace('"', "'"), 88)
    return f'"""{ast.literal_eval(docstring.value).rstrip()}\n\n{more}\n"""\n{"".join(lines)}'


def formatted(text: str, path: str, unfinished: bool = False) -> str:
    """Format a text with ruff and the settings of its folder; without ruff, return it unchanged."""
    ruff = shutil.which("ruff") or shutil.which("ruff", path=str(Path(sys.executable).parent))
    # Next to a hole in a line that runs, a variable that is not used yet stays.
    commands = RUFF[unfinished:] if ruff else ()
    for arguments in commands:
        done = _ruff(str(ruff), arguments, text, path)
        if done.returncode:
            return text
        text = done.stdout
    return _with_its_style(text, _ruff(str(ruff), LINT, text, path).stdout) if ruff else text


def _ruff(ruff: str, arguments: Sequence[str], text: str, path: str) -> subprocess.CompletedProcess[str]:
    # From stdin, but with the file's path, so that ruff applies the settings of its folder.
    command = [ruff, *arguments, "--stdin-filename", path, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def _with_its_style(text: str, remaining: str) -> str:
    """Add a noqa line below the docstring for the style rules that the author's code does not follow."""
    codes = {str(diagnostic["code"]) for diagnostic in json.loads(remaining or "[]")}
    style_codes = sorted(code for code in codes if STYLE_RULES.fullmatch(code))
    body = ast.parse(text).body
    if not style_codes or not body or not isinstance(body[0], ast.Expr):
        return text
    lines = text.splitlines(keepends=True)
    lines.insert(
        body[0].end_lineno or 1, f"\n# ruff: noqa: {', '.join(style_codes)} (as torch's source has it)\n"
    )
    return "".join(lines)
