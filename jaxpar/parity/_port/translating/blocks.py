"""Blocks of statements, including those that did not run, and the registry of statements.

A block that did not run and has no counterpart raises in the ported file. A statement without a counterpart
is left out together with its line: `super().__init__()` of nn.Module, initial values (torch's weights are
copied), contexts without a meaning in JAX.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

from ..reading.aliases import alias_read_later, changed_alias, read_later
from ..reading.runtime import Beyond
from ..reading.source import end_of, start_of
from .conditions import test
from .context import Context, Registry
from .expressions import hole, positioned, text
from .fragment import Hole
from .gradients import require_no_changes
from .in_place_layers import changed_variable, with_changes_first
from .indexing import rebound
from .omitted import is_omitted

statement = Registry()
"""`@statement(ast.If)` registers a function from a context and a statement to its text, or None."""
REFUSED: dict[type[ast.stmt], str] = {
    ast.Global: "it changes a variable of the file",
    ast.ClassDef: "a class inside of a function",
}


def written_statement(ctx: Context, node: ast.stmt) -> str | None:
    """Write a statement in JAX; None if it is left out."""
    try:
        if is_omitted(ctx, node):
            return None
        ctx, before, rewritten = with_changes_first(ctx, node)
        changed = ctx.watched.aliases.changed.get((ctx.source.path, node.lineno), set())
        rewritten |= {rebound(ctx, node), changed_variable(ctx, node)}
        if changed and (read := read_later(ctx.source, node, changed - rewritten)):
            raise Hole(f"it changes {' and '.join(read)} as well, in place")
        require_no_changes(ctx, node)
        if not ctx.ran(node) and (other := alias_read_later(ctx.source, node)):
            raise Hole(f"it may change {other} as well, in place")
        if not ctx.ran(node) and (other := changed_alias(ctx.source, node)):
            raise Hole(f"a later line may change {other} as well, in place")
        if type(node) in REFUSED:
            raise Hole(REFUSED[type(node)])
        written = statement.get(type(node), with_blocks)(ctx, node)
        if before and written is not None:
            written = before + written
        if written is not None and not _is_python(written, begin_of(node)[1]):
            raise Hole("what would be written is no statement")
        return written
    except Hole as reason:
        return hole(ctx, node, str(reason)).text
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return hole(ctx, node, f"port fails on it: {type(error).__name__}: {error}").text


def _is_python(written: str, column: int) -> bool:
    """Return whether a statement, which starts at a column of its first line, can be parsed."""
    written = written.removeprefix("el") if written.startswith("elif") else written
    try:
        ast.parse(f"if 1:\n{' ' * max(column, 1)}{written}" if column else written)
    except SyntaxError:
        return False
    return True


def with_blocks(ctx: Context, node: ast.AST) -> str:
    """Write a statement whose parts are expressions and blocks."""
    bodies = {id(body[0]): body for body in blocks_of(node)}
    later = {id(child) for body in bodies.values() for child in body[1:]}
    written, at = "", begin_of(node)
    for part in sorted((part for part in positioned(node) if id(part) not in later), key=begin_of):
        body = bodies.get(id(part))
        if body:
            before, inner = ctx.source.between(at, begin_of(part)), block(ctx, body)
            if is_elif(ctx, body[0]) and not inner.startswith("elif"):
                # Its condition is constant, or has no counterpart.
                inner = f"else:\n{indented(inner, begin_of(part)[1])}"
            written += before + inner
            at = end_of(body[-1])
        else:
            written += ctx.source.between(at, start_of(part)) + _part(ctx, node, part)
            at = end_of(part)
    return written + ctx.source.between(at, end_of(node))


def is_elif(ctx: Context, node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ctx.source.segment(node).startswith("elif")


def indented(written: str, column: int) -> str:
    """Move a statement that starts at a column four columns to the right."""
    return textwrap.indent(" " * column + written, "    ")


def _part(ctx: Context, node: ast.AST, part: ast.AST) -> str:
    if isinstance(part, ast.ExceptHandler):
        return with_blocks(ctx, part)
    if isinstance(part, ast.expr) and part is getattr(node, "test", None):
        return test(ctx, part).text
    return text(ctx, part)


def blocks_of(node: ast.AST) -> list[list[ast.stmt]]:
    fields = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    fields += [case.body for case in getattr(node, "cases", ())]
    return [body for body in fields if isinstance(body, list) and body]


def block(ctx: Context, body: Sequence[ast.stmt], last: bool = False) -> str:
    """Write a block; a statement that raises if it did not run and has no counterpart."""
    # The outermost block that did not run raises; those inside are part of its text or are not written.
    if ctx.ran(body[0]) or not ctx.ran(ctx.source.parents[body[0]]):
        return _statements(ctx, body, last)
    try:
        with ctx.needs.unless_beyond():
            return _statements(ctx, body, last)
    except Beyond:
        return _refusal(ctx, body[0])


def _refusal(ctx: Context, node: ast.stmt) -> str:
    """Write a statement that raises instead of one that did not run and those after."""
    ctx.needs.refused.add((ctx.source.path, node.lineno))
    return f"raise NotImplementedError({f'{ctx.source.place(node)} is not ported: no example ran it'!r})"


def _statements(ctx: Context, body: Sequence[ast.stmt], last: bool) -> str:
    """Write statements and the lines between them, indented as in the source; "pass" if none remains.

    If they are the `last` ones of a definition, the comment after them is written, too.
    """
    written, at = "", begin_of(body[0])
    for node in body:
        between = ctx.source.between(at, begin_of(node))
        if between.lstrip().startswith(";") and written == "":
            between = ""  # the previous statement on the line is left out
        at = end_of(node)
        try:
            with ctx.needs.unless_beyond():
                line = written_statement(ctx, node)
        except Beyond:
            # After an early return, the rest of a block that ran can raise. A block that did not run is
            # replaced as a whole.
            if ctx.ran(node) or not ctx.ran(body[0]):
                raise
            return (written + between + _refusal(ctx, node)).lstrip("\n").lstrip()
        if line is not None:
            written += between + line
            continue
        comments = _apart(between)
        written += comments if "#" in comments else ""
        at = _end_of_line(ctx, node)
    if last:
        written += ctx.source.between(at, _end_of_line(ctx, body[-1]))
    return written.lstrip("\n").lstrip() if written.strip() else "pass"


def _end_of_line(ctx: Context, node: ast.stmt) -> tuple[int, int]:
    """Return the position after a statement and the comment on its last line."""
    line, column = end_of(node)
    remaining = ctx.source.lines[line - 1][column:].decode()
    is_comment = remaining.lstrip().startswith("#")
    return line, column + (len(remaining.rstrip("\n").encode()) if is_comment else 0)


def _apart(between: str) -> str:
    """Return the comments between two statements, without those directly above the second."""
    lines = between.rstrip().split("\n")
    while len(lines) > 1 and lines[-1].lstrip().startswith("#"):
        lines.pop()
    return "\n".join(lines).rstrip()


def dedented(ctx: Context, body: list[ast.stmt], column: int) -> str:
    """Write a block in place of the statement that contained it."""
    inner = begin_of(body[0])[1]
    cut = inner - column
    lines = (" " * inner + block(ctx, body)).splitlines(keepends=True)
    written = "".join(line[cut:] if line[:cut].isspace() else line for line in lines).lstrip()
    return written.removeprefix("el") if written.startswith("elif") else written


def begin_of(node: ast.AST) -> tuple[int, int]:
    """Return the first position of a statement, including decorators."""
    start = start_of(node)
    first = min([start, *(start_of(decorator) for decorator in getattr(node, "decorator_list", []))])
    return (first[0], first[1] - 1) if first != start else first
