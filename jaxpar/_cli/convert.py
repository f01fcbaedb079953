"""`jaxpar convert`: convert a file of weights between formats, or between torch's layout and Flax's."""

from __future__ import annotations

import math
import os
from typing import Any

import click

from ..parity import Layout, read_weights, write_weights
from ..parity.conversion import Conversion, call_of
from .parity import read_spec

MATCHING = ("variables", "mapping", "ignore_torch", "ignore_flax")
OPTIONAL = ("inputs", "flax_inputs", "layout", "flax_kwargs", *MATCHING)
"""The names that a spec may define in addition to `flax_module`."""


def convert(source: str, target: str, *, key: str | None, spec: str | None, to: str | None) -> str:
    if os.path.realpath(source) == os.path.realpath(target):
        raise click.UsageError(f"{target} is the source, and would be written over; choose another file.")
    tensors: dict[str, Any] = read_weights(source, key=key)
    if spec is not None:
        # Without a spec names and layout stay, and only the format changes.
        conversion = Conversion(**_model(spec), label=f"convert {source}")
        tensors = conversion.to_flax(tensors) if to == "flax" else conversion.to_torch(tensors)
    write_weights(target, tensors, metadata={"format": "flax" if to == "flax" else "pt"})
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in tensors.values())
    return f"{source} -> {target}: {len(tensors)} tensors, {size / 1e6:.1f} MB"


def _model(spec: str) -> dict[str, Any]:
    definitions = read_spec(spec, ("flax_module",), ("flax_module", *OPTIONAL))
    matching = {name: definitions[name] for name in (*MATCHING, "flax_module") if name in definitions}
    inputs, layout, kwargs = definitions.get("flax_inputs"), Layout(), definitions.get("flax_kwargs")
    if inputs is None and (inputs := definitions.get("inputs")) is not None:
        layout = Layout.parse(definitions.get("layout", "same"))
    return matching | ({"kwargs": kwargs} if inputs is None else call_of(inputs, kwargs, layout))
