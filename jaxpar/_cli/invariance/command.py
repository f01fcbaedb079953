"""The options and the output of `jaxpar invariance`."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import click

from ..ending import leave, plain_ending
from ..spec import Finite, check_source


def _worlds(context: Any, option: Any, text: str) -> list[tuple[int, int]]:
    pairs = [re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", entry.strip()) for entry in text.split(",")]
    if not all(pairs):
        raise click.BadParameter(f"{text}: write processes x devices of each, as in 1x1,1x8,2x4.")
    return list(dict.fromkeys((int(pair[1]), int(pair[2])) for pair in pairs if pair))


def _numbers(context: Any, option: Any, text: str) -> list[int]:
    if not all(re.fullmatch(r"[1-9]\d*", entry.strip()) for entry in text.split(",")):
        raise click.BadParameter(f"{text}: write numbers of batches for an update, as in 1,2,4.")
    return list(dict.fromkeys(map(int, text.split(","))))


@click.command(
    short_help="Say whether a training depends on processes, devices and accumulation.",
    context_settings={"allow_interspersed_args": True},
)
@click.option(
    "--worlds", default="1x1,1x2,2x1", callback=_worlds, metavar="PxD,...", help="Processes x devices."
)
@click.option("--accumulate", default="1", callback=_numbers, metavar="K,...", help="Batches for an update.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=20, metavar="N", help="Updates that are compared."
)
@click.option(
    "--timeout", type=Finite(min=0, min_open=True), default=600, metavar="S", help="Seconds of a world."
)
@click.option(
    "--taps", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Keep the taps and logs."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@plain_ending()
def invariance(
    script: str, arguments: tuple[str, ...], taps: Path | None, as_json: bool, **options: Any
) -> None:
    """Run SCRIPT once in every world, and compare its trainings step by step.

    Every world has virtual CPU devices and float64. Whatever jaxpar.train_step trains is compared without a
    change of the script, and its batches are divided for --accumulate. Another loop needs one line,
    jaxpar.parity.Tap, and reads the environment variable JAXPAR_ACCUMULATE or an argument: in ARGUMENTS
    {accumulate}, {processes} and {devices} are replaced.

    The exit code is 0 if all worlds train the same, 1 if they differ, and 2 if one could not run.

    \b
      jaxpar invariance train.py
      jaxpar invariance train.py --worlds 1x1,1x8,2x4 --accumulate 1,2,4
      jaxpar invariance train.py --accumulate 1,2 -- --epochs 1 --micro-batches {accumulate}
    """
    check_source(script)
    from .judging import judged
    from .running import Script

    with tempfile.TemporaryDirectory(prefix="jaxpar-") as folder:
        steps, timeout = options.pop("steps"), options.pop("timeout")
        target = Script(script, arguments, steps, timeout, taps or Path(folder))
        result = judged(target, say=lambda text: click.echo(text, err=True), **options)
    click.echo(json.dumps(result.as_dict(), indent=1, allow_nan=False) if as_json else str(result))
    leave(result.exit_code)
