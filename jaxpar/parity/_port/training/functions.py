"""Functions of the step that a user gave a scheduler, with their own text and what they refer to."""

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
    """Values as Python writes them.

    Attributes:
      imports: the lines that the functions need.
      definitions: functions and constants that they refer to, by name, in an order that Python can run.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.definitions: dict[str, str] = {}

    def text(self, value: Any) -> str:
        """A number, a list of numbers, or a function.

        Raises:
          PortError: there is no text for it.
        """
        if isinstance(value, list | tuple):
            return repr(list(value))
        if isinstance(value, NUMBERS):
            return repr(value)
        if isinstance(value, functools.partial):
            self.imports["partial"] = "from functools import partial"
            said = [self.text(each) for each in (value.func, *value.args)]
            said += [f"{name}={self.text(each)}" for name, each in value.keywords.items()]
            return f"partial({', '.join(said)})"
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
            self.definitions[function.__name__] = text
        return function.__name__

    def _referred(self, function: FunctionType, tree: ast.AST) -> None:
        """Notes what the names in a function stand for."""
        closed = inspect.getclosurevars(function)
        known = {**closed.globals, **closed.nonlocals}
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for name in sorted(names & known.keys()):
            if name not in self.definitions and name != function.__name__:
                self._name(name, known[name], function)
        missing = sorted(closed.unbound & names - set(dir(builtins)))
        if missing:
            raise PortError(
                f"jaxpar.parity.port: {function.__qualname__} refers to {missing[0]}, which is nothing."
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
            own = getattr(value, "__name__", name)
            self.imports[name] = f"from {home} import {own}" + ("" if own == name else f" as {name}")


def lambda_text(function: FunctionType) -> str:
    """The text of a lambda. Of several on one line the columns of its instructions say which it is.

    Raises:
      LookupError: it is not in its file.
    """
    source = source_of(function.__code__.co_filename)
    found = [at for each in dis.get_instructions(function) if (at := each.positions) is not None]
    # Instructions that stand for no text have an empty place.
    places = [(at.lineno, at.col_offset) for at in found if at.end_col_offset and at.end_col_offset > 0]
    around = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Lambda)
        and places
        and all(start_of(node.body) <= place <= end_of(node.body) for place in places)
    ]
    if not around:
        raise LookupError(function.__qualname__)
    return " ".join(source.segment(max(around, key=start_of)).split())
