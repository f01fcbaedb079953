"""Literals, also as annotations in quotes, and parameters with their annotations."""

from __future__ import annotations

import ast
import re

from .. import rules
from ..reading.runtime import Beyond
from ..reading.scope import UNKNOWN
from ..reading.source import Source
from .context import Context
from .expressions import expression, spliced, text
from .fragment import Fragment, Hole
from .names import left_out, reference

QUOTED = re.compile(r"torch\.|Tensor$")
"""Quoted annotations of torch, which are left out."""


@expression(ast.Constant)
def constant(ctx: Context, node: ast.Constant) -> Fragment:
    """Write a constant; quoted annotations of torch are replaced or, like unknown ones, left out."""
    value, unchanged = node.value, Fragment(ctx.source.segment(node), value=node.value)
    if not (isinstance(value, str) and ctx.in_annotation(node) and not _is_literal(ctx.source, node)):
        return unchanged
    if replacement := rules.NAMES.get(f"torch.{value.removeprefix('torch.')}"):
        return Fragment(replacement)
    names = _names_in(value)
    if QUOTED.match(value) or not names or not all(_keeps_its_name(ctx, node, name) for name in names):
        raise Beyond(value)
    return unchanged


def _keeps_its_name(ctx: Context, node: ast.Constant, name: ast.Name) -> bool:
    value = ctx.scope.value(name)
    return value is not UNKNOWN and reference(ctx, node, value, name.id).text == name.id


def _names_in(annotation: str) -> list[ast.Name]:
    """Return the names in a quoted annotation; none if it is plain text, such as an array's axes."""
    try:
        tree = ast.parse(annotation, mode="eval")
    except SyntaxError:
        return []
    return [child for child in ast.walk(tree) if isinstance(child, ast.Name)]


def _is_literal(source: Source, node: ast.AST) -> bool:
    """Return whether a string in an annotation is a value of `Literal`."""
    parent = source.parents[node]
    parent = source.parents[parent] if isinstance(parent, ast.Tuple) else parent
    return isinstance(parent, ast.Subscript) and ast.unparse(parent.value).endswith("Literal")


@expression(ast.JoinedStr)
def joined_string(ctx: Context, node: ast.JoinedStr) -> Fragment:
    # Its parts have no positions in older Pythons. A shape is formatted the same way in JAX.
    for name in (part for part in ast.walk(node) if isinstance(part, ast.Name)):
        value = ctx.scope.value(name)
        if value is not UNKNOWN and reference(ctx, node, value, name.id).text != name.id:
            raise Hole(f"{name.id} has another name in JAX")
    return Fragment(ctx.source.segment(node))


@expression(ast.Dict)
def dictionary(ctx: Context, node: ast.Dict) -> Fragment:
    """Write a dict without a library's entries that did not run."""
    entries = [
        (key, value)
        for key, value in zip(node.keys, node.values, strict=True)
        if not left_out(ctx, ctx.scope.value(value))
    ]
    if len(entries) == len(node.keys):
        return spliced(ctx, node)
    ctx.needs.note(f"{ctx.source.place(node)}: left out are entries that the example does not use")
    items = (
        f"{text(ctx, key)}: {text(ctx, value)}" if key else f"**{text(ctx, value)}" for key, value in entries
    )
    return Fragment("{" + ", ".join(items) + "}")


@expression(ast.arg)
def parameter(ctx: Context, node: ast.arg) -> Fragment:
    """Write a parameter, without an annotation that has no counterpart."""
    try:
        return spliced(ctx, node)
    except Beyond:
        return Fragment(node.arg)
