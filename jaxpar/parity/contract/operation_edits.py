"""Edits of operations and their axes: rules of `plain_edits`."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from .source import Code, last_name, module_of, with_keyword

TRANSPOSING = "swapaxes", "transpose", "moveaxis", "permute_dims", "matrix_transpose"
AXES = (1, 2), (2, 3), (1, 3), (0, 1)

OPERATORS: dict[str, tuple[type[ast.operator], str, str]] = {
    "added": (ast.Add, "+", "add"),
    "subtracted": (ast.Sub, "-", "subtract"),
    "multiplied": (ast.Mult, "*", "multiply"),
    "divided": (ast.Div, "/", "divide"),
}


def operator(code: Code, right: str, wrong: str) -> Iterator[str]:
    """Join operands by the right operator, or by its function."""
    (kind, _, instead_of), (_, sign, function) = OPERATORS[wrong], OPERATORS[right]
    for node in code.nodes(ast.BinOp):
        if isinstance(node.op, kind):
            yield code.replaced(node, f"{code.operand(node.left)} {sign} {code.operand(node.right)}")
    for call in code.calls(instead_of):
        yield code.replaced(call.func, f"{module_of(call.func)}{function}")


def reduction_of_axes(code: Code, right: str, wrong: str) -> Iterator[str]:
    """Call the right reduction with the same axes."""
    for call in code.calls(wrong, f"a{wrong}"):
        yield code.replaced(call.func, f"{module_of(call.func)}{right.removeprefix('a')}")


def index(code: Code, right: str, wrong: str) -> Iterator[str]:
    """Read the right element or range, where the wrong one is read."""
    pairs = {w: r for r, w in zip(right.split(", "), wrong.split(", "), strict=True) if r != w}
    for node in code.nodes(ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            if (text := ast.unparse(part)) in pairs:
                yield code.replaced(part, pairs[text])


def padding(code: Code, right: str) -> Iterator[str]:
    """Pad both sides alike, where one side has all."""
    sizes = ast.literal_eval(right)
    sizes = sizes if isinstance(sizes, tuple) else (sizes,)
    every = [node for node in ast.walk(code.tree) if isinstance(node, ast.Call | ast.Tuple)]
    for node in every:
        keywords = node.keywords if isinstance(node, ast.Call) else []
        for keyword in keywords:
            if keyword.arg == "padding":
                yield code.replaced(keyword.value, f"[{', '.join(f'({size}, {size})' for size in sizes)}]")
    for node in every:
        for size in sizes:
            if ast.unparse(node) in (f"({2 * size}, 0)", f"(0, {2 * size})"):
                yield code.replaced(node, f"({size}, {size})")


def deviation(code: Code, *_: str) -> Iterator[str]:
    """Divide a variance by n, and add an epsilon to it instead of to its root."""
    divisors: dict[ast.AST, str] = {
        keyword.value: "0"
        for call in code.calls("var", "std")
        for keyword in call.keywords
        if keyword.arg in ("ddof", "correction")
    }
    sums = [node for node in code.nodes(ast.BinOp) if isinstance(node.op, ast.Add)]
    root_sums: list[dict[ast.AST, str]] = [
        {node: f"({code.operand(node.left)} ** 2 + {code.text(node.right)}) ** 0.5"} for node in sums
    ]
    yield from (code.with_all(texts) for texts in ([divisors] if divisors else []))
    yield from (code.with_all(texts) for texts in root_sums)
    for texts in root_sums:
        node = next(iter(texts))
        if divisors and not any(child in divisors for child in ast.walk(node)):
            yield code.with_all(divisors | texts)


def forget_bias(code: Code, *_: str) -> Iterator[str]:
    """Leave out a 1 that is added to a gate."""
    for node in code.nodes(ast.BinOp):
        if isinstance(node.op, ast.Add):
            for one, other in ((node.right, node.left), (node.left, node.right)):
                if isinstance(one, ast.Constant) and one.value == 1:
                    yield code.replaced(node, code.operand(other))
    for call in code.calls():
        for keyword in call.keywords:
            if keyword.arg == "forget_bias":
                yield code.replaced(keyword.value, "0.0")


def axis(code: Code, function: str, right: str) -> Iterator[str]:
    """Reduce over the right axis: of the function that is named, or else of any."""
    for call in [*code.calls(function), *code.calls()]:
        named = [k.value for k in call.keywords if k.arg in ("axis", "axes", "dim")]
        for number in named or [x for x in call.args if _is_integer(x)]:
            yield code.replaced(number, right)
        if not named and last_name(call.func) == function:
            yield with_keyword(code.source, call, "axis", right)


def _is_integer(x: ast.expr) -> bool:
    x = x.operand if isinstance(x, ast.UnaryOp) else x
    return isinstance(x, ast.Constant) and isinstance(x.value, int)


def softmax_axis(code: Code, *_: str) -> Iterator[str]:
    yield from axis(code, "softmax", "-1")


def degrees(code: Code, function: str, right: str) -> Iterator[str]:
    for call in code.calls(function, "std", "var"):
        yield with_keyword(code.source, call, "ddof", right)


def split(code: Code, *_: str) -> Iterator[str]:
    """Exchange two sizes of a reshape, and leave out the transposition that follows."""
    by_call = [edits for call in code.calls("reshape") if (edits := [*_exchanged_sizes(code, call)])]
    # The same mistake in several calls, as for query, key and value.
    for same in zip(*by_call, strict=False) if len(by_call) > 1 else ():
        yield code.with_all({node: text for edit in same for node, text in edit.items()})
    for edit in itertools.chain(*by_call):
        yield code.with_all(edit)


def _exchanged_sizes(code: Code, call: ast.Call) -> Iterator[dict[ast.AST, str]]:
    for a, b in itertools.pairwise(call.args):
        sizes = [code.text({a: b, b: a}.get(x, x)) for x in call.args]
        text = f"{code.text(call.func)}({', '.join(sizes)})"
        outer = code.parents.get(code.parents.get(call, call))
        attribute = code.parents.get(call)
        if (
            isinstance(attribute, ast.Attribute)
            and attribute.attr in TRANSPOSING
            and isinstance(outer, ast.Call)
        ):
            yield {outer: text}
        yield {call: text}


def transposition(code: Code, a: str | None = None, b: str | None = None) -> Iterator[str]:
    """Leave a transposition out, or add one: before a reshape, or around a layer."""
    pairs = ((int(a), int(b)),) if a and b else AXES
    for call in code.calls(*TRANSPOSING):
        if isinstance(call.func, ast.Attribute) and last_name(call.func.value) not in ("jnp", "np", "numpy"):
            yield code.replaced(call, code.text(call.func.value))
        elif call.args:
            yield code.replaced(call, code.text(call.args[0]))
    arguments = [x for call in code.layers for x in call.args[:1]]
    receivers = [c.func.value for c in code.calls("reshape") if isinstance(c.func, ast.Attribute)]
    for node in [*receivers, *code.layers, *arguments]:
        for i, j in pairs:
            yield code.replaced(node, f"{code.operand(node)}.swapaxes({i}, {j})")
    for call in code.layers:
        for i, j in pairs if call.args else ():
            inner = f"{code.operand(call.args[0])}.swapaxes({i}, {j})"
            arguments_after = "".join(f", {code.text(x)}" for x in (*call.args[1:], *call.keywords))
            yield code.replaced(call, f"{code.text(call.func)}({inner}{arguments_after}).swapaxes({i}, {j})")


def pieces(code: Code, *_: str) -> Iterator[str]:
    """Take the pieces of a split in a different order."""
    for node in code.nodes(ast.Assign):
        for target in node.targets:
            names = target.elts if isinstance(target, ast.Tuple) else []
            for order in itertools.permutations(names) if len(names) in (2, 3) else ():
                yield code.with_all({old: code.text(new) for old, new in zip(names, order, strict=True)})


def factors_of_axis(code: Code, layer: str, axis: str, wrong: str) -> Iterator[str]:
    """Read the factors of a layer's last axis in torch's order."""
    first, second, *_ = (sizes := wrong.split(", "))
    for call in code.layers:
        if last_name(call.func) == layer.rpartition(".")[2] and call.args:
            rows, i = f"{code.operand(call.args[0])}.shape[:-1]", int(axis)
            split_sizes = ", ".join([second, first, *sizes[2:]])
            turned = f".reshape(*{rows}, {split_sizes}).swapaxes({i}, {i + 1}).reshape(*{rows}, -1)"
            yield code.replaced(call, code.text(call) + turned)
