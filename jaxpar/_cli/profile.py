"""`jaxpar profile`: where the seconds before a script's first steps go."""

from __future__ import annotations

import json
import os

import click

from .ending import leave, plain_ending
from .spec import check_source


@click.command(
    short_help="Say where the seconds before a script's first steps go.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--startup", is_flag=True, required=True, help="Of the time up to the end of the first steps.")
@click.option("--steps", type=click.IntRange(min=1), default=2, metavar="N", help="Steps to watch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.argument("target", metavar="SCRIPT[:FUNCTION]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@plain_ending()
def profile(startup: bool, steps: int, as_json: bool, target: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT up to the end of its first steps, and print a table of seconds and programs.

    Every second counts once: for an import, a trace, lowering, XLA, its cache, other ranks, or the rest, in
    which Python and the programs run. Programs are counted by function and by the line of the script. A step
    is a call of what jaxpar.train_step returns; without one the script runs to its end. Only rank 0 prints.
    The operations of a step that runs are the subject of jaxpar.profile.

    \b
      jaxpar profile --startup train.py --epochs 1
      jaxpar profile --startup --steps 3 --json train.py
      jaxpar profile --startup train.py:first_step
    """
    path, function = target, ""
    if not os.path.exists(target):
        path, _, function = target.partition(":")
    check_source(path)
    from .._tools.startup.watching import run_script

    clock, calls = run_script(path, function, arguments, steps)
    from .._tools.startup import report

    if os.environ.get("RANK", "0") in ("", "0"):
        document = report.as_dict(clock)
        click.echo(json.dumps(document, indent=2) if as_json else report.text(clock, calls))
    leave(0)
