"""Modes of torch without an import of its compiler, which takes as long as the import of torch."""

from __future__ import annotations

import inspect
import sys
from typing import Any, TypeVar

Mode = TypeVar("Mode", bound=type)


def without_compiler(mode: Mode) -> Mode:
    """Call `__torch_dispatch__` as written while torch's compiler is not imported.

    torch wraps the method, so that it runs uncompiled in models compiled by `torch.compile`; the wrapper
    imports the compiler at the first operation. Before an import of the compiler no model is compiled. An
    option of torch's modes would do.
    """
    wrapped: Any = mode.__dict__["__torch_dispatch__"]
    written = inspect.unwrap(wrapped)

    def dispatch(self: Any, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        call = wrapped if "torch._dynamo" in sys.modules else written
        return call(self, operation, types, args, kwargs)

    mode.__torch_dispatch__ = dispatch  # type: ignore[attr-defined]
    return mode
