"""`jaxpar parity`: compare the models of a spec, and return an exit code."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from .. import parity
from .._metrics.progress import progress
from .parity_spec import NEEDED, read_optimizer, read_spec
from .spec import failed


def run(
    spec: str,
    *,
    optimizer: str | None,
    html: str | None,
    as_json: bool,
    junit: str | None,
    record: str | None,
    check: str | None,
    **chosen: Any,
) -> int:
    """Return the exit code; `chosen` overrides the spec's arguments."""
    # First, because a typing error should not wait for the spec's models.
    both = read_optimizer(optimizer) if optimizer else None
    arguments = read_spec(spec, ("flax_module",) if check else NEEDED)
    arguments |= {name: value for name, value in chosen.items() if value is not None}
    if both:
        arguments["optimizer"] = both
    stopped = False
    try:
        comparison = _checked(check, arguments) if check else _compared(arguments, record)
    except parity.Stopped as stop:
        if stop.comparison is None:
            raise
        # The completed steps are worth a report, also after Ctrl-C.
        comparison, stopped = stop.comparison, True
    # These mostly come from the spec's own code, so the message names the spec's line.
    except (ValueError, TypeError, NotImplementedError, SystemExit) as error:
        raise failed(spec, "", error) from error
    if html:
        comparison.save_html(html)
    if junit:
        comparison.save_junit(junit)
    if as_json:
        click.echo(json.dumps(comparison.as_dict(), indent=1, allow_nan=False))
    else:
        Console(highlight=False).print(comparison)
    return 130 if stopped else 0 if comparison.same else 1


def _compared(arguments: dict[str, Any], record: str | None) -> parity.Comparison:
    with progress(arguments.get("steps", 1), description="starting JAX and PyTorch", leave=False) as shown:
        arguments["progress"] = lambda step, steps: shown.step("compared")
        return parity.record(record, **arguments) if record else parity.compare(**arguments)


def _checked(path: str, arguments: dict[str, Any]) -> parity.Comparison:
    loss, optimizer = arguments.get("loss"), arguments.get("optimizer")
    return parity.check(
        path,
        arguments["flax_module"],
        loss=loss[1] if loss else None,
        optimizer=optimizer[1] if optimizer else None,
        variables=arguments.get("variables"),
        flax_kwargs=arguments.get("flax_kwargs"),
    )
