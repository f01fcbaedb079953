"""The files next to a port: torch's numbers, and a test that compares the port with them without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from flax import nnx

from .._record import record
from .._sides.step_data import Layout
from .proof import array

TEST = '''"""{name} computes what torch computed when it was ported; torch is not needed."""

from pathlib import Path

{imports}

RECORD = Path(__file__).with_name("{name}.safetensors")


def test_{name}_is_the_same():
    rngs = nnx.Rngs(0)
    net = {build}
    parity.require_same(parity.check(RECORD, net))
'''


def write_record(
    path: Path,
    build: str,
    module: torch.nn.Module,
    flax: nnx.Module | None,
    inputs: Sequence[Any],
    kwargs: dict[str, Any],
    layout: Layout,
    layers: str,
) -> None:
    """Write `net.safetensors`, `net.json` and `test_net.py` next to `net.py`."""
    more: dict[str, Any] = {"torch_kwargs": kwargs, "flax_kwargs": kwargs} if kwargs else {}
    arrays = tuple(map(array, inputs))
    record(path.with_suffix(".safetensors"), module.train(), flax, arrays, layout=layout, **more)
    imports = [
        "from flax import nnx",
        # `*`, because the build expression may name any definition of the file.
        f"from {path.stem} import *  # noqa: F403",
        "",
        "from jaxpar import parity",
    ]
    if "nn." in build.replace("nnx.", ""):
        imports.append(f"from jaxpar.nn import {layers} as nn")
    if "partial(" in build:
        imports.insert(0, "from functools import partial")
    text = TEST.format(name=path.stem, imports="\n".join(imports), build=build)
    path.with_name(f"test_{path.stem}.py").write_text(text, encoding="utf-8")
