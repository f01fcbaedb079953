"""Precedence: where a replaced expression needs parentheses."""

from __future__ import annotations

import ast
import functools
import textwrap

ATOM, UNARY, COMPARE, NOT = 14, 11, 4, 3
_ROWS = {
    1: (ast.Or,),
    2: (ast.And,),
    5: (ast.BitOr,),
    6: (ast.BitXor,),
    7: (ast.BitAnd,),
    8: (ast.LShift, ast.RShift),
    9: (ast.Add, ast.Sub),
    10: (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult),
    12: (ast.Pow,),
}
_OPERATORS: dict[type, int] = {kind: row for row, kinds in _ROWS.items() for kind in kinds}
_ATOMS = (
    *(ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Dict, ast.Set),
    *(ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp, ast.JoinedStr),
)


def level(node: ast.AST) -> int:
    """Return an expression's precedence; 0 for a tuple without parentheses."""
    if isinstance(node, ast.BinOp | ast.BoolOp):
        return _OPERATORS[type(node.op)]
    if isinstance(node, ast.UnaryOp):
        return NOT if isinstance(node.op, ast.Not) else UNARY
    if isinstance(node, ast.Compare):
        return COMPARE
    return ATOM if isinstance(node, _ATOMS) else 0


def joined(parent: ast.AST, part: ast.AST, written: str) -> str:
    """Parenthesise a replaced operand whose precedence is too low for its position."""
    needed = _needed(parent, part)
    if needed == 0 or level(part) < needed:  # the source has its own parentheses around it
        return written
    return written if _level_of(written) >= needed else f"({written})"


def grouped(written: str) -> str:
    """Parenthesise a text so that it can be any operator's operand."""
    return written if _level_of(written) == ATOM else f"({written})"


def _needed(parent: ast.AST, part: ast.AST) -> int:
    if isinstance(parent, ast.BinOp):
        parent_level = level(parent)
        tighter = part is (parent.left if isinstance(parent.op, ast.Pow) else parent.right)
        return parent_level + 1 if tighter else parent_level
    if isinstance(parent, ast.UnaryOp | ast.Compare):
        return level(parent) + isinstance(parent, ast.Compare)
    if isinstance(parent, ast.BoolOp):
        return level(parent) + 1
    attached = isinstance(parent, ast.Attribute | ast.Subscript) and part is parent.value
    return ATOM if attached or (isinstance(parent, ast.Call) and part is parent.func) else 0


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> ast.expr | None:
    """Parse an expression, which may have line breaks; None if it is not an expression."""
    for candidate in (textwrap.dedent(text).strip(), f"({text}\n)"):
        try:
            return ast.parse(candidate, mode="eval").body
        except SyntaxError:
            pass
    return None


def _level_of(text: str) -> int:
    node = parsed(text)
    return level(node) if node else 0
