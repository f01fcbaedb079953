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
    # Resolved, so that two spellings of one path are recognised.
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
