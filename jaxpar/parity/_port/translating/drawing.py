"""Drawing: which of the user's functions and classes draw random numbers, and which build layers that do.

A class that draws has its own stream, as `nnx.Dropout` does. A function takes its caller's. Whatever builds
layers takes `rngs`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from .. import rules
from ..reading.packages import is_users
from ..reading.scope import UNKNOWN, defined_by_user, defined_in_class, definition, is_layer, rule_name
from ..reading.source import Function
from ..rules import CallRule
from .context import Context
from .fragment import Hole

DRAWN = "JAX draws other random numbers"
STREAM = "self.rngs = rngs.dropout.fork()"
Condition = Callable[[Context, ast.Call], bool]


def stream(ctx: Context) -> str:
    """Return the stream of random numbers: the module's attribute, or a function's argument."""
    return "self.rngs" if ctx.kind else "rngs"


def require_stream(ctx: Context) -> None:
    """Refuse a class that draws but has no constructor in which its stream could be made."""
    kinds: tuple[Any, ...] = ctx.kind.__mro__ if ctx.kind else ()
    first = [base for base in kinds if draws_first(ctx, base)]
    # Without any constructor, `definitions` writes one.
    if not any("__init__" in vars(base) or base.__init__ is nn.Module.__init__ for base in first):
        raise Hole("it draws random numbers, by a stream that a constructor of the class would make")


def draws(ctx: Context, target: Any) -> bool:
    """Return whether a user's function needs a stream argument; a method uses its module's stream."""
    if isinstance(target, functools.partial):
        return draws(ctx, target.func)
    if isinstance(target, MethodType) or inspect.isclass(target):
        return False
    if not (defined_by_user(target) or is_static(target)):
        return False
    return _examined(ctx, inspect.unwrap(target), call_draws)


def is_static(target: Any) -> bool:
    """Return whether a function is a static method of a user's class, which has no stream of its own."""
    owner, _, name = getattr(target, "__qualname__", "").rpartition(".")
    kind = getattr(sys.modules.get(getattr(target, "__module__", "")), owner, None)
    return defined_by_user(kind) and isinstance(vars(kind).get(name), staticmethod)


def _examined(ctx: Context, function: FunctionType, condition: Condition) -> bool:
    """Return whether a call in a user's function satisfies a condition."""
    # Not for longer than this port: what a call's target was, another module's run answers otherwise.
    answers, key = ctx.watched.answers, (function, condition)
    if key in answers:
        return answers[key]
    answers[key] = False  # ends the recursion of functions that call themselves
    try:
        source, node = definition(function)
    except (LookupError, OSError, SyntaxError):
        return False
    inner = ctx.elsewhere(source, function.__globals__)
    answers[key] = is_users(source.path) and _any_call(inner, node, condition)
    return answers[key]


def draws_itself(ctx: Context, kind: type | None) -> bool:
    """Return whether a class's own methods draw, ignoring base classes."""
    if kind is None or not defined_by_user(kind):
        return False
    source, node = definition(kind)
    # A class in a different file sees that file's names, and its calls use its own stream.
    inner = ctx.elsewhere(source, vars(inspect.getmodule(kind)), kind)
    methods = [statement for statement in getattr(node, "body", []) if isinstance(statement, Function)]
    return any(_any_call(inner, method, call_draws) for method in methods)


def draws_first(ctx: Context, kind: type | None) -> bool:
    """Return whether a class draws and none of its base classes do."""
    bases = kind.__mro__[1:] if kind else ()
    return draws_itself(ctx, kind) and not any(draws_itself(ctx, base) for base in bases)


def call_draws(ctx: Context, node: ast.Call) -> bool:
    """Return whether a call draws random numbers, directly or in a user's function."""
    if candidates := _rules_of(ctx, node):
        rule = next((rule for rule in candidates if rule.accepts(node)), None)
        return rule is not None and rule.draws(node)
    return any(draws(ctx, target) for target in targets_of(ctx, node))


def function_rules(ctx: Context, node: ast.Call, name: str | None) -> list[CallRule]:
    """Return the rules of a torch function, as it draws in the module's call and elsewhere."""
    is_scalar = bool(node.args) and ast.unparse(node.args[0]) in ("[]", "()")
    table = (
        rules.IN_CALL if name in rules.IN_CALL and ctx.of_call(node) and not is_scalar else rules.FUNCTIONS
    )
    return table.get(name or "", [])


def _rules_of(ctx: Context, node: ast.Call) -> list[CallRule]:
    name = rule_name(ctx.scope.value(node.func))
    if name or not isinstance(node.func, ast.Attribute):
        return function_rules(ctx, node, name)
    site = ctx.site(node.func.value)
    if node.func.attr in rules.INITIAL and not ctx.of_call(node):
        return []  # an initial value
    return rules.METHODS.get(node.func.attr, []) if site is None or site.is_tensor else []


def _any_call(ctx: Context, node: ast.AST, condition: Condition) -> bool:
    inner = ctx.inside(node)
    return any(isinstance(child, ast.Call) and condition(inner, child) for child in ast.walk(node))


def passes_on(ctx: Context, node: ast.Call) -> bool:
    """Return whether a decorator's wrapper calls with its own `**kwargs`, which hold its caller's `rngs`."""
    wrapper = ctx.source.around(node)
    if not isinstance(wrapper, Function) or not isinstance(ctx.source.around(wrapper), Function):
        return False
    named = {k.value.id for k in node.keywords if k.arg is None and isinstance(k.value, ast.Name)}
    return wrapper.args.kwarg is not None and wrapper.args.kwarg.arg in named


def targets_of(ctx: Context, node: ast.Call) -> list[Any]:
    """Return the recorded callables of a call or, if it did not run, the value of the name."""
    site = ctx.site(node.func)
    if site:
        return list(site.objects.values())
    value = ctx.scope.value(node.func)
    return [] if value is UNKNOWN else [value]


def needs_rngs(ctx: Context, target: Any) -> bool:
    """Return whether a callable needs `rngs` to build layers."""
    if isinstance(target, functools.partial):
        return needs_rngs(ctx, target.func)
    if isinstance(target, MethodType):
        target = target.__func__
    if is_layer(target):
        return target.__name__ in rules.ACCEPTING
    if inspect.isclass(target) and issubclass(target, nn.Module):
        base = next(base for base in target.__mro__ if "__init__" in vars(base))
        constructed = defined_by_user(base) or defined_in_class(base) or takes_rngs_as_base(base)
        return constructed or any(draws_itself(ctx, base) for base in target.__mro__)
    if inspect.isclass(target) and (defined_by_user(target) or defined_in_class(target)):  # a plain class
        return needs_rngs(ctx, vars(target).get("__init__"))
    if not isinstance(target, FunctionType | nn.Module) and defined_by_user(type(target)):
        return method_needs_rngs(ctx, vars(type(target)).get("__call__"))
    if not isinstance(target, FunctionType):
        return False
    function = inspect.unwrap(target)
    # `forward` draws from the module's own stream, and nothing passes `rngs` to it.
    is_forward = "." in function.__qualname__ and function.__name__ in ("forward", "__call__")
    return not is_forward and method_needs_rngs(ctx, function)


def method_needs_rngs(ctx: Context, method: Any) -> bool:
    """Return whether a function, or a method of a plain class, builds layers."""
    return isinstance(method, FunctionType) and _examined(ctx, inspect.unwrap(method), _builds_layer)


def takes_rngs_as_base(base: type) -> bool:
    """Return whether the constructor of a base class takes `rngs`."""
    if is_layer(base):
        return base.__name__ in rules.ACCEPTING
    return defined_by_user(base) and issubclass(base, nn.Module)


def builds(ctx: Context, target: Any) -> bool:
    """Return whether a callable makes layers with random initial values, or draws them itself."""
    if target in (torch.randn, torch.rand):
        return True
    return needs_rngs(ctx, target) and (not is_layer(target) or target.__name__ in rules.RANDOM)


def _builds_layer(ctx: Context, node: ast.Call) -> bool:
    if passes_on(ctx, node):
        return False
    drawn = (torch.randn, torch.rand) if ctx.of_call(node) else ()
    return any(builds(ctx, target) and target not in drawn for target in targets_of(ctx, node))
