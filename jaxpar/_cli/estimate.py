"""`jaxpar estimate`: predict a training step from a spec and the figures of a card."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
from rich.console import Console

from .._tools.estimate.estimate import estimate
from .._tools.estimate.hardware import Hardware
from .._tools.estimate.report import Estimate
from ..errors import SpecError
from .spec import RATES, failed, read_names


def run(spec: str, *, device: str, as_json: bool, png: str | None, **options: Any) -> None:
    rates = {name: (options.pop(name, None), unit) for name, (unit, _) in RATES.items()}
    changes = {name: rate * unit for name, (rate, unit) in rates.items() if rate is not None}
    try:
        hardware = Hardware.of(device, **changes)
    except ValueError as error:
        raise SpecError(str(error).removeprefix("estimate: ")) from None
    # The report must not look like one of the card itself.
    if changes:
        hardware = dataclasses.replace(hardware, name=f"{hardware.name} (figures changed)")
    prediction = _estimated(spec, hardware, options)
    if png:
        prediction.plot(png)
    if as_json:
        click.echo(prediction.to_json())
    else:
        Console(highlight=False).print(prediction)


def _estimated(spec: str, hardware: Hardware, options: dict[str, Any]) -> Estimate:
    definitions = read_names(spec, ("loss_fn", "batch"))
    net = definitions.get("net", definitions.get("make_net"))
    if net is None:
        raise SpecError(
            f"{spec}: it defines neither make_net, a function that makes the module, nor net, the module."
        )
    batch = definitions["batch"] if isinstance(definitions["batch"], tuple) else (definitions["batch"],)
    try:
        return estimate(
            net, definitions.get("optimizer"), definitions["loss_fn"], *batch, device=hardware, **options
        )
    # Any exception: the estimate runs the spec's own code.
    except Exception as error:
        raise failed(spec, "", error) from error
