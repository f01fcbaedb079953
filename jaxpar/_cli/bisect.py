"""`jaxpar bisect`: where two tapped training runs part, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from ..errors import SpecError
from .ending import leave, plain_ending
from .spec import OutputPath, check_outputs


@click.command(short_help="Find the first step in which two training runs part, and why.")
@click.argument("a", metavar="A", type=click.Path())
@click.argument("b", metavar="B", type=click.Path())
@click.option(
    "--nudged", type=click.Path(), metavar="C", help="Run A again, from parameters one rounding away."
)
@click.option(
    "--name", "names", multiple=True, metavar="A=B", help="A parameter that run B names differently."
)
@click.option("--html", type=OutputPath(), metavar="FILE", help="Write the report as one HTML file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@plain_ending()
def bisect(a: str, b: str, nudged: str | None, names: Sequence[str], html: str | None, as_json: bool) -> None:
    """Compare two runs that wrote taps (jaxpar.parity.Tap) into the folders A and B.

    The first step and the first quantity that differ by more than rounding are named, and the cause if it
    is known. The exit code is 0 if the runs are the same, 1 if they part, and 2 without a verdict.

    \b
      jaxpar bisect runs/torch runs/jax
      jaxpar bisect runs/torch runs/jax --nudged runs/torch_nudged --html report.html
      jaxpar bisect runs/one_device runs/eight --json
    """
    check_outputs(a, {"html": html})
    pairs: dict[str, Any] = dict(text.split("=", 1) for text in names if "=" in text)
    if len(pairs) < len(names):
        raise click.UsageError("--name is NAME=OTHER, each name once: the parameter in run A and in run B.")
    from ..parity import bisect as run

    try:
        bisection = run(a, b, nudged=nudged, names=pairs)
    except ValueError as error:
        raise SpecError(str(error)) from None
    if html:
        bisection.save_html(html)
    click.echo(json.dumps(bisection.as_dict(), indent=1, allow_nan=False) if as_json else str(bisection))
    leave(0 if bisection.same else 1)
