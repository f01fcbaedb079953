"""Modes: what a class needs beside torch's lines, because it reads `self.training` or drops by a function.

torch's modules have a mode and a generator of random numbers. Here `self.deterministic` is the mode, which
`train()` and `eval()` set, and `self.rngs` the stream of keys.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable

from torch import nn
from torch.nn import functional

from .scope import Scope, defined_by_user, definition

MODE, STREAM = "self.deterministic = False", "self.rngs = rngs.dropout.fork()"
RATES = {functional.dropout: ("p", 1, True), functional.scaled_dot_product_attention: ("dropout_p", 4, False)}
"""Functions that drop: their rate's name and place, and whether they drop without one."""


def needed(kind: type | None) -> list[str]:
    """The statements that a class needs behind `super().__init__()`, and none of its base classes has."""
    return [line for line, uses in ((MODE, reads_training), (STREAM, drops)) if _first(kind, uses)]


def has_stream(kind: type | None) -> bool:
    """Whether a class, or one of its base classes, has a stream of keys."""
    return any("__init__" in vars(each) and _first(each, drops) for each in (kind.__mro__ if kind else ()))


def _first(kind: type | None, uses: Callable[[type], bool]) -> bool:
    return kind is not None and uses(kind) and not any(map(uses, kind.__mro__[1:]))


def reads_training(kind: type) -> bool:
    return _any(kind, lambda node, _: isinstance(node, ast.Attribute) and node.attr == "training")


def drops(kind: type) -> bool:
    return _any(kind, lambda node, scope: isinstance(node, ast.Call) and drops_by(node, scope))


def drops_by(node: ast.Call, scope: Scope) -> bool:
    """Whether a call is one of torch's functions that drop, with a rate that may be above 0."""
    try:
        name, place, always = RATES[scope.value(node.func)]
    except (KeyError, TypeError):
        return False
    named = {each.arg: each.value for each in node.keywords}
    rate = node.args[place] if len(node.args) > place else named.get(name)
    if rate is None:
        return always
    return not (isinstance(rate, ast.Constant) and rate.value == 0)


def _any(kind: type, fits: Callable[[ast.AST, Scope], bool]) -> bool:
    """Whether there is such a node in a module class of the user."""
    if not (defined_by_user(kind) and issubclass(kind, nn.Module)):
        return False
    _, node = definition(kind)
    scope = Scope(vars(sys.modules[kind.__module__]))
    return any(fits(each, scope) for each in ast.walk(node))
