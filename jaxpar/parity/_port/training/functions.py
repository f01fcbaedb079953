"""The functions that a user passed to a scheduler: their source and the definitions they refer to."""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import textwrap
from types import FunctionType, ModuleType
from typing import Any

from ....errors import PortError
from ..reading.scope import is_torchs
from ..reading.source import end_of, source_of, start_of

NUMBERS = (bool, int, float, str, type(None))


class Functions:
    """Values as Python writes them, with the import lines by the name bound.

    `definitions` are functions and constants that they refer to, in an order that Python can run.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.definitions: dict[str, str] = {}

    def text(self, value: Any) -> str:
        if isinstance(value, list | tuple):
            return repr(list(value))
        if isinstance(value, NUMBERS):
            return repr(value)
        if isinstance(value, functools.partial):
            self.imports["partial"] = "from functools import partial"
            arguments = [self.text(argument) for argument in (value.func, *value.args)]
            arguments += [f"{name}={self.text(argument)}" for name, argument in value.keywords.items()]
            return f"partial({', '.join(arguments)})"
        if not isinstance(value, FunctionType):
            raise PortError(
                f"jaxpar.parity.port: {type(value).__name__} in a scheduler has no text; make it a function."
            )
        return self._function(value)

    def _function(self, function: FunctionType) -> str:
        try:
            if function.__name__ == "<lambda>":
                text = lambda_text(function)
                self._referred(function, ast.parse(f"({text})"))
                return text
            text = textwrap.dedent(inspect.getsource(function)).rstrip()
        except (OSError, LookupError, SyntaxError) as error:
            raise PortError(
                f"jaxpar.parity.port: the source of {function.__qualname__}, which a scheduler calls, cannot "
                "be read; write it in a file."
            ) from error
        if function.__name__ not in self.definitions:
            self._referred(function, ast.parse(text))
            # After its references: the lines run in the order of this dict.
            self.definitions[function.__name__] = text
        return function.__name__

    def _referred(self, function: FunctionType, tree: ast.AST) -> None:
        closed = inspect.getclosurevars(function)
        referenced = {**closed.globals, **closed.nonlocals}
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for name in sorted(names & referenced.keys()):
            if name not in self.definitions and name != function.__name__:
                self._name(name, referenced[name], function)
        # getclosurevars lists attributes as unbound, too: `pi` for `math.pi`.
        unbound = sorted(closed.unbound & names - set(dir(builtins)))
        if unbound:
            raise PortError(
                f"jaxpar.parity.port: {function.__qualname__} refers to {unbound[0]}, which is nothing."
            )

    def _name(self, name: str, value: Any, function: FunctionType) -> None:
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(value, NUMBERS):
            self.definitions[name] = f"{name} = {value!r}"
        elif is_torchs(value) or home is None:
            raise PortError(
                f"jaxpar.parity.port: {function.__qualname__}, which a scheduler calls, refers to {name}, a "
                f"{type(value).__name__}, for which there is no text; use numbers and Python's math."
            )
        elif isinstance(value, ModuleType):
            self.imports[name] = f"import {home}" + ("" if home == name else f" as {name}")
        elif isinstance(value, FunctionType) and value.__name__ == name:
            self._function(value)
        else:
            name_in_module = getattr(value, "__name__", name)
            self.imports[name] = f"from {home} import {name_in_module}" + (
                "" if name_in_module == name else f" as {name}"
            )


def lambda_text(function: FunctionType) -> str:
    """The columns of a lambda's instructions identify it among several on a line."""
    source = source_of(function.__code__.co_filename)
    positions = (instruction.positions for instruction in dis.get_instructions(function))
    # Instructions without source, such as RESUME, have an empty position.
    starts = [(at.lineno, at.col_offset) for at in positions if at and (at.end_col_offset or 0) > 0]
    lambdas = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Lambda)
        and starts
        and all(start_of(node.body) <= start <= end_of(node.body) for start in starts)
    ]
    if not lambdas:
        raise LookupError(function.__qualname__)
    return " ".join(source.segment(max(lambdas, key=start_of)).split())
