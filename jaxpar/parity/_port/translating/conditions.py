"""Conditions, where Python reads a tensor's numbers; JAX cannot while it compiles."""

from __future__ import annotations

import ast
import builtins
import math
import random
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from ..reading.runtime import Beyond
from ..reading.scope import UNKNOWN, is_torchs
from ..reading.watching import Site
from .context import Context
from .expressions import expression, hole, is_none, resolved, root_of, spliced, text, translated
from .fragment import COMPARE, Fragment, Hole, parsed
from .memory import decided

NUMERIC = ("int", "float", "bool", "complex", "range", "max", "min", "any", "all", "sorted", "divmod")
"""Functions of Python that read a tensor's numbers; all functions of `math` and NumPy do, too."""
_NUMERIC = {id(getattr(builtins, name)) for name in NUMERIC}
DECIDES = "it decides by data"


def test(ctx: Context, node: ast.expr) -> Fragment:
    """Translate the condition of an `if`, a `while` or an `assert`."""
    is_read = ctx.is_tensor(node) and node not in ctx.written
    return hole(ctx, node, DECIDES) if is_read else translated(ctx, node)


@expression(ast.BoolOp)
def and_or(ctx: Context, node: ast.BoolOp) -> Fragment:
    if node in ctx.written:
        return parsed(ctx.written[node])
    return _without_tensors(ctx, node, node.values)


@expression(ast.BinOp)
def operation(ctx: Context, node: ast.BinOp) -> Fragment:
    """Write `2**i` of integers, whose exponents can be negative, as a call, and `[n] + sizes` as one list."""
    summands = _summands(node)
    if any(isinstance(part, ast.List) for part in summands) and any(_is_list(ctx, part) for part in summands):
        return Fragment(f"[{', '.join(text(ctx, part, 's') for part in summands)}]")
    exponent, base = ctx.site(node.right), ctx.site(node.left)
    has_floats = _is_float(node.left) or any(site and _has_floats(site) for site in (exponent, base))
    if isinstance(node.op, ast.Pow) and exponent and exponent.types and not has_floats:
        return Fragment(f"F.pow({text(ctx, node.left)}, {text(ctx, node.right)})")
    if long := [x for x in (node.left, node.right) if _is_long(ctx, x)]:
        other = node.left if node.right is long[0] else node.right
        if (site := ctx.site(other)) and site.is_tensor and _has_floats(site):
            return spliced(
                ctx,
                node,
                lambda part: Fragment(f"float({text(ctx, part)})") if part in long else translated(ctx, part),
            )
    return spliced(ctx, node)


def _is_long(ctx: Context, node: ast.expr) -> bool:
    """Return whether a number was an integer beyond 32 bits, as in `scores * (-2**32 + 1)`."""
    site = ctx.site(node)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) and abs(node.value) >= 2**31
    return bool(site and site.kinds == {int} and any(abs(int(x)) >= 2**31 for x in site.literals))


def _summands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


def _is_list(ctx: Context, node: ast.expr) -> bool:
    """Return whether a name or an attribute is a list in torch: a module's own is a tuple in Flax."""
    site = ctx.site(node) if isinstance(node, ast.Name | ast.Attribute) else None
    return bool(site and site.kinds == {list})


def _has_floats(site: Site) -> bool:
    return any(x.is_floating_point or x.is_complex for x in site.types)


def _is_float(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


@expression(ast.UnaryOp)
def unary(ctx: Context, node: ast.UnaryOp) -> Fragment:
    if not isinstance(node.op, ast.Not):
        return spliced(ctx, node)
    if isinstance(node.operand, ast.Attribute) and (operand := translated(ctx, node.operand).negated):
        return Fragment(operand)
    return _without_tensors(ctx, node, [node.operand])


@expression(ast.Compare)
def comparison(ctx: Context, node: ast.Compare) -> Fragment:
    operands = [node.left, *node.comparators]
    if chance := _chance(ctx, node):
        return chance
    if len(node.ops) > 1 or isinstance(node.ops[0], ast.In | ast.NotIn):
        return _without_tensors(ctx, node, operands)
    if isinstance(node.ops[0], ast.Is | ast.IsNot) and any(_is_type(ctx, operand) for operand in operands):
        # `jnp.float32` is a scalar type, equal to an array's dtype but a different object.
        sign = "==" if isinstance(node.ops[0], ast.Is) else "!="
        return Fragment(f"{text(ctx, node.left)} {sign} {text(ctx, node.comparators[0])}", COMPARE)
    is_identity = isinstance(node.ops[0], ast.Is | ast.IsNot) and any(map(is_none, operands))
    if is_identity and any(is_torchs(ctx.scope.value(operand)) for operand in operands):
        return resolved(ctx, node, isinstance(node.ops[0], ast.IsNot))
    return spliced(ctx, node)


def _chance(ctx: Context, node: ast.Compare) -> Fragment | None:
    """Write `torch.rand(1).item() < p`, which was never true: it raises unless p is 0, as of a LayerDrop."""
    first, operator, second = node.left, node.ops[0], node.comparators[0]
    if len(node.ops) > 1 or not isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return None
    rate = next((b for a, b in ((first, second), (second, first)) if _is_drawn(ctx, a)), None)
    if rate is None or ctx.is_tensor(node) or ctx.is_tensor(rate):
        return None
    is_below = isinstance(operator, ast.Lt | ast.LtE) is (rate is second)
    site = ctx.site(node)
    if site and any(value is is_below for value in site.objects.values()):
        return None
    reason = f"{ctx.source.place(node)}: {ctx.code(node)}: it decides by random numbers"
    ctx.needs.note(f"raises where it is not zero: {reason}")
    ctx.needs.written_holes += 1
    sign, joint = ("> 0", "and") if is_below else ("<= 0", "or")
    return parsed(f"({translated(ctx, rate).grouped} {sign} {joint} hole({reason!r}))")


def _is_drawn(ctx: Context, node: ast.expr) -> bool:
    """Return whether an expression draws one number between 0 and 1."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        node = node.func.value
    if not isinstance(node, ast.Call) or node.keywords:
        return False
    function, sizes = ctx.scope.value(node.func), [ast.unparse(part) for part in node.args]
    if function in (random.uniform, np.random.uniform):
        return sizes in (["0", "1"], ["0.0", "1.0"]) or not sizes
    return function in (torch.rand, random.random, np.random.rand, np.random.random) and sizes in (
        [],
        ["1"],
        ["[]"],
    )


def _is_type(ctx: Context, node: ast.expr) -> bool:
    site = ctx.site(node)
    return isinstance(ctx.scope.value(node), torch.dtype) or bool(site and torch.dtype in site.kinds)


def _without_tensors(ctx: Context, node: ast.expr, operands: Iterable[ast.expr]) -> Fragment:
    if any(map(ctx.is_tensor, operands)):
        raise Hole(DECIDES)
    return spliced(ctx, node)


@expression(ast.IfExp)
def conditional(ctx: Context, node: ast.IfExp) -> Fragment:
    if (chosen := decided(ctx, node)) is not None:
        return translated(ctx, node.body if chosen else node.orelse)
    if ctx.is_tensor(node.test):
        raise Hole(DECIDES)
    return spliced(ctx, node, lambda part: _branch(ctx, part))


def _branch(ctx: Context, node: ast.AST) -> Fragment:
    """Write a part of a conditional expression; a hole if it did not run and has no counterpart."""
    try:
        return translated(ctx, node)
    except Beyond as beyond:
        if not ctx.ran(ctx.source.parents[node]):
            raise
        return hole(ctx, node, f"it needs {beyond}")


def require_no_numbers(ctx: Context, node: ast.Call) -> None:
    """Refuse `int(x)` and similar calls on a tensor."""
    value = ctx.scope.value(node.func)
    if value is UNKNOWN or (
        id(value) not in _NUMERIC and ctx.scope.value(root_of(node.func)) not in (math, np)
    ):
        return
    if any(map(ctx.is_tensor, _arguments(node))):
        raise Hole("it takes a number out of a tensor")


def _arguments(node: ast.Call) -> Iterator[ast.expr]:
    """Yield the arguments of a call, and the elements of lists and generators among them."""
    for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
        yield argument
        if isinstance(argument, ast.List | ast.Tuple):
            yield from argument.elts
        elif isinstance(argument, ast.GeneratorExp | ast.ListComp):
            yield argument.elt
