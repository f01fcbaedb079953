"""Branches: blocks of statements, including those that did not run.

A block that did not run and has no counterpart raises in the ported file. So does a branch that is taken at
random, unless its probability is zero.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from ..reading.runtime import Beyond, is_logger
from ..reading.source import end_of, start_of
from .assignments import Assignments
from .precedence import grouped

DELETED = "\0"
"""The text of a statement that is left out with its line."""


class Branches(Assignments):
    """Translates blocks of statements."""

    def statement(self, node: ast.stmt) -> str:
        """Write a statement in JAX; DELETED if it is left out."""
        raise NotImplementedError

    def silent(self, node: ast.stmt) -> bool:
        """Return whether a statement only sets initial values."""
        raise NotImplementedError

    def block(self, body: Sequence[ast.stmt], last: bool = False) -> str:
        """Write a block; a statement that raises if it did not run and has no counterpart."""
        if self.ran(body[0]) or not self.ran(self.source.parents[body[0]]):
            return self._block(body, last)
        try:
            with self.needs.unless_beyond():
                return self._block(body, last)
        except Beyond:
            return self._refusal(body[0])

    def _refusal(self, node: ast.stmt) -> str:
        """Write a statement that raises instead of one that did not run and those after."""
        self.needs.refused.add((self.source.path, node.lineno))
        return f"raise NotImplementedError({f'{self.source.place(node)} is not ported: no example ran it'!r})"

    def _block(self, body: Sequence[ast.stmt], last: bool) -> str:
        """Write statements and the lines between them, indented as in the source; "pass" if none remains.

        If they are the `last` ones of a definition, the comment after them is written, too.
        """
        written, at = "", start_of(body[0])
        for node in body:
            between = self.source.between(at, begins(node))
            if between.lstrip().startswith(";") and written == "":
                between = ""  # the previous statement on the line is left out
            at = end_of(node)
            try:
                with self.needs.unless_beyond():
                    text = self.statement(node)
            except Beyond:
                if self.ran(node) or not self.ran(body[0]):
                    raise
                return (written + between + self._refusal(node)).lstrip("\n").lstrip()
            if text != DELETED:
                written += between + text
                continue
            comments = _apart(between)
            written += comments if "#" in comments else ""
            at = self._end_of_line(node)
        if last:
            written += self.source.between(at, self._end_of_line(body[-1]))
        return written.lstrip("\n").lstrip() if written.strip() else "pass"

    def _end_of_line(self, node: ast.stmt) -> tuple[int, int]:
        """Return the position after a statement and the comment on its last line."""
        line, column = end_of(node)
        remaining = self.source.lines[line - 1][column:].decode()
        return (
            (line, column + len(remaining.rstrip("\n").encode()))
            if remaining.lstrip().startswith("#")
            else (line, column)
        )

    def _stmt_annassign(self, node: ast.AnnAssign) -> str:
        """Leave out an annotation without a counterpart; a field of a class becomes `Any`."""
        try:
            return super()._stmt_annassign(node)
        except Beyond:
            value = f" = {self.text(node.value)}" if node.value else ""
        if not isinstance(self.source.parents[node], ast.ClassDef):
            return self.text(node.target) + value if value else DELETED
        self.needs.imports["Any"] = "from typing import Any"
        return f"{self.source.segment(node.target)}: Any{value}"

    def logs(self, node: ast.stmt) -> bool:
        """Return whether a statement only calls a library's logger."""
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(node, ast.If):
            return not node.orelse and all(map(self.logs, node.body))
        func = call.func if isinstance(call, ast.Call) else None
        return isinstance(func, ast.Attribute) and is_logger(self.scope.value(func.value))

    def draws(self, node: ast.Assign) -> bool:
        """Return whether a statement draws a number that only conditions of `by_chance` use."""
        value, target = node.value, node.targets[0]
        if not (isinstance(value, ast.Call) and self.scope.value(value.func) is torch.rand and value.args):
            return False
        function = self.source.around(node)
        if function is None or not isinstance(target, ast.Name) or self.source.segment(value.args[0]) != "[]":
            return False
        used = [
            child for child in ast.walk(function) if isinstance(child, ast.Name) and child.id == target.id
        ]
        return all(self._below(use) for use in used if isinstance(use.ctx, ast.Load))

    def _below(self, node: ast.AST) -> bool:
        """Return whether a name is on the left of `if x < p`, whose branch did not run."""
        test = self.source.parents[node]
        branch = self.source.parents.get(test)
        less = isinstance(test, ast.Compare) and test.left is node and isinstance(test.ops[0], ast.Lt)
        return less and isinstance(branch, ast.If) and branch.test is test and not self.ran(branch.body[0])

    def by_chance(self, node: ast.If) -> str | None:
        """Write `if torch.rand([]) < p` that was never true, also in an `if`: raise if `p` is positive."""
        statements = [
            statement
            for statement in node.body
            if not (isinstance(statement, ast.Assign) and self.draws(statement))
        ]
        alone = statements[0] if len(statements) == 1 < len(node.body) and not node.orelse else None
        outer_test = ""
        if isinstance(alone, ast.If):
            outer_test, node = self.test(node.test), alone
        if not self._by_chance(node):
            return None
        assert isinstance(node.test, ast.Compare)
        condition = (
            f"{self.source.place(node)}: {self.source.segment(node.test)}: it decides by random numbers"
        )
        self.needs.note(f"raises where it is not zero: {condition}")
        self.needs.refused.add((self.source.path, node.body[0].lineno))
        chance = f"{grouped(self.text(node.test.comparators[0]))} > 0"
        indent = " " * (node.col_offset + 4)
        test = f"{grouped(outer_test)} and {chance}" if outer_test else chance
        return f"if {test}:\n{indent}raise NotImplementedError({condition!r})"

    def _by_chance(self, node: ast.If) -> bool:
        test = node.test
        if node.orelse or not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name)):
            return False
        function = self.source.around(node)
        drawn = [
            child
            for child in ast.walk(function or node)
            if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == test.left.id
        ]
        return bool(drawn) and self._below(test.left) and all(map(self.draws, drawn))

    def device(self, node: ast.Assign) -> bool:
        """Return whether a statement only assigns a device or its name to a variable."""
        site = self.site(node.value)
        named = all(isinstance(target, ast.Name) for target in node.targets)
        if not named or site is None or not site.kinds <= {torch.device, str}:
            return False
        parts = (self.site(part) for part in ast.walk(node.value) if isinstance(part, ast.expr))
        return any(part_site.kinds == {torch.device} for part_site in parts if part_site)


def begins(node: ast.AST) -> tuple[int, int]:
    """Return the first position of a statement, including decorators."""
    first = min([start_of(node), *(start_of(decorator) for decorator in getattr(node, "decorator_list", []))])
    return (first[0], first[1] - 1) if first != start_of(node) else first


def _apart(between: str) -> str:
    """Return the comments between two statements, without those directly above the second."""
    lines = between.rstrip().split("\n")
    while len(lines) > 1 and lines[-1].lstrip().startswith("#"):
        lines.pop()
    return "\n".join(lines).rstrip()
