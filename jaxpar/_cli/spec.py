"""Run a spec, a Python file whose names are the arguments of a command, like a script."""

from __future__ import annotations

import linecache
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from ..errors import JaxparError, SpecError


def read_names(path: str, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    if not Path(path).is_file():
        raise SpecError(f"{path}: there is no such file.")
    folder = str(Path(path).resolve().parent)
    # Python does this for a script, and `runpy.run_path` does not.
    sys.path.insert(0, folder)
    try:
        defined = runpy.run_path(path)
    except (Exception, SystemExit) as error:  # SystemExit(0) would be read as "the same"
        raise failed(path, "", error) from error
    finally:
        sys.path.remove(folder)
    undefined = [name for name in needed if name not in defined]
    if undefined:
        raise SpecError(f"{path}: it does not define {', '.join(undefined)}.")
    return defined


def failed(path: str, what: str, error: Exception | SystemExit) -> SpecError:
    """Turn an error in the file, or about its definitions, into a SpecError with the file's line."""
    kind = "" if isinstance(error, JaxparError) else f"{type(error).__name__}: "
    return SpecError(f"{path}: {what}{kind}{error}{_line(path, error)}")


def _line(path: str, error: Exception | SystemExit) -> str:
    if isinstance(error, SyntaxError):
        return f"\n  line {error.lineno}: {(error.text or '').strip()}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == Path(path)]
    if not frames:
        return ""
    number = frames[-1].lineno or 0
    return f"\n  line {number}: {linecache.getline(path, number).strip()}"
