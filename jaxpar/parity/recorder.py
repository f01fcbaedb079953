"""The recorder of traces, and `Tap`, as one file: it needs torch and NumPy, neither jaxpar nor JAX.

    python -m jaxpar.parity.recorder side.py trace/        # records what side.py defines
    python -m jaxpar.parity.recorder --copy recorder.py    # writes the one file
    python recorder.py side.py trace/                      # where only torch and NumPy are installed
    from recorder import record                            # the same from a script
    from recorder import Tap                               # writes the steps of a training, for jaxpar bisect

The file is packed from the modules that a comparison uses, so there is one catalogue of causes and one
definition of a step. It always runs packed, here as well.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
START = ("parity", "_trace", "recording")
TAP = ("parity", "_runs", "tap")
STAND_IN = "jaxpar_recorder.parity._trace.jax_stand_in"
INSTEAD = {
    "import jax\n": f"from {STAND_IN.rpartition('.')[0]} import jax_stand_in as jax\n",
    "import jax.numpy as jnp\n": f"from {STAND_IN} import numpy as jnp\n",
    "import ml_dtypes\n": f"from {STAND_IN.rpartition('.')[0]} import jax_stand_in as ml_dtypes\n",
}
ABSENT = ("flax", "optax", "jax", "ml_dtypes", "safetensors")
Name = tuple[str, ...]

LOADER = """
import importlib.abc
import importlib.util
import linecache
import sys


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name not in SOURCES:
            return None
        return importlib.util.spec_from_loader(name, self, origin=name, is_package=name in PACKAGES)

    def exec_module(self, module):
        name, text = module.__name__, SOURCES[module.__name__]
        linecache.cache[f"<{name}>"] = (len(text), None, text.splitlines(True), f"<{name}>")
        exec(compile(text, f"<{name}>", "exec"), module.__dict__)


if not any(type(finder).__name__ == "_Finder" for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())

from jaxpar_recorder.parity._runs.tap import Tap
from jaxpar_recorder.parity._trace.command import main
from jaxpar_recorder.parity._trace.recording import record

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def packed() -> str:
    """Return the text of the one file."""
    sources = dict(_sources())
    packages = {name[:i] for name in sources for i in range(len(name))}
    texts = {name: sources.get(name, "") for name in {*sources, *packages}}
    lines = [
        "# The recorder of jaxpar, written by `python -m jaxpar.parity.recorder --copy`. No file to edit."
    ]
    for kind, value in (("PACKAGES", packages), ("SOURCES", texts)):
        names = sorted(".".join(("jaxpar_recorder", *name)) for name in value)
        if kind == "PACKAGES":
            lines.append(f"{kind} = {names!r}")
        else:
            entries = (f"    {name!r}: {texts[tuple(name.split('.')[1:])]!r},\n" for name in names)
            lines.append(f"{kind} = {{\n{''.join(entries)}}}")
    return "\n".join(lines) + "\n" + LOADER


def _sources() -> Iterator[tuple[Name, str]]:
    """Yield the modules that recording imports, and a substitute for JAX."""
    todo: list[Name] = [START, TAP, (*START[:-1], "command"), (*START[:-1], "jax_stand_in")]
    packed_names: set[Name] = set()
    while todo:
        name = todo.pop()
        if name in packed_names:
            continue
        packed_names.add(name)
        path = _path(name)
        text = path.read_text(encoding="utf-8")
        for line, instead in INSTEAD.items():
            text = text.replace(f"\n{line}", f"\n{instead}")
        yield name, text
        package = name if path.name == "__init__.py" else name[:-1]
        for node in _imports(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                todo += _targets(package[: len(package) - node.level + 1], node)


def _path(name: Name) -> Path:
    path = PACKAGE.joinpath(*name)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imports(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the imports that run when a module is imported: not those for the type checker."""
    return (node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))


def _targets(base: Name, node: ast.ImportFrom) -> list[Name]:
    module = (*base, *(node.module or "").split(".")) if node.module else base
    names = [(*module, alias.name) for alias in node.names]
    modules = [name for name in names if _path(name).is_file()]
    # A package's own names are in its __init__; otherwise the package is only the way to its modules.
    return modules if len(modules) == len(names) else [*modules, module]


def load() -> Any:
    """Return the packed file as a module."""
    module = types.ModuleType("jaxpar_recorder_file")
    exec(compile(packed(), "recorder.py", "exec"), module.__dict__)
    return module


def record(*arguments: Any, **options: Any) -> Path:
    """Record a trace: the function `record` of the packed file, which documents the arguments."""
    return load().record(*arguments, **options)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--copy"] and len(arguments) == 2:
        Path(arguments[1]).write_text(packed(), encoding="utf-8")
        return 0
    return load().main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
