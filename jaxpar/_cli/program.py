"""`jaxpar program`: judge a compiled training step of a Python file."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import click

from ..errors import SpecError
from .ending import leave, plain_ending
from .spec import check_source, failed
from .starting import start_devices


@click.command(short_help="Say whether a compiled training step reduces every gradient exactly once.")
@click.argument("target", metavar="FILE:FUNCTION")
@click.option(
    "--on",
    metavar="DEVICES",
    default="cpux8",
    help="As h100x8,h100x1024: cards and numbers of devices, of 8 on a host; cpux8 is virtual devices.",
)
@click.option("--sharded", metavar="REGEX", default="", help="Arrays of the state that must be divided.")
@click.option("--local", metavar="REGEX", default="batch_stats", help="Those that may be a device's own.")
@click.option("--run", is_flag=True, help="Also run it on one device: is a mean a sum? For cpu only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@plain_ending()
def program(target: str, on: str, sharded: str, local: str, run: bool, as_json: bool) -> None:
    """Compile a training step, and prove or disprove that every gradient is reduced exactly once.

    FUNCTION(devices) returns (step, arguments): a jaxpar.train_step, a function, or one under jax.jit,
    jax.shard_map or jax.pmap, and a tuple of its arguments, as arrays or as jax.ShapeDtypeStructs with
    shardings over these devices. Nothing runs without --run. GPUs may be absent (jaxpar[gpu-compiler]).

    The exit code is 0 if all is proven, 1 for a fault, 2 if something is not proven.

    \b
      jaxpar program train.py:make --on h100x8,h100x1024
      jaxpar program train.py:make --on cpux4 --json
    """
    path, _, name = target.partition(":")
    if not name:
        raise click.UsageError(f"{target}: write FILE:FUNCTION, as in train.py:make.")
    check_source(path)
    targets = [_target(text) for text in on.split(",")]
    if run and any(card != "cpu" for card, _ in targets):
        raise click.UsageError("--run needs devices on which something runs: write --on cpux8.")
    start_devices(max([n for card, n in targets if card == "cpu"], default=1))
    reports = []
    for card, n in targets:
        step, arguments = _loaded(path, name, _devices(card, n))
        from .._tools.program.program import program as judge

        try:
            alone = _loaded(path, name, _devices(card, 1)) if run else None
            reports.append(judge(step, *arguments, sharded=sharded, local=local, alone=alone))
        except Exception as error:  # the step is the user's own code
            raise failed(path, "", error) from error
    if as_json:
        click.echo(json.dumps([r.as_dict() for r in reports], indent=2))
    else:
        click.echo("\n\n".join(str(r) for r in reports))
    codes = {r.exit_code for r in reports}
    leave(1 if 1 in codes else max(codes))


def _target(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"([\w-]+)x([1-9]\d*)", text.strip())
    if not match:
        raise click.UsageError(f"--on {text}: write a card and a number of devices, as in h100x8 or cpux8.")
    card, n = match.group(1), int(match.group(2))
    if card != "cpu" and n > HOST and n % HOST:
        raise click.UsageError(f"--on {text}: a host has {HOST} devices; {n} is no multiple of {HOST}.")
    return card, n


HOST = 8


def _devices(card: str, n: int) -> Any:
    from .._devices.devices import devices
    from .._devices.topology import topology

    if card == "cpu":
        return list(devices())[:n]
    try:
        return topology(card, hosts=max(1, n // HOST), devices=min(n, HOST))
    except ImportError as error:
        raise SpecError(str(error)) from None


def _loaded(path: str, name: str, devices: Any) -> tuple[Any, tuple]:
    # A module, so that the lines of its functions are found and its classes can be pickled.
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, name):
            raise SpecError(f"{path}: it does not define {name}.")
        returned = getattr(module, name)(devices)
    except SpecError:
        raise
    except (Exception, SystemExit) as error:
        raise failed(path, "", error) from error
    finally:
        sys.path.pop(0)
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], tuple)):
        raise SpecError(f"{path}: {name} returns {type(returned).__name__}, not (step, (argument, ...)).")
    return returned
