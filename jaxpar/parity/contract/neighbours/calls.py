"""Neighbours of calls: a sibling, no call, other arguments and keywords, two calls exchanged."""

from __future__ import annotations

import ast
import inspect

from ..source import Code, last_name, module_of
from .edit import Edits, Surroundings, exchanges, is_method, is_of_self
from .numbers import FACTOR
from .operators import SIGNS

ACTIVATIONS = (
    "relu", "gelu", "silu", "sigmoid", "tanh", "elu", "selu", "celu", "softplus", "leaky_relu", "relu6",
    "hard_tanh", "hard_sigmoid", "hard_silu", "soft_sign", "log_sigmoid", "softmax", "log_softmax",
    "identity",
)  # fmt: skip
SIBLINGS = (
    ACTIVATIONS,
    ("mean", "sum", "max", "min", "prod", "std", "var", "median", "logsumexp", "any", "all", "linalg.norm"),
    ("maximum", "minimum", "add", "subtract", "multiply", "divide", "where"),
    ("argmax", "argmin", "argsort", "sort"), ("cumsum", "cumprod", "sum"),
    ("exp", "log", "log1p", "expm1", "exp2", "log2", "log10"),
    ("sqrt", "square", "reciprocal", "abs"), ("rsqrt", "sqrt"),
    ("sin", "cos", "tan"), ("floor", "ceil", "round", "trunc", "rint"),
    ("tril", "triu"), ("zeros", "ones", "full", "empty"), ("zeros_like", "ones_like"),
    ("concatenate", "stack", "hstack", "vstack"), ("repeat", "tile"), ("dot", "matmul", "inner", "outer"),
    ("any", "all"), ("logical_and", "logical_or", "logical_xor"), ("roll", "flip"),
    ("avg_pool", "max_pool"), ("split", "array_split"), ("swapaxes", "moveaxis", "transpose"),
    ("softmax_cross_entropy", "softmax_cross_entropy_with_integer_labels", "sigmoid_binary_cross_entropy"),
    ("l2_loss", "squared_error", "huber_loss", "log_cosh"), ("normal", "uniform"),
    ("LayerNorm", "RMSNorm"), ("take", "take_along_axis"), ("arange", "linspace"),
)  # fmt: skip
NUMERIC = "jnp.", "jax.nn.", "nnx.", "jax.lax.", "np."
MOST_OTHER_CALLS = 12


def calls(code: Code, node: ast.AST, surroundings: Surroundings) -> Edits:
    if not isinstance(node, ast.Call) or last_name(node.func) in ("super", "Rngs", "__init__"):
        return
    yield from _siblings(code, node, surroundings)
    yield from _left_out(code, node, surroundings)
    yield from _arguments(code, node)
    yield from _keywords(code, node, surroundings)
    yield from _other_order(code, node, surroundings)


def _siblings(code: Code, call: ast.Call, surroundings: Surroundings) -> Edits:
    name, is_of_value = last_name(call.func), is_method(call, surroundings.modules)
    for group in SIBLINGS:
        for other in group if name in group else ():
            if other == name:
                continue
            cost = 0 if other in surroundings.hints or group is not ACTIVATIONS else 1
            if is_of_value:
                assert isinstance(call.func, ast.Attribute)
                yield cost, {call.func: f"{code.operand(call.func.value)}.{other}"}
                continue
            for prefix in dict.fromkeys([module_of(call.func), *NUMERIC]):
                if surroundings.object(ast.parse(f"{prefix}{other}", mode="eval").body) is not None:
                    yield cost, {call.func: f"{prefix}{other}"}
                    break


def _left_out(code: Code, call: ast.Call, surroundings: Surroundings) -> Edits:
    if is_method(call, surroundings.modules):
        assert isinstance(call.func, ast.Attribute)
        yield 0, {call: code.operand(call.func.value)}
    for position, x in enumerate(call.args):
        if not isinstance(x, ast.Starred):
            yield min(position, 1), {call: code.text(x)}


def _arguments(code: Code, call: ast.Call) -> Edits:
    plain = [x for x in call.args if not isinstance(x, ast.Starred)]
    yield from ((0, texts) for texts in exchanges(code, plain))
    if len(plain) == 3:  # where(mask, x, y) and einsum("...", a, b)
        a, b, c = plain
        yield 1, {a: code.text(b), b: code.text(c), c: code.text(a)}
        yield 1, {a: code.text(c), b: code.text(a), c: code.text(b)}
    texts = [code.text(x) for x in call.args]
    keywords = [_keyword(code, keyword) for keyword in call.keywords]
    function = code.text(call.func)
    for i in range(len(texts)):
        yield 1, {call: f"{function}({', '.join([*texts[:i], *texts[i + 1 :], *keywords])})"}
    for i, keyword in enumerate(call.keywords):
        if keyword.arg != "rngs":
            yield 0, {call: f"{function}({', '.join([*texts, *keywords[:i], *keywords[i + 1 :]])})"}


def _keyword(code: Code, keyword: ast.keyword) -> str:
    return f"{keyword.arg}={code.text(keyword.value)}" if keyword.arg else f"**{code.text(keyword.value)}"


def _keywords(code: Code, call: ast.Call, surroundings: Surroundings) -> Edits:
    """Add a keyword of the function's signature."""
    name = last_name(call.func)
    function = surroundings.object(call.func)
    if is_method(call, surroundings.modules):
        function = getattr(__import__("numpy").ndarray, name, None) and surroundings.object(
            ast.parse(f"jnp.{name}", mode="eval").body
        )
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    present = {keyword.arg for keyword in call.keywords}
    texts = [*(code.text(x) for x in call.args), *(_keyword(code, k) for k in call.keywords)]
    positional = len(call.args) + is_method(call, surroundings.modules)
    for i, parameter in enumerate(parameters.values()):
        if parameter.name in present or (i < positional and parameter.kind is not parameter.KEYWORD_ONLY):
            continue
        for cost, value in _values(parameter.name, parameter.default, surroundings):
            more = ", ".join([*texts, f"{parameter.name}={value}"])
            yield cost, {call: f"{code.text(call.func)}({more})"}


def _values(name: str, default: object, surroundings: Surroundings) -> list[tuple[int, str]]:
    cost = 0 if name in surroundings.hints or name.rstrip("s") in surroundings.hints else 1
    if isinstance(default, bool):
        return [(cost, str(not default))]
    if isinstance(default, float):
        numbers = [f"{default / 10:.12g}", f"{default * 10:.12g}", f"{1 - default:.12g}"]
        return [(cost, FACTOR), *((cost, x) for x in (*surroundings.torchs_numbers, *numbers))]
    if name in ("axis", "axes", "axis1", "axis2"):
        return [(cost, x) for x in ("-1", "1", "0", "2", "-2", "(1, 2)", "(2, 3)", "(1, 2, 3)")]
    if name in ("ddof", "k", "padding", "strides", "start", "correction"):
        return [(cost, x) for x in ("1", "-1", "2", "0")]
    return []


def _other_order(code: Code, call: ast.Call, surroundings: Surroundings) -> Edits:
    """Exchange the functions of two calls: a(b(x)) for b(a(x)), and of x.a().b() the methods."""
    for inner in call.args:
        if isinstance(inner, ast.Call) and code.text(inner.func) != code.text(call.func):
            arguments = ", ".join([code.text(x) for x in call.args if x is not inner])
            of_inner = [*map(code.text, inner.args), *(_keyword(code, k) for k in inner.keywords)]
            of_outer = "".join(f", {_keyword(code, k)}" for k in call.keywords)
            if of_inner:
                first = ", ".join(filter(None, (of_inner[0], arguments)))
                body = ", ".join([f"{code.text(call.func)}({first}{of_outer})", *of_inner[1:]])
                yield 0, {call: f"{code.text(inner.func)}({body})"}
        if isinstance(inner, ast.BinOp) and len(call.args) == 1:  # f(a + b) for f(a) + b, a + f(b)
            yield from _distributed(code, call, inner, code.text(call.func))
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute):
        first, second = (_after_receiver(code, x) for x in (receiver, call))
        if not is_of_self(receiver.func):
            yield 0, {call: f"{code.operand(receiver.func.value)}{second}{first}"}
    function = surroundings.owner(call, ast.FunctionDef)
    others = [x for x in ast.walk(function) if isinstance(x, ast.Call)] if function else []
    for other in others[:MOST_OTHER_CALLS]:
        is_different = code.text(other.func) != code.text(call.func)
        if is_different and len(other.args) == len(call.args) and other.lineno >= call.lineno:
            yield 1, {call.func: code.text(other.func), other.func: code.text(call.func)}


def _distributed(code: Code, call: ast.Call, inner: ast.BinOp, function: str) -> Edits:
    sign, first_operand, right = SIGNS[type(inner.op)], code.operand(inner.left), code.operand(inner.right)
    yield 0, {call: f"({function}({code.text(inner.left)}) {sign} {right})"}
    yield 0, {call: f"({first_operand} {sign} {function}({code.text(inner.right)}))"}
    for outer, residual in ((inner.left, right), (inner.right, first_operand)):
        if isinstance(outer, ast.Call) and len(outer.args) == 1:  # x + a(norm(x)) for norm(x + a(x))
            branch = f"{code.text(outer.func)}({function}({code.text(outer.args[0])}))"
            yield 0, {call: f"({residual} {sign} {branch})"}


def _after_receiver(code: Code, call: ast.Call) -> str:
    """Return `.mean(1)` of x.mean(1)."""
    assert isinstance(call.func, ast.Attribute)
    arguments = [*map(code.text, call.args), *(_keyword(code, k) for k in call.keywords)]
    return f".{call.func.attr}({', '.join(arguments)})"
