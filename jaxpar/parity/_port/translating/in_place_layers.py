"""Layers in place: `x + self.block(x)`, whose first layer is `nn.ReLU(inplace=True)`, adds relu(x).

torch writes the activation into `x`, which the same line or later ones read again. So it is written before
the line, as an assignment: `x = self.block[0](x)`, and the call takes what follows, `self.block[1:](x)`.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from torch import nn

from .. import rules
from ..reading.aliases import HARMLESS, read_later
from ..reading.scope import is_layer, is_torchs, rule_name
from ..reading.source import Function, end_of, start_of
from .context import Context
from .expressions import text
from .fragment import Hole

IN_PLACE_FUNCTIONS = frozenset(name for name in rules.FUNCTIONS if name.endswith("_"))
LAYER, FIRST = "layer", "first of a Sequential"
MOST_NAMES = 3
"""The names that one array may have, of those that the line changes."""


def with_changes_first(ctx: Context, node: ast.stmt) -> tuple[Context, str, set[str | None]]:
    """Return a statement's context, the lines that go before the statement, and the variables they assign.

    Raises:
      Hole: some modules compute in place and others do not, or the statement shares its line.
    """
    lines: list[str] = []
    names: set[str | None] = set()
    for call, name, form in _changing_calls(ctx, node):
        others = _other_names(ctx, node, name)
        if name in names or not (others & _read_again(ctx, node, call, others)):
            continue
        if form is None:
            raise Hole(f"it changes {name} as well, in place, in some modules")
        if ctx.source.lines[node.lineno - 1][: node.col_offset].strip():
            raise Hole(f"it changes {name} as well, in place")
        ctx.note(node, f"torch changes {name} in place, and so does the line before, for any `inplace`")
        owner = text(ctx, call.func)
        first = text(ctx, call) if form == LAYER else f"{owner}[0]({name})"
        lines.append(f"{' = '.join(sorted(others))} = {first}")
        written = name if form == LAYER else f"{owner}[1:]({name})"
        ctx = dataclasses.replace(ctx, written={**ctx.written, call: written})
        names |= others
    return ctx, "".join(f"{line}\n{' ' * node.col_offset}" for line in lines), names


def _changing_calls(ctx: Context, node: ast.stmt) -> Iterator[tuple[ast.Call, str, str | None]]:
    """Yield the calls that compute in place with a variable alone, its name, and what computes."""
    if not isinstance(node, ast.Assign | ast.Return | ast.AugAssign) or not ctx.in_call(node):
        return
    calls = [child for child in ast.walk(node) if isinstance(child, ast.Call) and child.args]
    for call in sorted(calls, key=start_of):
        argument = call.args[0]
        if not isinstance(argument, ast.Name) or _is_deferred(ctx, call, node):
            continue
        if _is_in_place(ctx, call):
            yield call, argument.id, LAYER
        forms = {_form(module) for module in ctx.modules(call.func)}
        if len(call.args) == 1 and not call.keywords and forms - {None}:
            yield call, argument.id, forms.pop() if len(forms) == 1 else None


def _is_in_place(ctx: Context, call: ast.Call) -> bool:
    """Return whether a call is of a function of torch that changes its first argument."""
    function = ctx.scope.value(call.func)
    flag = next((x.value for x in call.keywords if x.arg == "inplace"), None)
    if isinstance(flag, ast.Constant) and flag.value is True and is_torchs(function):
        return True
    return is_torchs(function) and (rule_name(function) or "") in IN_PLACE_FUNCTIONS


def changed_variable(ctx: Context, node: ast.stmt) -> str | None:
    """Return the variable that a statement changes in place by a call: `F.relu_(x)`."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not call.args or not isinstance(call.args[0], ast.Name):
        return None
    forms = {_form(module) for module in ctx.modules(call.func)}
    return call.args[0].id if _is_in_place(ctx, call) or forms == {LAYER} else None


def _is_deferred(ctx: Context, node: ast.AST, statement: ast.stmt) -> bool:
    """Return whether an expression is evaluated several times, later, or under a condition."""
    while node is not statement:
        node = ctx.source.parents[node]
        if isinstance(node, ast.Lambda | ast.IfExp | ast.BoolOp | ast.comprehension | ast.ListComp):
            return True
        if isinstance(node, ast.GeneratorExp | ast.DictComp | ast.SetComp | Function):
            return True
    return False


def _form(module: nn.Module) -> str | None:
    if type(module).forward is nn.Sequential.forward and len(module):
        return FIRST if _form(module[0]) == LAYER else None
    return LAYER if is_layer(type(module)) and getattr(module, "inplace", False) is True else None


def _other_names(ctx: Context, node: ast.stmt, name: str) -> set[str]:
    """Return the names of a variable's array: `x`, and `residual` after `residual = x`."""
    function = ctx.source.around(node)
    stores: dict[str, list[ast.AST]] = {}
    for child in ast.walk(function) if function else ():
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            stores.setdefault(child.id, []).append(ctx.source.parents[child])
    names = {name}
    for other, statements in stores.items():
        alias = statements[0]
        if len(statements) == 1 and isinstance(alias, ast.Assign) and ast.unparse(alias.value) == name:
            between = [x for x in stores.get(name, ()) if start_of(alias) < start_of(x) < start_of(node)]
            if len(alias.targets) == 1 and start_of(alias) < start_of(node) and not between:
                names.add(other)
    return names if len(names) <= MOST_NAMES else {name}


def _read_again(ctx: Context, node: ast.stmt, call: ast.Call, others: set[str]) -> set[str]:
    """Return the names that the statement reads with the changed numbers, or that later statements read."""
    again = set(read_later(ctx.source, node, others))
    for child in ast.walk(node):
        if not isinstance(child, ast.Name) or child.id not in others or child is call.args[0]:
            continue
        parent = ctx.source.parents[child]
        if isinstance(parent, ast.Attribute) and parent.attr in HARMLESS:
            continue
        if isinstance(child.ctx, ast.Load) and (
            start_of(child) >= end_of(call) or _is_reference(ctx, child, call)
        ):
            again.add(child.id)
    return again & others if again else set()


def _is_reference(ctx: Context, node: ast.AST, call: ast.AST) -> bool:
    """Return whether a name before a call is another operand, so that its value is read after the call."""
    outer = {call}
    parent: ast.AST = call
    while not isinstance(parent, ast.stmt):
        parent = ctx.source.parents[parent]
        outer.add(parent)
    node = ctx.source.parents[node]
    while node not in outer:
        if not isinstance(node, ast.List | ast.Tuple | ast.keyword):
            return False
        node = ctx.source.parents[node]
    return True
