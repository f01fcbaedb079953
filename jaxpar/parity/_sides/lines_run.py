"""LinesRun: which parts of a model's own code a run leaves out, such as the branches it does not take."""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .constants import libraries

RAISING = {"RAISE_VARARGS", "RERAISE", "PUSH_EXC_INFO", "LOAD_ASSERTION_ERROR"}
JUMPS = ("JUMP", "POP_JUMP", "RETURN", "FOR_ITER", "SEND", *RAISING)
INSTALLED = {"site-packages", "dist-packages"}  # also another environment's, on PYTHONPATH
VALUES = ("LOAD_FAST", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_DEREF", "LOAD_NAME", "STORE", "CALL", "BINARY_OP")


class LinesRun:
    """Collects the instructions that run inside of a `with`, of the functions of `files` and of scripts.

    Does nothing under a debugger or a measurement of coverage, which use the same hook of Python.
    """

    def __init__(self, files: frozenset[str]):
        self.files, self.run = files, dict[CodeType, set[int]]()
        folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        self._others = (*libraries(), "<", *(folder for folder in folders if folder))
        self._is_watched: dict[str, bool] = {}

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        if self._before is None:
            sys.settrace(self._called)

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self._is_watched:
            is_installed = name.startswith(self._others) or not INSTALLED.isdisjoint(Path(name).parts)
            self._is_watched[name] = name in self.files or not is_installed
        if not self._is_watched[name]:
            return None
        offsets = self.run.setdefault(frame.f_code, set())

        def each(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "opcode":
                offsets.add(frame.f_lasti)
            return each

        # The function first: Python 3.13 heeds `f_trace_opcodes` only of a frame that has one when it is set.
        frame.f_trace, frame.f_trace_lines = each, False
        frame.f_trace_opcodes = True
        return each

    def left_out(self) -> list[str]:
        """Return the places, `net.py:12`, of code that did not run, but for code that raises an error."""
        lines = {
            (code.co_filename.rpartition("/")[2], line): None
            for code, offsets in self.run.items()
            for block in _blocks(code)
            if not any(i.offset in offsets for i in block) and (line := _line_of(block))
        }
        return [f"{name}:{line}" for name, line in sorted(lines)]


def _blocks(code: CodeType) -> Iterator[list[dis.Instruction]]:
    """Yield instructions that run together or not at all."""
    block: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if instruction.is_jump_target and block:
            yield block
            block = []
        block.append(instruction)
        if instruction.opname.startswith(JUMPS):
            yield block
            block = []
    if block:
        yield block


def _line_of(block: list[dis.Instruction]) -> int | None:
    """Return the line of a block that computes something, and does not raise."""
    names = {i.opname for i in block}
    if names & RAISING or not any(name.startswith(VALUES) for name in names):
        return None
    return next((i.positions.lineno for i in block if i.positions and i.positions.lineno), None)


def files_of(model: Any) -> frozenset[str]:
    """Return the files that define a torch or NNX model's layers."""
    layers = (layer for _, layer in model.named_modules()) if hasattr(model, "named_modules") else ()
    kinds = {kind for layer in (model, *layers) for kind in type(layer).__mro__}
    names = {getattr(sys.modules.get(kind.__module__), "__file__", None) for kind in kinds}
    return frozenset(name for name in names if name and not name.startswith(libraries()) and "." in name)
