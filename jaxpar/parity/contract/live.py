"""A port's entry points, and a port that is loaded once.

Edits of its functions are put into the loaded module, which takes no time.
"""

from __future__ import annotations

import ast
import inspect
import runpy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ...errors import FileError
from .._comparison import Comparison
from .._sides.flax_side import FlaxSide
from .._trace.judging import against, paired
from .._trace.reading import TraceFile
from .making import ENTRY_POINTS, TRACE
from .plain_run import LineEvents, flax_side


def judged(folder: Path, port: Path, search: bool = True) -> Comparison:
    """Run a port's file and hold it against the contract's trace."""
    sys.path.insert(0, str(port.resolve().parent))
    try:
        module, options = entry_points(runpy.run_path(str(port)), port)
    finally:
        sys.path.pop(0)
    return against(folder / TRACE, module, search=search, **options)


def entry_points(defined: dict[str, Any], port: Path) -> tuple[Any, dict[str, Any]]:
    """Return the model that a port defines, and the options of `against`."""
    if "flax_module" not in defined:
        raise FileError(f"{port}: it does not define flax_module.")
    options = {name: defined[name] for name in ENTRY_POINTS if name in defined}
    for name in ("loss", "optimizer"):
        both = options.get(name)
        if isinstance(both, tuple | list) and not hasattr(both, "_fields"):
            options[name] = both[1]  # of pairs for both frameworks
    module = options.pop("flax_module")
    return module() if makes(module) else module, options


def makes(module: Any) -> bool:
    """Whether an entry point makes the model when it is called."""
    return inspect.isclass(module) or inspect.isfunction(module)


def load(source: str, port: Path, recorded: TraceFile) -> tuple[dict[str, Any], Any]:
    """Run a source as the port's file; return what it defines, and its pair with the trace."""
    defined: dict[str, Any] = {"__name__": "port", "__file__": str(port)}
    sys.path.insert(0, str(port.resolve().parent))
    try:
        exec(compile(source, str(port), "exec"), defined)
    finally:
        sys.path.pop(0)
    module, options = entry_points(defined, port)
    return defined, paired(recorded, module, **options)


class Live:
    """The side of a port's source, and of sources whose functions differ only in their bodies."""

    def __init__(self, source: str, port: Path, recorded: TraceFile):
        self.port, self.recorded = port, recorded
        events: list[tuple[str, Any]] = []
        with LineEvents(str(port), events):
            self.defined, (self.pair, self.batches, _) = load(source, port, recorded)
        self.side, self.lines = flax_side(self.pair), {line for _, line in events}
        self.functions = {
            x.__qualname__: x for x in _functions(self.defined) if x.__code__.co_filename == str(port)
        }
        self.late = {name for name, function in self.functions.items() if self._is_late(name, function)}
        self.skeleton = self._skeleton(ast.parse(source))

    def _is_late(self, name: str, function: FunctionType) -> bool:
        """Whether a function does not run while the file is loaded, which its edit would miss."""
        code = function.__code__
        lines = {line for _, _, line in code.co_lines() if line and line > code.co_firstlineno}
        return not lines & self.lines and not name.endswith("__init__")

    def _skeleton(self, tree: ast.Module) -> str:
        """Return a source without the bodies of the late functions."""
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        methods = [(f"{owner.name}.", node) for owner in classes for node in owner.body]
        for owner_name, node in (*(("", node) for node in tree.body), *methods):
            is_plain = isinstance(node, ast.FunctionDef) and not node.decorator_list
            if isinstance(node, ast.FunctionDef) and is_plain and f"{owner_name}{node.name}" in self.late:
                node.body = [ast.Pass()]
        return ast.dump(tree)

    @contextmanager
    def of(self, source: str) -> Iterator[FlaxSide]:
        """Give the side of an edited source."""
        tree = ast.parse(source)
        compiled = compile(tree, str(self.port), "exec")
        codes = {code.co_qualname: code for code in _codes(compiled)}
        before: dict[FunctionType, CodeType] = {}
        if self._skeleton(tree) != self.skeleton:
            _, (pair, *_) = load(source, self.port, self.recorded)
            yield flax_side(pair)
            return
        try:
            for name, function in self.functions.items():
                if name in codes and codes[name] != function.__code__:
                    before[function] = function.__code__
                    function.__code__ = codes[name]
            yield self.side
        finally:
            for function, code in before.items():
                function.__code__ = code


def _functions(defined: Mapping[str, Any]) -> Iterator[FunctionType]:
    for x in defined.values():
        if isinstance(x, FunctionType):
            yield x
        elif isinstance(x, type) and x.__module__ == "port":
            yield from (method for method in vars(x).values() if isinstance(method, FunctionType))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
