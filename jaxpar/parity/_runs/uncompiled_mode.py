"""Torch's compiler, importing which takes as long as importing torch."""

from __future__ import annotations

import inspect
import sys
from typing import Any, TypeVar

Mode = TypeVar("Mode", bound=type)


def without_compiler(mode: Mode) -> Mode:
    """Leave torch's compiler unimported while nobody else uses it.

    torch wraps `__torch_dispatch__` of every mode, so that models compiled by `torch.compile` run the method
    uncompiled; the wrapper imports the compiler at the first operation. Where nothing has imported it, no
    model is compiled, and the method is called as written. An option of torch's modes would do.
    """
    wrapped: Any = mode.__dict__["__torch_dispatch__"]
    written = inspect.unwrap(wrapped)

    def dispatch(self: Any, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        call = wrapped if "torch._dynamo" in sys.modules else written
        return call(self, operation, types, args, kwargs)

    mode.__torch_dispatch__ = dispatch  # type: ignore[attr-defined]
    return mode
