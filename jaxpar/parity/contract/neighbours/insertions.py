"""Neighbours that are longer: an expression gets one more call, term, factor, index or condition."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools

from ..source import Code
from .calls import ACTIVATIONS
from .edit import Edits, Surroundings, is_of_self
from .numbers import FACTOR

UNARY = (
    ("sqrt", "square", "exp", "log", "abs", "tanh", "sin", "cos", "log1p", "reciprocal", "cumsum", "arange"),
    ("floor", "round", "sort", "argmax", "argsort", "flip", "tril", "triu", "zeros_like", "ones_like"),
)
REDUCTIONS = "mean", "sum", "max", "min", "std", "var", "prod"
AXES = "-1", "1", "0", "2", "(1, 2)", "-2", "(2, 3)"
INDICES = "[:, None]", "[..., None]", "[None]", "[None, :]", "[::-1]", "[0]", "[:, 0]", "[:, -1]", "[:, ::-1]"
TURNS = (1, 2), (-1, -2), (2, 3), (0, 1), (1, 3)
MOST_IN_A_CHAIN = 4
MASKS = "", "[:, None]", "[..., None]", "[:, None, None]", "[:, None, None, :]"


def insertions(code: Code, node: ast.AST, surroundings: Surroundings) -> Edits:
    if not isinstance(node, ast.expr) or not surroundings.is_value(node):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield 0, {node: code.operand(node.value)}
        return
    text, operand = code.text(node), code.operand(node)
    if isinstance(node, ast.Subscript):
        yield 0, {node: code.operand(node.value)}
    yield from _terms(code, node, operand, surroundings)
    yield from _called(node, text, operand, surroundings)
    yield from _unread_layers(node, text, operand, surroundings)
    yield from _methods(node, operand, surroundings)
    yield from _conditions(code, node, operand, surroundings)


def _terms(code: Code, node: ast.expr, operand: str, surroundings: Surroundings) -> Edits:
    function = surroundings.owner(node, ast.FunctionDef)
    is_whole = isinstance(code.parents.get(node), ast.Assign | ast.Return)
    for name in surroundings.names_at(node) if function else ():
        yield 0 if is_whole else 1, {node: f"({name} + {operand})"}
        yield 1, {node: f"({name} * {operand})"}
        for axes in ("[..., None]", "[:, None]"):
            yield 1 if "mask" in name else 2, {node: f"({operand} * {name}{axes})"}
        yield 2, {node: f"({operand} - {name})"}
        yield 2, {node: f"({operand} / {name})"}
    for name in surroundings.attributes_at(node):
        cost = 0 if name not in surroundings.read else 2
        yield cost, {node: f"({operand} + self.{name})"}
        yield cost, {node: f"({operand} * self.{name})"}
    yield 1, {node: f"({operand} * {FACTOR})"}
    yield 2, {node: f"({operand} + {FACTOR})"}
    for form in ("-{}", "({} + 1)", "({} - 1)", "({} // 2)", "(2 * {})", "(1 - {})", "{}**2", "{}**-1"):
        yield 1 if form.startswith(("-", "({} ")) else 2, {node: form.format(operand)}


def _called(node: ast.expr, text: str, operand: str, surroundings: Surroundings) -> Edits:
    for name in surroundings.attributes_at(node):
        if not is_of_self(node):
            yield (0 if name not in surroundings.read else 2), {node: f"self.{name}({text})"}
    for name in (*ACTIVATIONS, *itertools.chain(*UNARY)):
        prefix = surroundings.module_with(name)
        cost = 1 if name in surroundings.hints or name in ACTIVATIONS[:5] else 2
        if prefix:
            yield cost, {node: f"{prefix}{name}({text})"}
            if name in surroundings.hints or name in ACTIVATIONS:
                yield cost + 2, {node: f"{prefix}{name}({FACTOR} * {operand})"}
    if "jax" in surroundings.modules:
        yield 2, {node: f"jax.lax.stop_gradient({text})"}
        yield (1 if "rsqrt" in surroundings.hints else 2), {node: f"jax.lax.rsqrt({text})"}
    functions = {name for name, x in surroundings.defined.items() if _is_of_port(x)}
    for name in sorted(functions):
        yield 1, {node: f"{name}({text})"}


def _unread_layers(node: ast.expr, text: str, operand: str, surroundings: Surroundings) -> Edits:
    """Call layers that the class binds and never calls: one by one, or all one after another."""
    names = [name for name in surroundings.attributes_at(node) if name not in surroundings.read]
    classes = {name: surroundings.class_of(node, name) for name in names}
    calls = {name: vars(layer).get("__call__") for name, layer in classes.items() if layer is not None}
    layers = {name: call for name, call in calls.items() if call is not None}
    if is_of_self(node):
        return
    for name, call in layers.items():
        masks = [f"{x}{axes}" for x in surroundings.names_at(node) for axes in MASKS]
        for keyword in inspect.signature(call).parameters:
            for mask in masks if "mask" in keyword else ():
                yield 1, {node: f"self.{name}({text}, {keyword}={mask})"}
        for activation in ("", *(f"{surroundings.module_with(x)}{x}" for x in ACTIVATIONS)):
            yield 1, {node: f"{activation}(self.{name}({text}))"}
            for x in surroundings.names_at(node):  # a gate, or a second branch
                yield 2, {node: f"({activation}(self.{name}({x})) * {operand})"}
                yield 2, {node: f"({activation}(self.{name}({x})) + {operand})"}
    if 1 < len(layers) <= MOST_IN_A_CHAIN:
        for order in itertools.permutations(layers):
            chain = functools.reduce(lambda inner, name: f"self.{name}({inner})", order, text)
            yield 0, {node: chain}
            yield 0, {node: f"({operand} + {chain})"}


def _is_of_port(x: object) -> bool:
    return getattr(x, "__module__", None) == "port" and not isinstance(x, type) and callable(x)


def _methods(node: ast.expr, operand: str, surroundings: Surroundings) -> Edits:
    if isinstance(node, ast.Compare):
        return
    for name, axis, keeps in itertools.product(REDUCTIONS, AXES, (", keepdims=True", "")):
        cost = 1 if name in surroundings.hints and axis in AXES[:3] else 2
        yield cost, {node: f"{operand}.{name}({axis}{keeps})"}
    for name in ("mean", "sum"):
        yield 1, {node: f"{operand}.{name}()"}
    for i, j in TURNS:
        yield 1, {node: f"{operand}.swapaxes({i}, {j})"}
    for index in INDICES:
        yield 2, {node: f"{operand}{index}"}
    if isinstance(node, ast.Call) and is_of_self(node.func) and len(node.args) == 1:
        for i, j in TURNS:  # a layer that mixes a different axis
            inner = f"({ast.unparse(node.args[0])}).swapaxes({i}, {j})"
            yield 1, {node: f"{ast.unparse(node.func)}({inner}).swapaxes({i}, {j})"}


def _conditions(code: Code, node: ast.expr, operand: str, surroundings: Surroundings) -> Edits:
    """Invert a mask, add a condition to it, or mask the scores of a softmax."""
    parent = code.parents.get(node)
    is_outermost = not isinstance(parent, ast.BinOp | ast.Compare)
    is_mask = isinstance(node, ast.Compare) or (
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr)
    )
    is_keyword = isinstance(parent, ast.keyword) and "mask" in str(parent.arg)
    is_argument = isinstance(parent, ast.Call) or is_keyword
    if is_mask or is_argument:
        yield 0 if is_mask else 1, {node: f"~{operand}"}
    if is_mask and is_outermost:
        compared = [x for x in ast.walk(node) if isinstance(x, ast.Compare)]
        more = [f"({code.text(x.left)} {sign} 0)" for x in compared for sign in (">=", "<=", ">", "<")]
        more += [f"{name}{axes}" for name in surroundings.names_at(node) for axes in MASKS]
        for condition, sign in itertools.product(more, "&|"):
            yield 1 + (sign == "|"), {node: f"({operand} {sign} {condition})"}
    if not isinstance(parent, ast.Call) or "softmax" not in ast.unparse(parent.func):
        return
    if parent.args[:1] == [node] and "jnp" in surroundings.modules:
        for mask in (f"jnp.tri(*{operand}.shape[-2:], dtype=bool)", *surroundings.names_at(node)):
            for axes in MASKS:
                yield 1, {node: f"jnp.where({mask}{axes}, {code.text(node)}, -jnp.inf)"}
