"""Scope: what the names in a piece of the source mean, as far as that is known without running it."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import importlib
import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from jaxpar.nn import channels_first

from ..rules import FUNCTIONS, NAMES, SILENT
from .runtime import of_library
from .runtime import word as library_word
from .source import Function, Source, source_of
from .watching import is_users

UNKNOWN = object()


@dataclasses.dataclass(frozen=True)
class Scope:
    """Where names are looked up: in a module, and which of them are local to a function instead."""

    globals: dict[str, Any]
    local: frozenset[str] = frozenset()

    def inside(self, function: Function | ast.Lambda | ast.AST) -> Scope:
        return Scope(self.globals, self.local | bound_in(function))

    def value(self, node: ast.AST) -> Any:
        """What a dotted name stands for; UNKNOWN if it is local, or no name."""
        if isinstance(node, ast.Name):
            if node.id in self.local:
                return UNKNOWN
            return self.globals.get(node.id, getattr(builtins, node.id, UNKNOWN))
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            if isinstance(owner, ModuleType) or inspect.isclass(owner):
                return getattr(owner, node.attr, UNKNOWN)
        return UNKNOWN


def bound_in(function: ast.AST) -> frozenset[str]:
    """The names that are assigned somewhere in a function, its arguments among them."""
    found = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, Function) and node is not function:
            found.add(node.name)
    return frozenset(found)


def word_of(value: Any) -> str | None:
    """The name of torch under which the rules know a value."""
    try:
        found = _words().get(id(value))
    except TypeError:
        return None
    own = library_word(value) if of_library(value) else None
    return own if found is None and own in FUNCTIONS else found


@functools.cache
def _words() -> dict[int, str]:
    """Both `torch.relu` and `torch.nn.functional.relu` are there; aliases lead to the first name."""
    found: dict[int, str] = {}
    for word in (*NAMES, *FUNCTIONS, *(word for word in SILENT if word.startswith("torch."))):
        value = _get(word)
        if value is not UNKNOWN and not isinstance(value, float | int | bool):
            found.setdefault(id(value), word)
    for name in dir(nn):
        if inspect.isclass(getattr(nn, name)) and issubclass(getattr(nn, name), nn.Module):
            found.setdefault(id(getattr(nn, name)), f"torch.nn.{name}")
    return found


def _get(word: str) -> Any:
    value: Any = torch
    for name in word.split(".")[1:]:
        value = getattr(value, name, UNKNOWN)
    return value


def dotted(value: Any) -> str:
    """`torch.nn.init.normal_`: where a function or class comes from."""
    value = getattr(value, "__wrapped__", value)
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def is_torchs(value: Any) -> bool:
    """Whether a value is torch's: a function, a class, a module, or one of its constants."""
    owner = getattr(value, "__self__", None)  # of Square.apply, which a newer torch has from C
    if inspect.isclass(owner) and issubclass(owner, torch.autograd.Function):
        return True
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return True
    name = type(value).__module__ if home is None else home
    return str(name).split(".")[0] in ("torch", "functorch")


def is_layer(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, nn.Module) and is_torchs(value)


def own_layer(kind: type) -> Any:
    """Our layer of the name of torch's."""
    return getattr(channels_first, kind.__name__, None) if is_layer(kind) else None


def defined_by_user(value: Any) -> bool:
    """Whether a class or function is defined at the top of one of the user's files."""
    if not (inspect.isclass(value) or isinstance(value, FunctionType)):
        return False
    module = sys.modules.get(value.__module__)
    path = getattr(module, "__file__", None)
    if isinstance(value, FunctionType):
        path = value.__code__.co_filename
    return bool(path and is_users(path) and "." not in value.__qualname__)


def definition(value: Any) -> tuple[Source, ast.stmt]:
    """The file and the definition of a class or function of the user."""
    if isinstance(value, FunctionType):
        value = inspect.unwrap(value)
        source = source_of(value.__code__.co_filename)
        node = source.function(value.__code__)
        if node is None:
            raise LookupError(f"{value.__qualname__} has no source")
        return source, node
    source = source_of(inspect.getfile(value))
    for each in ast.walk(source.tree):
        if isinstance(each, ast.ClassDef) and each.name == value.__name__:
            return source, each
    raise LookupError(f"{value.__qualname__} has no source")


def has_definition(value: Any) -> bool:
    """Whether a class or function has one; a namedtuple has an assignment."""
    try:
        return bool(definition(value))
    except (LookupError, OSError, TypeError):
        return False


def assignment(module: ModuleType, name: str) -> tuple[Source, ast.stmt, ModuleType] | None:
    """Where a constant of a module is assigned, if it is once; through imports to the module that has it."""
    path = getattr(module, "__file__", None)
    if not path or not is_users(path):
        return None
    source = source_of(path)
    found = [each for each in source.tree.body if _assigns(each, name)]
    if found:
        return (source, found[0], module) if len(found) == 1 else None
    for each in source.tree.body:
        if isinstance(each, ast.ImportFrom):
            for alias in each.names:
                if (alias.asname or alias.name) == name:
                    home = importlib.import_module("." * each.level + (each.module or ""), module.__package__)
                    return assignment(home, alias.name)
    return None


def _assigns(node: ast.stmt, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def import_of(source: Source, name: str) -> str | None:
    """The line that imports a name into a file, for this name alone."""
    for each in ast.walk(source.tree):
        if isinstance(each, ast.Import | ast.ImportFrom):
            for alias in each.names:
                if (alias.asname or alias.name.split(".")[0]) == name:
                    what = alias.name + (f" as {alias.asname}" if alias.asname else "")
                    if isinstance(each, ast.Import):
                        return f"import {what}"
                    return f"from {each.module} import {what}" if not each.level else None
    return None


def import_of_config(kind: type) -> str:
    """The line that imports a class of settings, from the top of its library if it is there."""
    library = kind.__module__.partition(".")[0]
    top = getattr(sys.modules[library], kind.__name__, None) is kind
    return f"from {library if top else kind.__module__} import {kind.__name__}"
