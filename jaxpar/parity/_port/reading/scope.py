"""Scope: what the names in the source refer to, as far as that can be determined without running it."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import importlib
import inspect
import sys
from inspect import isfunction
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from jaxpar.nn import channels_first

from ..rules import FUNCTIONS, IN_CALL, NAMES, SILENT
from .packages import is_users
from .runtime import library_name, of_library
from .source import Function, Source, defined, source_of
from .watching import uncached

UNKNOWN = object()


@dataclasses.dataclass(frozen=True)
class Scope:
    """A module's names, and which of them a function shadows with local ones."""

    globals: dict[str, Any]
    local: frozenset[str] = frozenset()

    def inside(self, function: Function | ast.Lambda | ast.AST) -> Scope:
        return Scope(self.globals, self.local | bound_in(function))

    def value(self, node: ast.AST) -> Any:
        """Return the value of a dotted name; UNKNOWN if it is local, or not a name."""
        if isinstance(node, ast.Name):
            if node.id in self.local:
                return UNKNOWN
            return uncached(self.globals.get(node.id, getattr(builtins, node.id, UNKNOWN)))
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            if isinstance(owner, ModuleType) or inspect.isclass(owner):
                return uncached(getattr(owner, node.attr, UNKNOWN))
        return UNKNOWN

    def registry(self, node: ast.AST) -> Any:
        """Return a name's object if its class is a user's and has items, as a registry of layers has."""
        value = self.value(node)
        has_items = hasattr(type(value), "__getitem__") and defined_by_user(type(value))
        return value if has_items and not isinstance(value, nn.Module) else None

    def filled(self, node: ast.AST) -> dict[Any, Any] | None:
        """Return a file's dict that begins empty, and has classes and functions by now, as decorators add."""
        value = self.value(node) if isinstance(node, ast.Name) else None
        entries = value.values() if isinstance(value, dict) else [None]
        if not all(inspect.isclass(x) or isfunction(x) for x in entries):
            return None
        module = sys.modules.get(self.globals.get("__name__", ""))
        constant = assignment(module, ast.unparse(node)) if module else None
        return value if constant is not None and _is_empty(constant[1]) else None


def _is_empty(statement: ast.stmt) -> bool:
    """Return whether a statement assigns `{}`, `dict()` or `OrderedDict()`."""
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Call) and not value.args and not value.keywords


@functools.cache
def bound_in(function: ast.AST) -> frozenset[str]:
    # Python scopes by function, not by line: a name that is assigned once is local in all lines.
    names = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, Function | ast.MatchAs | ast.MatchStar) and node is not function:
            names |= {node.name or "_"}
    return frozenset(names)


def rule_name(value: Any) -> str | None:
    # A class's method, as Embedding.from_pretrained, is a new object at each access, and its function is not.
    is_torchs_own = is_layer(getattr(value, "__self__", None))
    name = _rule_names().get(id(value.__func__ if is_torchs_own else value))
    fallback = library_name(value) if of_library(value) else None
    return fallback if name is None and fallback in FUNCTIONS else name


@functools.cache
def _rule_names() -> dict[int, str]:
    """Map ids to torch names; aliases, as `torch.relu` and `torch.nn.functional.relu`, to the first one."""
    names: dict[int, str] = {}
    for name in (*NAMES, *FUNCTIONS, *IN_CALL, *(name for name in SILENT if name.startswith("torch."))):
        # By identity, because users import functions under names of their own. Numbers have no identity:
        # torch.pi is math.pi.
        value = getattr(_get(name), "__func__", _get(name))
        if value is not UNKNOWN and not isinstance(value, float | int | bool):
            names.setdefault(id(value), name)
    for name in dir(nn):
        if inspect.isclass(getattr(nn, name)) and issubclass(getattr(nn, name), nn.Module):
            names.setdefault(id(getattr(nn, name)), f"torch.nn.{name}")
    return names


def _get(torch_name: str) -> Any:
    value: Any = torch
    for name in torch_name.split(".")[1:]:
        value = getattr(value, name, UNKNOWN)
    return value


def dotted(value: Any) -> str:
    """`torch.nn.init.normal_`."""
    value = getattr(value, "__wrapped__", value)
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def applied_function(value: Any) -> type | None:
    """Return the user's class of which a value is the `apply`, an operation with a gradient of its own."""
    owner = getattr(value, "__self__", None)
    is_function = inspect.isclass(owner) and issubclass(owner, torch.autograd.Function)
    return owner if is_function and defined_by_user(owner) else None


def is_torchs(value: Any) -> bool:
    # Functions such as Square.apply are built in C in newer releases and lose their module.
    owner = getattr(value, "__self__", None)
    if inspect.isclass(owner) and issubclass(owner, torch.autograd.Function):
        return True
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return True
    name = type(value).__module__ if home is None else home
    return str(name).split(".")[0] in ("torch", "functorch")


def is_layer(value: Any) -> bool:
    """Return whether a value is a class of torch's modules, and none that register_parametrization makes."""
    is_module = inspect.isclass(value) and issubclass(value, nn.Module)
    return is_module and is_torchs(value) and value.__module__ != parametrize.__name__


def jaxpar_layer(kind: type) -> Any:
    return getattr(channels_first, kind.__name__, None) if is_layer(kind) else None


def defined_by_user(value: Any) -> bool:
    if not (inspect.isclass(value) or isinstance(value, FunctionType)):
        return False
    module = sys.modules.get(value.__module__)
    path = getattr(module, "__file__", None)
    if isinstance(value, FunctionType):
        path = value.__code__.co_filename
        if not is_users(path):  # a user's function, wrapped by torch's decorator
            path = inspect.unwrap(value).__code__.co_filename
    return bool(path and is_users(path) and "." not in value.__qualname__)


def defined_in_class(value: Any) -> bool:
    """Return whether a user's class is defined in the body of another, with which it is written."""
    outer = sys.modules.get(getattr(value, "__module__", ""))
    for name in getattr(value, "__qualname__", "").split(".")[:-1]:
        outer = getattr(outer, name, None)
    return inspect.isclass(value) and inspect.isclass(outer) and defined_by_user(outer)


def definition(value: Any) -> tuple[Source, ast.stmt]:
    if isinstance(value, FunctionType):
        value = inspect.unwrap(value)
        source = source_of(value.__code__.co_filename)
        node = source.function(value.__code__)
        if node is None:
            raise LookupError(f"{value.__qualname__} has no source")
        return source, node
    try:
        source = source_of(inspect.getfile(value))
    except TypeError as error:  # a class or function of C
        raise LookupError(f"{value} has no source") from error
    if value.__name__ in source.classes:
        return source, source.classes[value.__name__]
    raise LookupError(f"{value.__qualname__} has no source")


def has_definition(value: Any) -> bool:
    """Return whether a class or function has a definition; a namedtuple only has an assignment."""
    try:
        return bool(definition(value))
    except (LookupError, OSError, TypeError):
        return False


def assignment(module: ModuleType, name: str) -> tuple[Source, ast.stmt, ModuleType] | None:
    """Return the only assignment of a module's constant, following imports to the defining module."""
    path = getattr(module, "__file__", None)
    if not path or not is_users(path):
        return None
    source = source_of(path)
    assignments = [
        statement
        for statement in source.tree.body
        if name in defined(statement) and not isinstance(statement, Function | ast.ClassDef)
    ]
    if assignments:
        return (source, assignments[0], module) if len(assignments) == 1 else None
    for statement in source.tree.body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    home = importlib.import_module(
                        "." * statement.level + (statement.module or ""), module.__package__
                    )
                    return assignment(home, alias.name)
    return None


@functools.cache
def is_set_by_functions(source: Source, name: str) -> bool:
    """Return whether the file assigns a name more than once, or in a function by `global`."""
    by_global = any(name in node.names for node in ast.walk(source.tree) if isinstance(node, ast.Global))
    return by_global or is_assigned(source, name, at_least=2)


@functools.cache
def is_assigned(source: Source, name: str, at_least: int = 1) -> bool:
    """Return whether statements of the file, outside of functions, assign a name."""
    assignments = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        if source.around(node) is None
    ]
    return len(assignments) >= at_least


@functools.cache
def import_of(source: Source, name: str) -> str | None:
    for statement in ast.walk(source.tree):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name.split(".")[0]) == name:
                    what = alias.name + (f" as {alias.asname}" if alias.asname else "")
                    if isinstance(statement, ast.Import):
                        return f"import {what}"
                    return f"from {statement.module} import {what}" if not statement.level else None
    return None


@functools.cache
def imported_relatively(source: Source) -> frozenset[str]:
    imports = (x for x in ast.walk(source.tree) if isinstance(x, ast.ImportFrom) and x.level)
    return frozenset(alias.asname or alias.name for x in imports for alias in x.names)


def import_of_config(kind: type) -> str:
    library = kind.__module__.partition(".")[0]
    top = getattr(sys.modules[library], kind.__name__, None) is kind
    return f"from {library if top else kind.__module__} import {kind.__name__}"
