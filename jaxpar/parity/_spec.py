"""Spec: a Python file that names two models and a task, for the command line.

Its names are the arguments of `parity.compare`: `torch_module`, `flax_module` and `inputs` are needed,
all others (`loss`, `optimizer`, `layout`, `mapping`, `policy` ...) may be there. The modules may be
functions without arguments that build them.
"""

from __future__ import annotations

import inspect
import linecache
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import JaxparError, SpecError

NEEDED = ("torch_module", "flax_module", "inputs")


def read_spec(
    path: str, needed: tuple[str, ...] = NEEDED, names: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """What the file defines of `names`, the arguments of compare if they are left out.

    Raises:
      SpecError: no such file, a name is missing, or the file itself raises; then with the file's line.
    """
    if not Path(path).is_file():
        raise SpecError(f"{path}: there is no such file.")
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)  # as Python does for a script
    try:
        defined = runpy.run_path(path)
    except Exception as error:
        raise failed(path, "", error) from error
    finally:
        sys.path.remove(folder)
    missing = [name for name in needed if name not in defined]
    if missing:
        raise SpecError(f"{path}: it does not define {', '.join(missing)}.")
    found = {name: defined[name] for name in names or arguments() if name in defined}
    for name in ("torch_module", "flax_module"):
        if name in found:
            found[name] = _built(path, name, found[name])
    return found


def arguments() -> list[str]:
    from ._compare import compare

    return [name for name in inspect.signature(compare).parameters if name != "progress"]


def _built(path: str, name: str, given: Any) -> Any:
    """A function that builds a module is called; a module is one already."""
    if not (inspect.isfunction(given) or inspect.isclass(given)):
        return given
    try:
        return given()
    except Exception as error:
        raise failed(path, f"{name}(): ", error) from error


def failed(path: str, what: str, error: Exception) -> SpecError:
    """What went wrong in the file, or with what it says; an error of jaxpar's own is one already."""
    kind = "" if isinstance(error, JaxparError) else f"{type(error).__name__}: "
    return SpecError(f"{path}: {what}{kind}{error}{_line(path, error)}")


def _line(path: str, error: Exception) -> str:
    """The last line of the file that was running."""
    if isinstance(error, SyntaxError):
        return f"\n  line {error.lineno}: {(error.text or '').strip()}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == Path(path)]
    if not frames:
        return ""
    number = frames[-1].lineno or 0
    return f"\n  line {number}: {linecache.getline(path, number).strip()}"


def read_optimizer(text: str) -> tuple[Callable[..., Any], Any]:
    """`adamw:lr=1e-3,weight_decay=0.1` as torch's optimizer and jaxpar.optim's of that name.

    Raises:
      SpecError: no such optimizer, or settings that it refuses.
    """
    import ast

    import torch

    from jaxpar import optim

    name, _, settings = text.partition(":")
    try:
        call = ast.parse(f"f({settings})", mode="eval").body
        assert isinstance(call, ast.Call)
        keywords = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
        if call.args or "" in keywords:
            raise ValueError("settings are name=value")
    except (SyntaxError, ValueError) as error:
        raise SpecError(f"--optimizer {text}: write name:setting=value,setting=value ({error}).") from None
    kinds = {kind.lower(): getattr(torch.optim, kind) for kind in dir(torch.optim) if kind[0].isupper()}
    if name.lower() not in kinds or not hasattr(optim, name.lower()):
        both = sorted(kind for kind in kinds if hasattr(optim, kind))
        raise SpecError(f"--optimizer {name}: it is none of {', '.join(both)}.")
    try:
        ours = getattr(optim, name.lower())(**keywords)
        kinds[name.lower()]([torch.nn.Parameter(torch.zeros(1))], **keywords)
    except (TypeError, ValueError) as error:
        raise SpecError(f"--optimizer {text}: {error}") from None
    return lambda parameters: kinds[name.lower()](parameters, **keywords), ours
