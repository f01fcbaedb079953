"""`jaxpar port`: from a function that makes a torch module to a Flax file, its proof, and an exit code."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .. import parity
from ..errors import JaxparError, SpecError
from .spec import failed


def run(spec: str, inputs: tuple[str, ...], out: str, *, seed: int, record: bool) -> int:
    """The exit code: 0 written and the same, 1 written and different, 2 holes, 3 could not."""
    try:
        port = parity.port(_maker(spec), *(example(text, seed) for text in inputs), out=out, record=record)
    except (
        JaxparError,
        OSError,
    ) as error:  # without a file: 2, which other commands end with, are holes here
        click.echo(f"jaxpar: {error}", err=True)
        return 3
    click.echo(said(port, out))
    return port.status


def said(port: parity.Port, out: str) -> str:
    """What the command prints."""
    verdict = {
        0: f"the same: {len(port.comparisons)} proofs, largest difference {port.largest:.2g}",
        1: "different",
        2: f"{len(port.holes)} holes",
        3: f"no proof: {port.failure}",
    }[port.status]
    lines = [f"{out}: {port.lines} lines for torch's {port.torch_lines}, {verdict}"]
    lines += [f"  hole: {hole}" for hole in port.holes] + [f"  note: {note}" for note in port.notes]
    lines += [f"  build it with {port.build}"]
    if port.status == 1:
        lines += ["", str(port.comparison)]
    return "\n".join(lines)


def example(text: str, seed: int) -> Any:
    """`2,3,224,224`: normal numbers of this shape; `2,7:100`: integers below 100."""
    import torch

    shape, _, below = text.partition(":")
    try:
        sizes = [int(size) for size in shape.split(",") if size]
        generator = torch.Generator().manual_seed(seed)
        if below:
            return torch.randint(int(below), sizes, generator=generator)
        return torch.randn(sizes, generator=generator)
    except (ValueError, RuntimeError) as error:
        raise SpecError(f"--input {text}: write 2,3,224,224, or 2,7:100 for integers ({error}).") from None


def _maker(spec: str) -> Callable[[], Any]:
    """`models.py:make` or `package.module:make`."""
    place, _, name = spec.rpartition(":")
    if not place:
        raise SpecError(f"{spec}: write FILE.py:NAME or MODULE:NAME; NAME makes the module.")
    try:
        module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise failed(place, "", error) from error
    if not hasattr(module, name):
        raise SpecError(f"{spec}: {place} has no {name}.")
    return getattr(module, name)


def _file(path: Path) -> Any:
    """A file as a module, with its own folder to import from."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
