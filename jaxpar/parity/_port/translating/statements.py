"""Statements and definitions.

A statement without counterpart is left out together with its line: `super().__init__()` of nn.Module, initial
values (torch's weights are copied), contexts without a meaning in JAX.
"""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Any

import torch
from torch import nn

from .. import rules
from ..reading.aliases import read_later
from ..reading.runtime import Beyond, of_runtime
from ..reading.scope import UNKNOWN, defined_by_user, definition, dotted, is_torchs
from ..reading.source import Function, end_of, start_of
from .assignments import KEEPING, KEEPS, PART, PARTS
from .branches import DELETED, begins
from .calls import is_method
from .drawing import STREAM, draws_first
from .initial import Initial, is_docstring
from .unbound import unbound
from .words import Hole, positioned

MODE = "self.deterministic = False"
"""NNX's counterpart of `self.training`, set by `train()` and `eval()`."""


class Statements(Initial):
    """Translates statements and functions."""

    def statement(self, node: ast.stmt) -> str:
        method = getattr(self, f"_stmt_{type(node).__name__.lower()}", None)
        try:
            self._check_aliases(node)
            self.check_stopping(node)
            return method(node) if method else self._with_blocks(node)
        except Hole as hole:
            return self.hole(node, str(hole))

    def _check_aliases(self, node: ast.stmt) -> None:
        changed = self.watched.aliases.changed.get((self.source.path, node.lineno), set())
        if read := read_later(self.source, node, changed - {self.rebound(node)}):
            raise Hole(f"it changes {' and '.join(read)} as well, in place")

    def _with_blocks(self, node: ast.stmt) -> str:
        """Write a statement whose parts are expressions and blocks."""
        bodies = {id(body[0]): body for body in blocks(node)}
        hidden = {id(statement) for body in bodies.values() for statement in body[1:]}
        parts = sorted((part for part in positioned(node) if id(part) not in hidden), key=begins)
        written, at = "", begins(node)
        for part in parts:
            body = bodies.get(id(part))
            if isinstance(part, ast.stmt) and body:
                written += self.source.between(at, begins(part)) + self.block(body)
                at = end_of(body[-1])
            else:
                written += self.source.between(at, start_of(part)) + self._part(node, part)
                at = end_of(part)
        return written + self.source.between(at, end_of(node))

    def _part(self, node: ast.stmt, part: ast.AST) -> str:
        if isinstance(part, ast.ExceptHandler):
            return self._with_blocks(part)  # type: ignore[arg-type]
        if part is getattr(node, "test", None):
            return self.test(part)
        return self.text(part)

    def _stmt_import(self, node: ast.Import) -> str:
        return (
            DELETED
            if all(alias.name.split(".")[0] == "torch" for alias in node.names)
            else self.source.segment(node)
        )

    def _stmt_importfrom(self, node: ast.ImportFrom) -> str:
        return DELETED if (node.module or "").split(".")[0] == "torch" else self.source.segment(node)

    def _stmt_expr(self, node: ast.Expr) -> str:
        call = node.value
        if not isinstance(call, ast.Call):
            return self.text(call)
        if self.silent(node):
            return self.said_silent(node)
        if self.logs(node):
            return DELETED
        func = call.func
        if self.scope.value(func) is torch._assert:
            if self.is_tensor(call.args[0]):
                return self._unchecked(node)
            message = f", {self.text(call.args[1])}" if len(call.args) > 1 else ""
            return f"assert {self.test(call.args[0])}{message}"
        written = self._call_statement(call, func) if isinstance(func, ast.Attribute) else None
        if written is None and (name := self.rebound(node)):
            written = f"{name} = {self.text(call)}"
        return written or self.text(call)

    def _call_statement(self, call: ast.Call, func: ast.Attribute) -> str | None:
        name, owner = func.attr, self.site(func.value)
        if isinstance(func.value, ast.Call) and name == "__init__":
            return self._super_init(call, func)
        if name == "register_buffer":
            return self._buffer(call, func)
        if name == "register_parameter":
            return self._registered(call, func)
        if name.startswith("register_") and name.endswith("hook"):
            raise Hole("JAX has no hooks")
        if name in KEEPING and self.in_call(self.source.parents[call]) and self.keeps(func.value):
            raise Hole(KEEPS)
        in_place = name.endswith("_") and not name.endswith("__")
        if in_place and (owner.is_tensor if owner else is_method(name) or name in PARTS):
            return self._in_place(call, func)
        return None

    def _super_init(self, call: ast.Call, func: ast.Attribute) -> str | None:
        base = (
            next((base for base in self.kind.__mro__[1:] if "__init__" in vars(base)), None)
            if self.kind
            else None
        )
        first = reads_training_first(self.kind), draws_first(self, self.kind)
        lines = [line for line, needed in zip((MODE, STREAM), first, strict=True) if needed]
        if base is nn.Module and uses_training(self.kind) and not first[0]:
            lines.insert(0, MODE)
        if base is not nn.Module:
            lines.insert(0, self.text(call))
        statement: Any = self.source.parents[self.source.parents[call]]
        same_line = statement.lineno == call.lineno
        return ("; " if same_line else f"\n{' ' * start_of(call)[1]}").join(lines) or DELETED

    def _stmt_assign(self, node: ast.Assign) -> str:
        if self.silent(node):
            return self.said_silent(node)
        if self.draws(node) or self.device(node):
            return DELETED
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Subscript) and self.is_tensor(target.value):
            return self._set_at(target, "set", self.value(node.value))
        if isinstance(target, ast.Subscript) and self.in_call(node) and self.keeps(target):
            raise Hole(KEEPS)
        if (written := self.pair(node)) is not None:
            return written
        if isinstance(target, ast.Tuple) and any(
            isinstance(element, ast.Subscript) and self.is_tensor(element.value) for element in target.elts
        ):
            raise Hole(PART)
        if len(node.targets) == 1 and isinstance(target, ast.Attribute):
            return self._set_attribute(node, target)
        if len(node.targets) == 1 and isinstance(target, ast.Name) and self.text(node.value) == target.id:
            return DELETED  # x = x.contiguous()
        if self.stops:
            return self.spliced(
                node, lambda part: self.value(node.value) if part is node.value else self.text(part)
            )
        return self.spliced(node)

    def _stmt_return(self, node: ast.Return) -> str:
        return f"return {self.value(node.value)}" if node.value and self.stops else self.spliced(node)

    def _stmt_if(self, node: ast.If) -> str:
        if self.silent(node):
            return self.said_silent(node)
        if self.logs(node):
            return DELETED
        if written := self.by_chance(node):
            return written
        refuses = all(isinstance(statement, ast.Raise) for statement in node.body) and not node.orelse
        if refuses and self._decided_by_data(node.test):
            return self._unchecked(node)
        outcome = _known(self.test(node.test))
        if outcome is None:
            return self._with_blocks(node)
        chosen = node.body if outcome else node.orelse
        return self._dedented(chosen, begins(node)[1]) if chosen else DELETED

    def _stmt_for(self, node: ast.For) -> str:
        return self.said_silent(node) if self.silent(node) else self._with_blocks(node)

    def _stmt_with(self, node: ast.With) -> str:
        if self.silent(node):
            return self.said_silent(node)
        contexts = [
            dotted(self.scope.value(item.context_expr.func))
            if isinstance(item.context_expr, ast.Call)
            else ""
            for item in node.items
        ]
        if all(context in rules.CONTEXTS for context in contexts):
            return self._dedented(node.body, begins(node)[1])
        if len(node.items) == 1 and self.stops_gradients(node.items[0].context_expr):
            return self.stopping()._dedented(node.body, begins(node)[1])
        if any(context.startswith("torch.") for context in contexts):
            raise Hole("there is no rule for this context")
        return self._with_blocks(node)

    def _dedented(self, body: list[ast.stmt], column: int) -> str:
        inner = begins(body[0])[1]
        written = " " * inner + self.block(body)
        lines = written.splitlines(keepends=True)
        cut = inner - column
        return "".join(line[cut:] if line[:cut].isspace() else line for line in lines).lstrip()

    def function(self, node: Function, rngs: str = "") -> str:
        """Write a function, `forward` as `__call__`; `rngs` is that argument's type, "" without one."""
        inner = self.inside(node)
        if self.decorated(node):
            inner = inner.stopping()
        decorators = [self.decorator(decorator) for decorator in node.decorator_list]
        indent = " " * node.col_offset
        head = "".join(f"@{decorator}\n{indent}" for decorator in decorators if decorator)
        begin = start_of(node)
        written, at = "", begin
        last = _last_argument(node) if rngs else None
        outer = [
            part_
            for part_ in positioned(node)
            if not isinstance(part_, ast.stmt) and part_ not in node.decorator_list
        ]
        for part in sorted(outer, key=start_of):
            before = self.source.between(at, start_of(part))
            at = end_of(part)
            try:
                written += before + self.text(part)
            except Beyond:  # the annotation of what it returns
                written += before.rpartition("->")[0].rstrip()
            if part is last:
                written += _rngs_argument(node, rngs)
        written += self.source.between(at, begins(node.body[0]))
        if rngs and last is None:
            written = written.replace("()", "(*, rngs)", 1)
        if self.kind is not None and node.name == "forward":
            written = re.sub(r"^(\s*(?:async )?def )forward\b", r"\1__call__", written)
        body = inner.body(node)
        if lost := unbound(node, body):
            inner.unbound = lost
            body = inner.body(node)
        return f"{head}{written}{body}"

    def body(self, node: Function) -> str:
        """Write a function's statements, after lines that transpose images with their channels last."""
        names = self.needs.turned.get(node, ())
        docstring = node.body[: int(bool(names) and is_docstring(node.body[0]))]
        lines = [f"{name} = jnp.moveaxis({name}, -1, 1)  # from [N, H, W, C]" for name in names]
        parts = [self.block(docstring)] if docstring else []
        statements = self.block(node.body[len(docstring) :], last=True)
        return f"\n{' ' * node.body[0].col_offset}".join([*parts, *lines, statements])

    def decorator(self, node: ast.expr) -> str | None:
        value = self.scope.value(node.func if isinstance(node, ast.Call) else node)
        if of_runtime(value):
            self.needs.note(f"left out: @{self.source.segment(node).partition('(')[0]}")
            return None
        return None if value is not UNKNOWN and is_torchs(value) else self.text(node)

    def _stmt_functiondef(self, node: ast.FunctionDef) -> str:
        return self.function(node)

    def _stmt_assert(self, node: ast.Assert) -> str:
        return self._unchecked(node) if self._decided_by_data(node.test) else self._with_blocks(node)

    def _decided_by_data(self, node: ast.expr) -> bool:
        mark = self.needs.mark()
        self.test(node)
        if self.needs.written_holes == mark[2]:
            return False
        self.needs.forget(mark)
        return True

    def _unchecked(self, node: ast.stmt) -> str:
        """Leave out a check of numbers, which does not change the result: JAX traces abstract arrays."""
        condition = " ".join(self.source.segment(node).split())
        self.needs.note(f"{self.source.place(node)}: {condition}: what it checks depends on data; left out")
        return DELETED

    def _stmt_global(self, node: ast.Global) -> str:
        raise Hole("it changes a variable of the file")

    def _stmt_match(self, node: ast.Match) -> str:
        raise Hole("there is no rule for match")

    def _stmt_classdef(self, node: ast.ClassDef) -> str:
        raise Hole("a class inside of a function")


def uses_training(kind: type | None) -> bool:
    """Return whether a class or one of its bases in the user's code reads `self.training`."""
    return any(map(_reads_training, kind.__mro__ if kind else ()))


def reads_training_first(kind: type | None) -> bool:
    """Return whether a class reads `self.training` and none of its base classes do."""
    return kind is not None and _reads_training(kind) and not any(map(_reads_training, kind.__mro__[1:]))


def _reads_training(kind: type) -> bool:
    if not defined_by_user(kind) or of_runtime(kind):
        return False
    _, node = definition(kind)
    return any(isinstance(child, ast.Attribute) and child.attr == "training" for child in ast.walk(node))


def head_parts(node: Function | ast.ClassDef) -> list[ast.AST]:
    """Return the parts between `def` or `class` and the first statement, in order."""
    decorators = node.decorator_list
    parts = (
        child for child in positioned(node) if not isinstance(child, ast.stmt) and child not in decorators
    )
    return sorted(parts, key=start_of)


def blocks(node: ast.AST) -> list[list[ast.stmt]]:
    fields = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    return [body for body in fields if isinstance(body, list) and body]


def _last_argument(node: Function) -> ast.AST | None:
    """Return the last part of a function's parameters before `**kwargs`."""
    a = node.args
    parts: list[ast.AST] = [
        *a.posonlyargs,
        *a.args,
        *a.defaults,
        *a.kwonlyargs,
        *(d for d in a.kw_defaults if d),
    ]
    parts += [a.vararg] if a.vararg else []
    return max(parts, key=end_of) if parts else None


def _rngs_argument(node: Function, kind: str) -> str:
    a = node.args
    annotated = any(argument.annotation for argument in [*a.args, *a.kwonlyargs])
    star = "" if a.vararg or a.kwonlyargs else "*, "
    return f", {star}rngs{f': {kind}' if annotated else ''}"


def _known(test: str) -> bool | None:
    """Return the value of a condition that consists of constants; None if unknown."""
    try:
        return bool(eval(compile(ast.parse(test, mode="eval"), "test", "eval"), {"__builtins__": {}}))
    except Exception:
        pass
    try:
        node = ast.parse(textwrap.dedent(test), mode="eval").body
    except SyntaxError:
        return None
    if isinstance(node, ast.BoolOp):
        values = [_known(ast.unparse(operand)) for operand in node.values]
        deciding = isinstance(node.op, ast.Or)
        return deciding if deciding in values else None
    return None
