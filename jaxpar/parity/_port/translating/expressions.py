"""Expressions: the registry by node type, and what applies to every type.

An expression without a rule keeps its text, line breaks and comments included; only the parts with a
counterpart are replaced. An expression without a counterpart becomes `hole("models.py:12: x.sum() > 0 ...")`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from ..reading.runtime import Beyond
from ..reading.scope import UNKNOWN
from ..reading.source import end_of, start_of
from ..rules import SHAPE, CallRule
from .context import Context, Registry
from .drawing import require_stream, stream
from .fragment import Fragment, Hole, joined, level, parsed

expression = Registry()
"""`@expression(ast.Call)` registers a function from a context and a call to its Fragment."""


def text(ctx: Context, node: ast.AST, form: str = "") -> str:
    """Write a node in JAX; `form` is an argument's form in `rules`."""
    fragment = translated(ctx, node)
    if form == "n":
        # `unbiased=False` becomes `ddof=0`.
        flag = fragment.value
        return str(int(flag)) if isinstance(flag, bool) else f"int({fragment.text})"
    if form == "t":
        return _as_tuple(ctx, node, fragment.text)
    if form == "s":
        return _as_several(ctx, node, fragment.text)
    return fragment.grouped if form == "a" else fragment.text


def _as_several(ctx: Context, node: ast.AST, written: str) -> str:
    if isinstance(node, ast.List | ast.Tuple):
        return written[1:-1].strip().removesuffix(",")
    site = ctx.site(node)
    return f"*{written}" if site and site.kinds <= {list, tuple} else written


def _as_tuple(ctx: Context, node: ast.AST, written: str) -> str:
    if isinstance(node, ast.Starred):
        return text(ctx, node.value, "t")
    if isinstance(node, ast.List):
        return list_as_tuple(node, written)
    site = ctx.watched.site(ctx.source, node)  # not a variable's: it can be a list elsewhere and a shape here
    if site and site.kinds & {list, torch.Size} and not isinstance(node, ast.Tuple):
        return f"tuple({written})"
    return written


def list_as_tuple(node: ast.List, written: str) -> str:
    elements = written[1:-1].rstrip()
    return f"({elements}{',' if len(node.elts) == 1 and not elements.endswith(',') else ''})"


def translated(ctx: Context, node: ast.AST) -> Fragment:
    """Translate a node; the axes of images with their channels last are adapted."""
    images = ctx.needs.images
    if images is None or not isinstance(node, ast.expr):
        return _in_torchs_order(ctx, node)
    key = ctx.source.key(node)
    if key in images.replaced:
        parts = images.replaced[key]
        return parsed("".join(part if isinstance(part, str) else text(ctx, part) for part in parts))
    fragment = _in_torchs_order(ctx, node)
    move = images.moved.get(key)
    return Fragment(f"jnp.moveaxis({fragment.text}, {move[0]}, {move[1]})") if move else fragment


def _in_torchs_order(ctx: Context, node: ast.AST) -> Fragment:
    if depends_on_machine(ctx, node):
        site = ctx.site(node)
        assert site is not None
        return resolved(ctx, node, *site.objects.values())
    try:
        return expression.get(type(node), spliced)(ctx, node)
    except Hole as reason:
        if not isinstance(node, ast.expr):
            raise
        # An annotation can be left out, whereas a call of `hole` would run with the definition.
        if ctx.in_annotation(node):
            raise Beyond(str(reason)) from reason
        return hole(ctx, node, str(reason))


MACHINE = ("torch.cuda", "torch.backends", "torch.distributed", "torch.mps", "torch.xpu", "torch.version")
"""Modules of torch whose functions and flags tell what a process runs on."""
FLAGS = (
    *("is_cuda", "is_mps", "is_xpu", "is_sparse", "is_nested", "is_quantized", "is_mkldnn", "is_meta"),
    "is_contiguous",
)
"""What a tensor is stored on or as: JAX's arrays have one form."""


def depends_on_machine(ctx: Context, node: ast.AST) -> bool:
    """Return whether an expression was one truth value, and only depends on devices and modes of torch."""
    site = ctx.site(node) if isinstance(node, ast.Compare | ast.Call | ast.Attribute) else None
    if site is None or site.kinds != {bool} or len(site.objects) != 1:
        return False
    return any(_is_of_machine(ctx, part) for part in ast.walk(node) if isinstance(part, ast.expr))


def _is_of_machine(ctx: Context, node: ast.expr) -> bool:
    site = ctx.site(node)
    if site and site.kinds == {torch.device}:
        return True
    if isinstance(node, ast.Attribute) and node.attr in FLAGS:
        return ctx.is_tensor(node.value)
    value = ctx.scope.value(node)
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
    return home.startswith(MACHINE) or getattr(value, "__name__", "") == "is_autocast_enabled"


def resolved(ctx: Context, node: ast.AST, value: object) -> Fragment:
    """Write an expression's value in torch, as a constant."""
    ctx.needs.note(f"resolved: {ctx.source.place(node)}: {ctx.source.segment(node)} is {value}")
    return Fragment(str(value), value=value)


def hole(ctx: Context, node: ast.AST, reason: str) -> Fragment:
    """Write an expression that raises with torch's line."""
    # A line that did not run may be of no use in JAX, so its hole does not fail the port.
    message = f"{ctx.source.place(node)}: {ctx.code(node)}: {reason}"
    if ctx.ran(node) and not (isinstance(node, ast.Name) and node.id in ctx.unbound):
        ctx.needs.hole(message)
    else:
        ctx.needs.note(f"did not run, and has no counterpart: {message}")
    ctx.needs.written_holes += 1
    return Fragment(f"hole({message!r})")


def spliced(ctx: Context, node: ast.AST, part_of: Callable[[ast.AST], Fragment] | None = None) -> Fragment:
    """Write a node's own text, with its parts translated, by `part_of` if it is passed."""
    parts = sorted(positioned(node), key=start_of)
    fragments = [part_of(part) if part_of else translated(ctx, part) for part in parts]
    written, at = "", start_of(node)
    for part, fragment in zip(parts, fragments, strict=True):
        written += ctx.source.between(at, start_of(part)) + joined(node, part, fragment)
        at = end_of(part)
    written += ctx.source.between(at, end_of(node))
    # `nn.Parameter(x) if bias else None` makes a variable, too. The condition is the second of the parts.
    makes_variable = isinstance(node, ast.IfExp) and fragments[0].makes_variable
    value = _value(node, written, [fragment.value for fragment in fragments])
    return Fragment(written, level(node), value, makes_variable=makes_variable)


def _value(node: ast.AST, written: str, values: list[Any]) -> Any:
    """Return the value of an operation on constants; `and` and `or` can be decided by one operand."""
    if isinstance(node, ast.BoolOp):
        decisive = isinstance(node.op, ast.Or)
        if any(value is not UNKNOWN and bool(value) is decisive for value in values):
            return decisive
        return UNKNOWN if UNKNOWN in values else not decisive
    # Without names and calls, none of the user's code runs here.
    constant = isinstance(node, ast.UnaryOp | ast.Compare | ast.Tuple) and UNKNOWN not in values
    try:
        return eval(f"({written}\n)", {"__builtins__": {}}) if constant else UNKNOWN
    except Exception:  # such as `"a" < 1`, which raises in torch as well
        return UNKNOWN


def positioned(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that have a position in the text."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr_context | ast.operator | ast.unaryop | ast.boolop | ast.cmpop):
            continue
        if hasattr(child, "lineno"):
            yield child
        else:
            yield from positioned(child)


def root_of(node: ast.AST) -> ast.AST:
    """Return the `a` of `a.b.c`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def pieces(ctx: Context, parts: list[ast.AST], at: tuple[int, int]) -> str:
    """Write parts that follow a position, with the source's text between them."""
    written = ""
    for part in sorted(parts, key=start_of):
        written += ctx.source.between(at, start_of(part)) + text(ctx, part)
        at = end_of(part)
    return written


def name_of(func: ast.expr) -> str:
    """Return the last part of a callable's name; "" without one."""
    return getattr(func, "attr", getattr(func, "id", ""))


def argument(node: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return an argument that may be passed by position or by name."""
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    return named.get(name, node.args[position] if len(node.args) > position else None)


def is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def arguments_of(ctx: Context, node: ast.Call) -> str:
    """Write the arguments of a call, without its parentheses."""
    parts = [part for part in (*node.args, *node.keywords) if not is_placement(ctx, part)]
    if len(parts) == 1 and isinstance(parts[0], ast.GeneratorExp):
        return text(ctx, parts[0])[1:-1]  # the parentheses of a call are the generator's
    if len(parts) < len(node.args) + len(node.keywords):
        return ", ".join(text(ctx, part) for part in parts)
    return pieces(ctx, parts, min(map(start_of, parts), default=(0, 0)))


def is_placement(ctx: Context, part: ast.AST) -> bool:
    """Return whether an argument of a constructor's call is `**kwargs` that only has a device and a type."""
    if not isinstance(part, ast.keyword) or part.arg is not None or ctx.in_call(part):
        return False
    site = ctx.site(part.value)
    return bool(site and site.keys and site.keys <= {"device", "dtype"})


def extended(ctx: Context, node: ast.Call, extra: str) -> Fragment:
    """Write a call with one more keyword argument, if there is any."""
    arguments = [*node.args, *node.keywords]
    if any(is_placement(ctx, part) for part in arguments):
        parts = ", ".join(filter(None, [arguments_of(ctx, node), extra]))
        return Fragment(f"{text(ctx, node.func)}({parts})")
    if not extra:
        return spliced(ctx, node)
    if not arguments:
        return Fragment(f"{text(ctx, node.func)}({extra})")
    last = max(arguments, key=end_of)
    if len(arguments) == 1 and isinstance(last, ast.GeneratorExp):
        return Fragment(f"{text(ctx, node.func)}({text(ctx, last)}, {extra})")
    # A trailing comma and a comment after the last argument stay where they are.
    written = pieces(ctx, [*positioned(node)], start_of(node))
    return Fragment(f"{written}, {extra}{ctx.source.between(end_of(last), end_of(node))}")


def by_rule(
    ctx: Context, node: ast.Call, candidates: Sequence[CallRule], what: str, owner: ast.expr | None = None
) -> Fragment:
    """Write a call by the first rule that accepts its arguments.

    Args:
      what: the call's name in a refusal.
      owner: the tensor, if the call is its method.

    Raises:
      Hole: no rule accepts them.
    """
    for rule in candidates:
        written = rule.apply(node, functools.partial(text, ctx), owner, stream(ctx))
        if written is not None:
            if ctx.kind and rule.draws(node):
                require_stream(ctx)
            if rule.note == SHAPE and not ctx.only_making(node):
                raise Hole(SHAPE)
            if rule.note and rule.note != SHAPE:
                ctx.note(node, rule.note)
            return parsed(written)
    raise Hole(f"there is no rule for {what} with these arguments")
