"""Entry points: the model and the options of `against` that a port's file defines."""

from __future__ import annotations

import inspect
import runpy
import sys
from pathlib import Path
from typing import Any

from ...errors import FileError
from .._comparison import Comparison
from .._trace.judging import against
from .making import ENTRY_POINTS, TRACE


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
