"""Run a spec, a Python file whose names are the arguments of a command; read a command's own values."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import math
import os
import runpy
import stat
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import JaxparError, SpecError


def check_source(path: str) -> ast.Module:
    """Read and parse a Python file without running it, before anything that takes seconds starts."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SpecError(f"{path}: it is no file.")
        source = Path(path).read_bytes()
    except FileNotFoundError:
        raise SpecError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise SpecError(f"{path}: it cannot be read: {error.strerror}.") from None
    if b"\0" in source:
        line = source.partition(b"\0")[0].count(b"\n") + 1
        raise SpecError(f"{path}: line {line} holds a NUL byte, so this is no Python source.")
    try:
        return ast.parse(source, path)
    except (SyntaxError, ValueError) as error:
        raise failed(path, "", error) from error


def read_names(path: str, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    check_source(path)
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
    if isinstance(error, SyntaxError) and error.lineno:
        return f"\n  line {error.lineno}: {(error.text or '').strip()}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == Path(path)]
    if not frames:
        return ""
    number = frames[-1].lineno or 0
    return f"\n  line {number}: {linecache.getline(path, number).strip()}"


OUTPUTS = ("html", "junit", "record", "png")
"""Options that name a file to write."""
MICROSECOND = 1e-6
RATES = {
    "flops": (1e12, "TFLOP/s in every type."),
    "bandwidth": (1e9, "GB/s between a device and its memory."),
    "memory": (1e9, "GB of a device."),
    "link": (1e9, "GB/s from a device to its neighbour."),
    "network": (1e9, "GB/s from a host to another."),
    "latency": (MICROSECOND, "Microseconds for one step of a ring within a host."),
    "network_latency": (MICROSECOND, "Microseconds for one step of a ring between hosts."),
    "products": (1, "The part of --flops that products reach."),
    "streaming": (1, "The part of --bandwidth that other kernels reach."),
    "exchanging": (1, "The part of --link and --network that collectives reach."),
    "kernel": (MICROSECOND, "Microseconds to start a kernel."),
    "collective": (MICROSECOND, "Microseconds to start a collective."),
}
"""Options of `jaxpar estimate` that replace a card's figures, with their units in SI. Only times may be 0."""
NEEDS = {"html": ("jinja2", "parity"), "record": ("safetensors", "parity"), "png": ("matplotlib", "report")}
"""The package that an output needs, and the jaxpar extra that installs it."""


class Finite(click.FloatRange):
    """A finite number in a range. click accepts `nan`, which is on neither side of a bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class SearchTime(Finite):
    """How long `compare` searches: a number of seconds, or one of `named`."""

    named = ("full", "quick", "none")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in self.named else super().convert(value, param, ctx)


class OutputPath(click.Path):
    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name = os.fsdecode(super().convert(value, param, ctx))
        folder = Path(name).absolute().parent
        if not folder.is_dir():
            self.fail(f"{name}: there is no folder {folder}.", param, ctx)
        if not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"{name}: the folder {folder} cannot be written to.", param, ctx)
        return name


def check_outputs(spec: str, options: Mapping[str, Any]) -> None:
    # Resolved, so that two spellings of one path are recognised. Path.resolve raises for a loop of links.
    written = {os.path.realpath(spec): "the spec"}
    for option in OUTPUTS:
        path = options.get(option)
        if path is None:
            continue
        if option in NEEDS and importlib.util.find_spec(NEEDS[option][0]) is None:
            package, extra = NEEDS[option]
            raise click.UsageError(f"--{option} needs {package}: pip install 'jaxpar[{extra}]'.")
        if option == "record" and Path(path).suffix != ".safetensors":
            raise click.UsageError(f"--record {path}: a record ends in .safetensors.")
        both = [path, str(Path(path).with_suffix(".json"))] if option == "record" else [path]
        for file in both:
            if before := written.get(os.path.realpath(file)):
                raise click.UsageError(f"--{option} {file} would write over {before}; choose another file.")
            written[os.path.realpath(file)] = f"--{option}"
