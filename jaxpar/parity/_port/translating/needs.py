"""Needs: what the written text refers to."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from ..images.plan import LayoutPlan
from ..reading.runtime import Beyond
from ..reading.source import Source

Text = TypeVar("Text")

NOT_PORTED = "initial values are not ported: they come with torch's weights"


class Needs:
    """The definitions and imports that the written text refers to, and its holes and notes.

    Attributes:
      definitions: the user's classes and functions, in the order of their first use.
      constants: module-level assignments, by file and name.
      imports: import lines, by the name that they bind.
      names: the key of the definition or constant that has a name in the written file.
      holes: source without a counterpart, with its location.
      notes: what was left out.
      written_holes: the number of calls of `hole` in the text, including lines that did not run.
      stand_ins: the names of a library runtime's stand-ins to copy.
      unread: the attributes of modules, by class and name, that calls change and no later call reads.
      refused: the locations of blocks that did not run and raise.
      turned: definitions, and the names of their arguments that have their channels last.
      images: the expressions that change if all images have their channels last.
    """

    def __init__(self) -> None:
        self.definitions: dict[int, Any] = {}
        self.constants: dict[str, tuple[Source, ast.stmt, ModuleType]] = {}
        self.imports: dict[str, str] = {}
        self.names: dict[str, int | str] = {}
        self.holes: list[str] = []
        self.notes: list[str] = []
        self.written_holes = 0
        self.stand_ins: dict[str, None] = {}
        self.unread: set[tuple[type | None, str]] = set()
        self.refused: set[tuple[str, int]] = set()
        self.turned: dict[ast.stmt, tuple[str, ...]] = {}
        self.images: LayoutPlan | None = None

    @property
    def layers(self) -> str:
        """The module of `jaxpar.nn` that defines the layers."""
        return "channels_last" if self.images else "channels_first"

    def name_for(self, key: int | str, name: str) -> str:
        """Return a definition's name in the file: its own, with a number if another file's has it."""
        numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        free = next(candidate for candidate in numbered if self.names.get(candidate, key) == key)
        self.names[free] = key
        return free

    def rewritten(self, source: Source, node: ast.expr) -> bool:
        """Return whether an expression is written for images that have their channels last."""
        return self.images is not None and source.key(node) in self.images.replaced

    def hole(self, text: str) -> None:
        if text not in self.holes:
            self.holes.append(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def note_initial_values(self) -> None:
        self.note(NOT_PORTED)

    def without_holes(self, write: Callable[[], Text], in_lines_that_ran: bool = False) -> Text | None:
        """Return what `write` returns; None if it wrote holes, which are forgotten along with its notes.

        `in_lines_that_ran` accepts those in others.
        """
        holes, notes, written_holes = len(self.holes), len(self.notes), self.written_holes
        failed = True
        try:
            written = write()
            failed = len(self.holes) > holes if in_lines_that_ran else self.written_holes > written_holes
        finally:
            if failed:
                del self.holes[holes:], self.notes[notes:]
                self.written_holes = written_holes
        return None if failed else written

    @contextmanager
    def unless_beyond(self) -> Iterator[None]:
        """Restore everything if the context ends with `Beyond`."""
        # Shallow copies are enough: entries are added and removed, but never changed.
        before = {name: copy.copy(value) for name, value in vars(self).items()}
        try:
            yield
        except Beyond:
            vars(self).update(before)
            raise
