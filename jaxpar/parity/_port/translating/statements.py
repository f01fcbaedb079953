"""Statements without a file of their own: branches, contexts, imports, returns, and calls for their effects.

A branch that is taken at random raises in the ported file, unless its probability is zero.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import sys
from types import FunctionType

import torch

from .. import rules
from ..reading.packages import is_users
from ..reading.scope import UNKNOWN, defined_by_user, dotted, is_torchs
from .assignments import kept_in_variable
from .blocks import begin_of, dedented, statement, with_blocks
from .caches import is_kept
from .conditions import test
from .constructors import registered_buffer, registered_parameter, super_init
from .context import Context
from .expressions import spliced, text, translated
from .fragment import Hole
from .gradients import is_in_place, stops_gradients, value_of
from .hooks import fills, registered
from .in_place_layers import changed_variable
from .indexing import PARTS, changed_in_place, rebound
from .memory import KEEPS, computed_first, decided, returned_by, stored
from .methods import is_method, is_placed
from .names import LITERALS, reference
from .omitted import is_below, is_drawn_for_chance
from .selected import only_fills, skips

ASSERTIONS = (torch._assert, torch._assert_async)
KEEPING = ("append", "appendleft", "extend", "insert", "add", "update", "setdefault")


@statement(ast.If)
def branch(ctx: Context, node: ast.If) -> str | None:
    if written := _by_chance(ctx, node):
        return written
    if skips(ctx, node):
        return None
    if computed_first(ctx, node) or (conditions := only_fills(ctx, node)) == []:
        return dedented(ctx, node.body, begin_of(node)[1])
    if conditions:
        remaining = " and ".join(test(ctx, x).grouped for x in conditions)
        return with_blocks(dataclasses.replace(ctx, written={**ctx.written, node.test: remaining}), node)
    # torch raises there on certain values; without them both compute the same.
    refuses = all(isinstance(child, ast.Raise) for child in node.body) and not node.orelse
    if refuses and _is_unchecked(ctx, node, node.test):
        return None
    # Rules replace conditions such as `torch.jit.is_scripting()` by constants.
    if (condition := decided(ctx, node)) is False:
        ctx.needs.refused.add((ctx.source.path, node.body[0].lineno))
    condition = test(ctx, node.test).value if condition is None else condition
    if condition is UNKNOWN:
        return with_blocks(ctx, node)
    chosen = node.body if condition else node.orelse
    written = dedented(ctx, chosen, begin_of(node)[1]) if chosen else "pass"
    return None if written == "pass" else written


@statement(ast.For)
def loop(ctx: Context, node: ast.For) -> str:
    """Write a loop; one that only freezes the parameters of a module is a call."""
    owner = node.iter.func if isinstance(node.iter, ast.Call) else None
    if isinstance(owner, ast.Attribute) and ctx.is_module(owner.value) and len(node.body) == 1:
        variable = {"parameters": node.target, "named_parameters": getattr(node.target, "elts", [None])[-1]}
        name = ast.unparse(variable[owner.attr]) if variable.get(owner.attr) else ""
        flag = _trained(node.body[0], name)
        freezing = f"nn.freeze({text(ctx, owner.value)})"
        if isinstance(flag, ast.Constant) and flag.value is False:
            return freezing
        site = ctx.site(flag) if isinstance(flag, ast.Name) else None
        if (
            flag
            and site
            and site.kinds == {bool}
            and True not in site.objects.values()
            and ctx.only_making(node)
        ):
            return f"if not {text(ctx, flag)}:\n{' ' * (node.col_offset + 4)}{freezing}"
    return with_blocks(ctx, node)


def _trained(node: ast.stmt, name: str) -> ast.expr | None:
    """Return the flag of `name.requires_grad = flag` or `name.requires_grad_(flag)`."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"{name}.requires_grad":
        return node.value
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != f"{name}.requires_grad_":
        return None
    return call.args[0] if len(call.args) == 1 else None


@statement(ast.Match)
def match(ctx: Context, node: ast.Match) -> str:
    if ctx.is_tensor(node.subject):
        raise Hole("it decides by data")
    return with_blocks(ctx, node)


@statement(ast.Assert)
def assertion(ctx: Context, node: ast.Assert) -> str | None:
    if any(_compares_identity(ctx, child) for child in ast.walk(node.test)):
        ctx.note(node, "a compiled program has no identity of arrays; left out")
        return None
    return None if _is_unchecked(ctx, node, node.test) else with_blocks(ctx, node)


def _compares_identity(ctx: Context, node: ast.AST) -> bool:
    """Return whether an expression is `query is key` of tensors."""
    is_identity = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)
    return is_identity and all(map(ctx.is_tensor, (node.left, *node.comparators)))  # type: ignore[attr-defined]


def _is_unchecked(ctx: Context, node: ast.stmt, condition: ast.expr) -> bool:
    """Return whether a check is left out: its condition has holes, which are forgotten."""
    if ctx.needs.without_holes(lambda: test(ctx, condition)):
        return False
    note_unchecked(ctx, node)
    return True


def note_unchecked(ctx: Context, node: ast.stmt) -> None:
    """Note that a check of numbers is left out: it changes no result, and JAX traces abstract arrays."""
    ctx.note(node, "what it checks depends on data; left out")


def _by_chance(ctx: Context, node: ast.If) -> str | None:
    """Write `if torch.rand([]) < p` that was never true, also in an `if`: raise if `p` is positive."""
    statements = [child for child in node.body if not is_drawn_for_chance(ctx, child)]
    alone = statements[0] if len(statements) == 1 < len(node.body) and not node.orelse else None
    outer = ""
    if isinstance(alone, ast.If):
        outer, node = f"{test(ctx, node.test).grouped} and ", alone
    check = node.test
    if node.orelse or not (isinstance(check, ast.Compare) and is_below(ctx, check.left)):
        return None
    # The name may have several assignments; each of them must draw.
    assignments = (
        child
        for child in ast.walk(ctx.source.around(node) or node)
        if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == ast.unparse(check.left)
    )
    drawn = [is_drawn_for_chance(ctx, child) for child in assignments]
    if not drawn or not all(drawn):
        return None
    reason = f"{ctx.source.place(node)}: {ctx.source.segment(check)}: it decides by random numbers"
    ctx.needs.note(f"raises where it is not zero: {reason}")
    # A branch with probability zero, such as a disabled LayerDrop, is never taken by either side.
    ctx.needs.refused.add((ctx.source.path, node.body[0].lineno))
    chance = f"{translated(ctx, check.comparators[0]).grouped} > 0"
    indent = " " * (node.col_offset + 4)
    return f"if {outer}{chance}:\n{indent}raise NotImplementedError({reason!r})"


@statement(ast.Import, ast.ImportFrom)
def imported(ctx: Context, node: ast.Import | ast.ImportFrom) -> str | None:
    modules = (
        [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    )
    if all(module.split(".")[0] == "torch" for module in modules):
        return None
    return ctx.source.segment(node) if isinstance(node, ast.Import) else _imported_from(ctx, node)


def _imported_from(ctx: Context, node: ast.ImportFrom) -> str | None:
    """Write an import in a function: what is ported is in the file, under its name or another."""
    if not node.level and not is_users(_file_of(node.module)):
        return ctx.source.segment(node)
    package = ctx.scope.globals.get("__package__", "")
    home = importlib.import_module("." * node.level + (node.module or ""), package)
    lines = []
    for alias in node.names:
        name, value = alias.asname or alias.name, getattr(home, alias.name, UNKNOWN)
        if defined_by_user(value) or is_torchs(value) or isinstance(value, LITERALS):
            written = repr(value) if isinstance(value, LITERALS) else reference(ctx, node, value, name).text
            lines += [f"{name} = {written}"] * (written != name)
        else:
            lines.append(f"from {home.__name__} import {alias.name}" + f" as {name}" * (name != alias.name))
    return f"\n{' ' * node.col_offset}".join(lines) or None


def _file_of(module: str | None) -> str:
    spec = importlib.util.find_spec(module) if module and module in sys.modules else None
    return (spec and spec.origin) or ""


@statement(ast.With)
def with_statement(ctx: Context, node: ast.With) -> str | None:
    expressions = [item.context_expr for item in node.items]
    names = [dotted(ctx.scope.value(e.func)) if isinstance(e, ast.Call) else "" for e in expressions]
    column = begin_of(node)[1]
    sites = [site for e in expressions if (site := ctx.site(e))]
    if any(getattr(x, "_enabled", False) for site in sites for x in site.objects.values()):
        raise Hole("it computes in another type; give jaxpar.train_step a Precision")
    expressions = [e for e in expressions if not _is_without_meaning(ctx, e)]
    if not expressions:
        return dedented(ctx, node.body, column)
    if len(expressions) == 1 and stops_gradients(ctx, expressions[0]):
        return dedented(ctx.stopping(), node.body, column)
    if len(expressions) < len(node.items) or any(name.startswith("torch.") for name in names):
        raise Hole("there is no rule for this context")
    return with_blocks(ctx, node)


def _is_without_meaning(ctx: Context, node: ast.expr) -> bool:
    """Return whether a context was one of torch's that mean nothing in JAX, or none at all."""
    if isinstance(node, ast.Call) and dotted(ctx.scope.value(node.func)) in rules.CONTEXTS:
        return True
    site = ctx.site(node)
    return site is not None and all(
        kind is contextlib.nullcontext or dotted(kind) in rules.CONTEXTS for kind in site.kinds
    )


@statement(ast.Return)
def returned(ctx: Context, node: ast.Return) -> str:
    if node.value and ctx.stops:
        return f"return {value_of(ctx, node.value).text}"
    return spliced(ctx, node).text


@statement(ast.Expr)
def call_statement(ctx: Context, node: ast.Expr) -> str | None:
    call = node.value
    if not isinstance(call, ast.Call):
        return text(ctx, call)
    if memory := stored(ctx, node):
        return kept_in_variable(ctx, node, *memory)
    if is_placed(ctx, call):
        return None
    if hook := registered(ctx, call):
        return hook
    if variables := returned_by(ctx, call):
        return None if ctx.only_making(node) else f"{variables} = {text(ctx, call)}"
    if any(ctx.scope.value(call.func) is check for check in ASSERTIONS):
        if _is_unchecked(ctx, node, call.args[0]):
            return None
        message = f", {text(ctx, call.args[1])}" if len(call.args) > 1 else ""
        return f"assert {test(ctx, call.args[0]).text}{message}"
    if isinstance(call.func, ast.Attribute):
        if isinstance(call.func.value, ast.Call) and call.func.attr == "__init__":
            return super_init(ctx, call)
        if written := _method_statement(ctx, call, call.func) or _more_arguments(ctx, call, call.func):
            return written
    variable = rebound(ctx, node) or changed_variable(ctx, node)
    return f"{variable} = {text(ctx, call)}" if variable else text(ctx, call)


def _more_arguments(ctx: Context, call: ast.Call, func: ast.Attribute) -> str | None:
    """Write a library's `self.register(width=width)`, which adds to the arguments that are kept."""
    attribute = ctx.watched.kept_arguments.get(ctx.kind) if ctx.kind else None
    site = ctx.site(func)
    if attribute is None or site is None or call.args or ctx.in_call(call):
        return None
    names, owners = {keyword.arg for keyword in call.keywords}, ctx.modules(func.value)
    is_kept_there = bool(owners) and all(names <= {*getattr(owner, attribute)} for owner in owners)
    files = [x.__code__.co_filename for x in site.objects.values() if isinstance(x, FunctionType)]
    if not names or not is_kept_there or len(files) < len(site.objects) or any(map(is_users, files)):
        return None  # the user's own method, which is in the file
    return f"vars(self.{attribute}).update({', '.join(text(ctx, keyword) for keyword in call.keywords)})"


def _method_statement(ctx: Context, call: ast.Call, func: ast.Attribute) -> str | None:
    """Write a method's call that stores something; None for any other call."""
    name, owner = func.attr, ctx.site(func.value)
    frozen = ast.unparse(call) == f"{ast.unparse(func)}(False)" and not ctx.in_call(call)
    if name == "requires_grad_" and frozen and (variable := translated(ctx, func.value).variable):
        return f"{variable} = nnx.Variable({variable}[...])"
    if name == "register_buffer":
        return registered_buffer(ctx, call, func)
    if name == "register_parameter":
        return registered_parameter(ctx, call, func)
    if name.startswith("register_") and name.endswith("hook"):
        raise Hole("JAX has no hooks")
    if name in KEEPING and ctx.in_call(call) and is_kept(ctx, func.value) and not fills(ctx, func.value):
        raise Hole(KEEPS)
    if is_in_place(name) and (owner.is_tensor if owner else is_method(name) or name in PARTS):
        return changed_in_place(ctx, call, func)
    return None
