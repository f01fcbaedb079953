"""Option types that validate their values before anything runs."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

OUTPUTS = ("html", "junit", "record", "png")
"""Options that name a file to write."""
NEEDS = {"html": ("jinja2", "parity"), "record": ("safetensors", "parity"), "png": ("matplotlib", "report")}
"""The package that an output needs, and the jaxpar extra that installs it."""


class Finite(click.FloatRange):
    """A finite number in a range. click accepts `nan`, which is on neither side of a bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class OutputPath(click.Path):
    """A file to write, in an existing writable folder."""

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
    """Raise a UsageError if a file would be written twice or over the spec, or needs a missing package."""
    written = {Path(spec).resolve(): "the spec"}
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
        for file in map(Path, both):
            if before := written.get(file.resolve()):
                raise click.UsageError(f"--{option} {file} would write over {before}; choose another file.")
            written[file.resolve()] = f"--{option}"
