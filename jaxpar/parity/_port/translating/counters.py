"""Counters: numbers that a call adds to in a module, and that no line which ran reads."""

from __future__ import annotations

import ast

from ..reading.source import Source, source_of
from .attributes import ASKING, own_attribute
from .context import Context

NUMBERS = {int, float, bool}


def is_unread_count(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a call's `self.step += 1` or `self.step = self.step + 1` changes nothing else."""
    if not ctx.in_call(node) or not isinstance(node, ast.Assign | ast.AugAssign):
        return False
    target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
    name, value, site = own_attribute(target), node.value, ctx.site(node.value)
    kinds = {type(value.value)} if isinstance(value, ast.Constant) else site.kinds if site else {None}
    adds = isinstance(node, ast.AugAssign) or (
        isinstance(value, ast.BinOp) and own_attribute(value.left) == name and len(node.targets) == 1
    )
    if not name or ctx.kind is None or not adds or not kinds <= NUMBERS:
        return False
    if any(_is_read(ctx, source, name, node) for source in map(source_of, sorted(ctx.watched.paths))):
        return False
    ctx.note(node, f"no line that ran reads self.{name}, so it is not counted")
    ctx.needs.unread.add((ctx.kind, name))
    return True


def _is_read(ctx: Context, source: Source, name: str, count: ast.stmt) -> bool:
    """Return whether a line of a file that ran reads an attribute of this name, but for the count itself."""
    other = ctx.elsewhere(source, {})
    counting = {*ast.walk(count)}
    for node in ast.walk(source.tree):
        loads = isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
        asks = isinstance(node, ast.Call) and ast.unparse(node.func) in ASKING
        asks = asks and any(getattr(part, "value", None) == name for part in node.args)  # type: ignore[attr-defined]
        if (loads or asks) and node not in counting and other.ran(node):
            return True
    return False
