"""Fragment: an expression's text in JAX, with the facts that decisions need; parentheses by precedence."""

from __future__ import annotations

import ast
import dataclasses
import functools
import textwrap
from typing import Any

from ..reading.scope import UNKNOWN

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
# A tuple is only an operand in its own parentheses, which belong to its node.
_ATOMS = (
    *(ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set),
    *(ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp, ast.JoinedStr),
)


class Hole(Exception):
    """Source without a counterpart in JAX; the message is the reason."""


@dataclasses.dataclass(frozen=True)
class Fragment:
    """An expression in JAX.

    Attributes:
      text: its source.
      precedence: its outermost operator's precedence, as in `level`.
      value: its value if it consists of constants, UNKNOWN otherwise.
      variable: the module's variable that it reads: `self.weight` for `self.weight[...]`.
      transposed: the end of the text if the variable has a different layout than torch's: `.T`.
      negated: the operand, if an attribute became a `not`.
      makes_variable: whether it makes an `nnx.Param` or `nnx.Variable`.
    """

    text: str
    precedence: int = ATOM
    value: Any = UNKNOWN
    variable: str = ""
    transposed: str = ""
    negated: str = ""
    makes_variable: bool = False

    @property
    def is_whole_variable(self) -> bool:
        """Whether the text can be assigned to, or indexed, as a variable's array in torch's layout."""
        return bool(self.variable) and not self.transposed

    @property
    def grouped(self) -> str:
        """The text as an operand of any operator."""
        return self.text if self.precedence == ATOM else f"({self.text})"


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> Fragment:
    """Return a fragment for a table's text, whose structure only its syntax tree shows."""
    # A text with line breaks is an expression only in parentheses.
    for candidate in (textwrap.dedent(text).strip(), f"({text}\n)"):
        try:
            node = ast.parse(candidate, mode="eval").body
        except SyntaxError:
            continue
        return Fragment(text, level(node), node.value if isinstance(node, ast.Constant) else UNKNOWN)
    return Fragment(text, 0)


def level(node: ast.AST) -> int:
    """Return an expression's precedence; 0 where it needs parentheses as any operand."""
    if isinstance(node, ast.BinOp | ast.BoolOp):
        return _OPERATORS[type(node.op)]
    if isinstance(node, ast.UnaryOp):
        return NOT if isinstance(node.op, ast.Not) else UNARY
    if isinstance(node, ast.Compare):
        return COMPARE
    return ATOM if isinstance(node, _ATOMS) else 0


def joined(parent: ast.AST, part: ast.AST, fragment: Fragment) -> str:
    """Parenthesise a translated operand whose precedence is too low for its position."""
    needed = _needed(parent, part)
    # An operand that was too low already has parentheses in the source, between the nodes.
    return fragment.text if fragment.precedence >= needed or level(part) < needed else f"({fragment.text})"


def _needed(parent: ast.AST, part: ast.AST) -> int:
    if isinstance(parent, ast.BinOp):
        parent_level = level(parent)
        # Only `**` groups from the right: `a - (b - c)`, but `(a ** b) ** c`.
        tighter = part is (parent.left if isinstance(parent.op, ast.Pow) else parent.right)
        return parent_level + 1 if tighter else parent_level
    # `(a < b) < c` is different from the chain `a < b < c`.
    if isinstance(parent, ast.UnaryOp | ast.Compare):
        return level(parent) + isinstance(parent, ast.Compare)
    if isinstance(parent, ast.BoolOp):
        return level(parent) + 1
    attached = isinstance(parent, ast.Attribute | ast.Subscript) and part is parent.value
    return ATOM if attached or (isinstance(parent, ast.Call) and part is parent.func) else 0
