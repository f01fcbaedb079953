"""The recorder's command: run a file that defines the torch side, and record it."""

from __future__ import annotations

import inspect
import runpy
import sys
from pathlib import Path

from .recording import record

USAGE = """usage: recorder SIDE.py TRACE/

SIDE.py defines torch_module and inputs, and optionally targets, loss, optimizer, steps, training, outputs,
torch_kwargs, shake, seed, seconds. TRACE/ gets trace.json and arrays.safetensors."""


def main(arguments: list[str]) -> int:
    """Return 0 if the trace was written, 2 otherwise."""
    if len(arguments) != 2 or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 0 if arguments == ["--help"] else 2
    path, folder = arguments
    sys.path.insert(0, str(Path(path).resolve().parent))
    defined = runpy.run_path(path)
    names = [name for name in inspect.signature(record).parameters if name != "folder"]
    undefined = [name for name in ("torch_module", "inputs") if name not in defined]
    if undefined:
        print(f"{path}: it does not define {', '.join(undefined)}.", file=sys.stderr)
        return 2
    options = {name: defined[name] for name in names if name in defined}
    for name in ("loss", "optimizer"):
        # A file for both sides defines pairs; torch's half comes first.
        if isinstance(options.get(name), tuple | list):
            options[name] = options[name][0]
    module = options["torch_module"]
    options["torch_module"] = module() if inspect.isclass(module) or inspect.isfunction(module) else module
    written = record(folder, **options)
    size = sum(file.stat().st_size for file in written.iterdir())
    print(f"{written}: recorded, {size:,} bytes.")
    return 0
