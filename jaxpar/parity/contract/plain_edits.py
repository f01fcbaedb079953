"""Edits of the code between layers, by the text of a cause: candidates until a run agrees.

A rule is a pattern of the catalogue's texts and a function from the code and the pattern's groups to changed
sources. To add one, write the function and its line in `RULES`.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Callable, Iterator

from .operation_edits import (
    axis,
    degrees,
    deviation,
    factors_of_axis,
    forget_bias,
    index,
    operator,
    padding,
    pieces,
    reduction_of_axes,
    softmax_axis,
    split,
    transposition,
)
from .source import Code, changes, last_name, module_of, with_keyword

Rule = Callable[..., Iterator[str]]
SUMS = ast.Add, ast.Sub
PRODUCTS = ast.Mult, ast.Div
SIGNS: dict[str, type[ast.cmpop]] = {
    "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE, "==": ast.Eq, "!=": ast.NotEq,
}  # fmt: skip
OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


def plain_edits(code: Code, text: str) -> Iterator[str]:
    """Yield the sources that a cause's text suggests, those nearest to the place first."""

    def every() -> Iterator[str]:
        for pattern, rule in RULES:
            if match := re.search(pattern, text):
                yield from rule(code, *match.groups())

    yield from changes(every(), code.source)


# --------------------------------------------------------------------------------------------- activations


def activation(code: Code, right: str, wrong: str) -> Iterator[str]:
    """Call the right function on the argument of the wrong one."""
    for call in code.calls(wrong.partition("(")[0]):
        if call.args:
            yield code.replaced(call, _applied(right, module_of(call.func), code, call.args[0]))
    if wrong == "no activation":
        for call in code.layers:
            for x in call.args[:1]:
                yield code.replaced(x, _applied(right, "jax.nn.", code, x))


def _applied(function: str, module: str, code: Code, x: ast.expr) -> str:
    if " " in function.partition("(")[0]:  # a formula of x
        formula = re.sub(r"\b([a-z]\w*)\(", rf"{module}\1(", function)
        return re.sub(r"\bx\b", lambda _: code.operand(x), formula)
    name, _, settings = function.rstrip(")").partition("(")
    return f"{module}{name}({code.text(x)}{', ' * bool(settings)}{settings})"


def setting(code: Code, name: str, right: str, wrong: str) -> Iterator[str]:
    """Set a keyword of the function that is named, or a number that is the wrong one."""
    for call in code.calls(wrong.partition("(")[0]):
        yield with_keyword(code.source, call, name, right)
    for number in code.nodes(ast.Constant):
        if str(number.value) == wrong:
            yield code.replaced(number, right)


# --------------------------------------------------------------------------------------------------- scales


def scale(code: Code, right: str, wrong: str) -> Iterator[str]:
    """Set a factor or a divisor, or multiply what has none."""
    numerator, _, divisor = right.partition(" / ")
    number = float(numerator) / float(divisor or 1)
    values, inverses = numbers(number), numbers(1 / number)
    for node in code.nodes(ast.BinOp):
        if isinstance(node.op, PRODUCTS):
            for value in inverses if isinstance(node.op, ast.Div) else values:
                yield code.replaced(node.right, value)
            for value in values if isinstance(node.op, ast.Mult) else ():
                yield code.replaced(node.left, value)
    products = [node for node in code.nodes(ast.BinOp) if isinstance(node.op, ast.MatMult)]
    for expression in [*products, *code.calls()] if "left out" in wrong or wrong == "1" else ():
        for value in values:
            yield code.replaced(expression, f"{code.operand(expression)} * {value}")


def numbers(x: float) -> list[str]:
    """Write a number of six digits: as the root of an integer if it is one's, or as it is."""
    square, inverse = x * x, 1 / (x * x)
    roots = [
        f"{n}{power}"
        for exact, power in ((square, "**0.5"), (inverse, "**-0.5"))
        if (n := round(exact)) > 1 and math.isclose(exact, n, rel_tol=1e-5)
        if math.isqrt(n) ** 2 != n
    ]
    return [*roots, f"{x:.12g}"]


def factor(code: Code, *_: str) -> Iterator[str]:
    """Leave out a factor or a divisor."""
    for node in code.nodes(ast.BinOp):
        if isinstance(node.op, PRODUCTS):
            yield code.replaced(node, code.operand(node.left))
            if isinstance(node.op, ast.Mult):
                yield code.replaced(node, code.operand(node.right))


# ------------------------------------------------------------------------------------ positions and masks


def shifted(code: Code, by: str) -> Iterator[str]:
    """Leave out a shift of positions, or shift them back."""
    back = -int(by)
    for node in code.nodes(ast.BinOp):
        if isinstance(node.op, SUMS):
            yield code.replaced(node, code.operand(node.left))
    for call in code.calls("arange", "cumsum"):
        if call.args and ast.unparse(call.args[0]) == by and len(call.args) > 1:
            end = call.args[1]
            ends = [code.text(end), f"{code.operand(end)} - {by}"]
            ends[:0] = [code.text(x) for x in (getattr(end, "left", None), getattr(end, "right", None)) if x]
            yield from (code.with_all({call.args[0]: "0", end: text}) for text in ends)
        yield code.replaced(call, f"{code.text(call)} {'+' if back > 0 else '-'} {abs(back)}")


def reversed_order(code: Code, *_: str) -> Iterator[str]:
    for node in code.nodes(ast.Subscript):
        if "::-1" in ast.unparse(node.slice):
            yield code.replaced(node, code.text(node.value))
    for call in code.calls("flip", "arange"):
        is_flip = last_name(call.func) == "flip"
        yield code.replaced(call, code.text(call.args[0]) if is_flip else f"{code.text(call)}[::-1]")


def comparison(code: Code, right: str, wrong: str) -> Iterator[str]:
    """Compare by the right operator, or by the one that means the same with exchanged operands."""
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    for sign, instead in ((wrong, right), (turned.get(wrong, wrong), turned.get(right, right))):
        for node in code.nodes(ast.Compare):
            if len(node.ops) == 1 and isinstance(node.ops[0], SIGNS[sign]):
                operands = code.text(node.left), code.text(node.comparators[0])
                yield code.replaced(node, f" {instead} ".join(operands))
    yield from inverted(code)


def inverted(code: Code, *_: str) -> Iterator[str]:
    """Invert a condition, where it is made or where it is used."""
    for node in code.nodes(ast.UnaryOp):
        if isinstance(node.op, ast.Invert):
            yield code.replaced(node, code.text(node.operand))
    for compare in code.nodes(ast.Compare):
        sign = next((s for s, kind in SIGNS.items() if isinstance(compare.ops[0], kind)), None)
        if sign and len(compare.ops) == 1:
            right = code.text(compare.comparators[0])
            yield code.replaced(compare, f"{code.text(compare.left)} {OPPOSITE[sign]} {right}")
    for call in code.calls("where"):
        if len(call.args) == 3:
            yield code.replaced(call.args[0], f"~{code.operand(call.args[0])}")
    for keyword in (k for call in code.calls() for k in call.keywords if k.arg and "mask" in k.arg):
        yield code.replaced(keyword.value, f"~{code.operand(keyword.value)}")


def bound(code: Code, by: str) -> Iterator[str]:
    """Move the bound of a comparison back."""
    for node in code.nodes(ast.Compare):
        for side in (node.comparators[0], node.left):
            if isinstance(side, ast.BinOp) and isinstance(side.op, SUMS):
                yield code.replaced(side, code.text(side.left))
            if isinstance(side, ast.Constant) and isinstance(side.value, int):
                yield from (code.replaced(side, str(side.value - sign * int(by))) for sign in (1, -1))
            yield from (code.replaced(side, f"{code.operand(side)} {sign} 1") for sign in "+-")


def condition(code: Code, *_: str) -> Iterator[str]:
    """Add a condition to a mask: a bound at 0 of what is compared, or an argument that is not used."""
    masks = [
        node
        for node in code.nodes(ast.Compare, ast.BinOp)
        if not isinstance(node, ast.BinOp) or isinstance(node.op, ast.BitAnd)
        if code.outermost(node, (ast.BinOp, ast.Compare))
    ]
    for mask in masks:
        compares = [node for node in ast.walk(mask) if isinstance(node, ast.Compare)]
        more = [f"({code.text(c.left)} {sign} 0)" for c in compares for sign in (">=", "<=", ">", "<")]
        for name in code.names_at(mask):
            more += [f"{name}{axes}" for axes in ("", "[:, None]", "[:, None, None]", "[:, None, None, :]")]
        for other in more:
            yield code.replaced(mask, f"{code.operand(mask)} & {other}")


def causal(code: Code, *_: str) -> Iterator[str]:
    """Mask the scores before a softmax."""
    for call in code.calls("softmax"):
        scores = code.text(call.args[0])
        mask = f"jnp.tri(*{code.operand(call.args[0])}.shape[-2:], dtype=bool)"
        yield code.replaced(call.args[0], f"jnp.where({mask}, {scores}, -jnp.inf)")


# ------------------------------------------------------------------------------------- operands and layers


def operand(code: Code, verb: str) -> Iterator[str]:
    """Add or multiply by a name that is in reach: a residual."""
    sign = "*" if verb == "multiplied" else "+"
    statements: list[ast.Assign | ast.Return] = [*code.nodes(ast.Assign), *code.nodes(ast.Return)]
    for node in statements:
        if node.value is None:
            continue
        value: ast.expr = node.value
        for name in code.names_at(node):
            yield code.replaced(value, f"{name} {sign} {code.operand(value)}")
    for call in code.layers:
        for x in call.args[:1]:
            for name in code.names_at(call):
                yield code.replaced(x, f"{name} {sign} {code.operand(x)}")


def operands_of_sum(code: Code, *_: str) -> Iterator[str]:
    """Take a different name for an operand of a sum."""
    for node in code.nodes(ast.BinOp):
        for side in (node.left, node.right) if isinstance(node.op, SUMS) else ():
            if isinstance(side, ast.Name):
                yield from (code.replaced(side, name) for name in code.names_at(node) if name != side.id)


def norm_position(code: Code, *_: str) -> Iterator[str]:
    """Move a norm from after a residual sum to before the branch, or the reverse."""
    for call in code.layers:
        argument = call.args[0] if len(call.args) == 1 else None
        if isinstance(argument, ast.BinOp) and isinstance(argument.op, ast.Add):
            for branch, residual in ((argument.right, argument.left), (argument.left, argument.right)):
                if isinstance(branch, ast.Call) and branch.args:
                    norm = f"{code.text(call.func)}({code.text(branch.args[0])})"
                    inner = f"{code.text(branch.func)}({norm})"
                    yield code.replaced(call, f"{code.text(residual)} + {inner}")
    for node in code.nodes(ast.BinOp):
        branch = node.right
        if isinstance(node.op, ast.Add) and isinstance(branch, ast.Call) and len(branch.args) == 1:
            inner_call = branch.args[0]
            if isinstance(inner_call, ast.Call) and len(inner_call.args) == 1:
                body = f"{code.text(branch.func)}({code.text(inner_call.args[0])})"
                yield code.replaced(node, f"{code.text(inner_call.func)}({code.text(node.left)} + {body})")


def digits(code: Code, *_: str) -> Iterator[str]:
    """Leave out a cast."""
    for call in code.calls("astype"):
        if isinstance(call.func, ast.Attribute):
            yield code.replaced(call, code.text(call.func.value))
    for call in code.calls():
        for keyword in (k for k in call.keywords if k.arg == "dtype"):
            yield code.replaced(keyword.value, "float")


def exchanged(code: Code, one: str, other: str) -> Iterator[str]:
    """Exchange two layers' names where they are called."""
    a, b = one.rpartition(".")[2], other.rpartition(".")[2]
    swapped = {a: b, b: a}
    # Anywhere: one of the two may be called after the place.
    every = [n for n in ast.walk(code.tree) if isinstance(n, ast.Attribute) and n.attr in swapped]
    attributes = [node for node in every if isinstance(node.ctx, ast.Load)]
    texts: dict[ast.AST, str] = {n: f"{code.text(n.value)}.{swapped[n.attr]}" for n in attributes}
    yield code.with_all(texts)
    for pair in itertools.combinations(attributes, 2):
        yield code.with_all({node: texts[node] for node in pair})


def reduction(code: Code, *_: str) -> Iterator[str]:
    yield from factor(code)
    for call in code.calls("mean"):
        if isinstance(call.func, ast.Attribute):
            x = code.text(call.func.value)
            yield code.replaced(call, f"{x}.sum()")
            yield code.replaced(call, f"{x}.sum() / len({x})")


RULES: list[tuple[str, Rule]] = [
    (r"^the operands are (\w+) \(they are (\w+)\)$", operator),
    (r"^(mean|sum|amax|amin) \(it acts as (mean|sum|max|min)\)$", reduction_of_axes),
    (r"^\[(.+)\] \(it acts as \[(.+)\]\)$", index),
    (r"^padding=(\d+|\(.*?\)) \(all of it is (?:before|after) the input\)$", padding),
    (r"^the variance divides by n \(|^epsilon is added to the variance", deviation),
    (r"^the forget gate has no bias of its own", forget_bias),
    (r"^(.+), written by hand \(it acts as (.+)\)$", activation),
    (r"^(\w+)=(\S+?)(?:, written by hand)? \(it acts as (.+)\)$", setting),
    (r"^(?!.*written by hand)(\w+) \(it acts as (\w+(?:\(.*\))?)\)$", activation),
    (r"^(?:the scale is|scores are scaled by) (.+?) \((?:it is|they are scaled by) (.+)\)$", scale),
    (r"^there is no factor|factor 1/2", factor),
    (r"^positions are torch's \(they are shifted by (-?\d+)", shifted),
    (r"positions run upwards|it is reversed", reversed_order),
    (r"^the mask compares by (\S+) \(it compares by (\S+)\)$", comparison),
    (r"polarity|the mask is inverted|it is inverted", inverted),
    (r"^the mask compares with torch's bound \(with one that is ([+-]\d)", bound),
    (r"^both conditions are joined|part of the mask \(it is always met|later keys are seen", condition),
    (r"^is_causal=True|the mask is causal", causal),
    (r"^(\w+) over axis (\S+) \(it acts on", axis),
    (r"^softmax runs over the keys", softmax_axis),
    (r"^(\w+) divides by .*ddof=(\d)$", degrees),
    (r"axis is split into", split),
    (r"\(axes (\d) and (\d) are swapped\)$", transposition),
    (r"^\w+ is done \(it is left out\)$", transposition),
    (r"^the pieces of \w+ are in torch's order|are exchanged, in the calls", pieces),
    (r"^what (\S+) returns: axis (\d+) is read as .*\(it is read as \((.*)\)\)$", factors_of_axis),
    (r"^the other operand is (added|multiplied) \(it is left out\)$", operand),
    (r"^()$", operand),  # no cause is known
    (r"^the sum has torch's operands", operands_of_sum),
    (r"is the norm in front of the branch|^$", norm_position),
    (r"keeps its digits|it is in float64", digits),
    (r"^(\S+) and (\S+) are where torch has them", exchanged),
    (r"^reduction=", reduction),
]  # fmt: skip
