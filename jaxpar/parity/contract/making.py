"""Make a contract: record the torch side, and write down what a port must define and meet."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ...errors import FileError
from .. import recorder
from .._files.sealing import digest
from .._trace.reading import TraceFile, read
from .._trace.writing import MANIFEST
from ..measuring import Level, Policy

FORMAT, VERSION = "jaxpar contract", 1
NAME, TRACE, PORT, SIDE = "contract.json", "trace", "port.py", "torch_side.py"

ENTRY_POINTS = {
    "flax_module": "the JAX model: an nnx.Module, a linen.Module, a Keras model, (function, params), a "
    "callable pytree; or a function or class that makes one",
    "loss": "a function of (outputs, *targets), as jax.numpy arrays",
    "optimizer": "an optax transformation",
    "layout": '"same", or "channels_last" if the model takes images as (N, H, W, C)',
    "mapping": "JAX paths by torch names, where they differ",
    "flax_inputs": "the arguments of the model, where they differ from torch's",
    "flax_kwargs": "more keyword arguments of every call",
    "outputs": "JAX's names of the outputs by torch's",
    "variables": "a Linen module's variables, if they are not to be zeros",
    "ignore_torch": "names of torch tensors that the model does without",
    "ignore_flax": "names of leaves that keep their values",
}


def make(side: str, folder: str, page: str) -> Path:
    """Record the torch side of a file, or take a trace, and write the contract; returns its folder."""
    target = Path(folder)
    if (target / NAME).exists():
        raise FileError(f"{target / NAME}: it exists; a contract is made into an empty folder.")
    if is_trace(side):
        read(side)  # before anything is written
        shutil.copytree(side, target / TRACE)
    elif code := recorder.main([side, str(target / TRACE)]):
        raise FileError(f"{side}: the recorder ended with {code}.")
    else:
        shutil.copyfile(side, target / SIDE)  # orders the edits that a check tries
    recorded = read(target / TRACE)
    (target / PORT).write_text(_template(recorded), encoding="utf-8")
    (target / "README.md").write_text(page, encoding="utf-8")
    (target / NAME).write_text(json.dumps(contract_of(recorded), indent=1) + "\n", encoding="utf-8")
    return target


def is_trace(side: str) -> bool:
    return (Path(side) / MANIFEST).is_file()


def contract_of(recorded: TraceFile) -> dict[str, Any]:
    manifest = recorded.manifest
    needed = ["flax_module", *(name for name in ("loss", "optimizer") if manifest[name])]
    first = recorded.observation(1)
    return {
        "format": FORMAT,
        "version": VERSION,
        "subject": manifest["subject"],
        "trace": TRACE,
        "trace_sha256": digest(recorded.folder / MANIFEST),
        "entry_points": {
            "file": PORT,
            "needed": needed,
            "optional": [name for name in ENTRY_POINTS if name not in needed],
            "meanings": ENTRY_POINTS,
        },
        "seed": manifest["seed"],
        "steps": manifest["steps"],
        "training": manifest["training"],
        "optimizer": manifest["optimizer"],
        "inputs": _shapes(recorded.below("1/inputs/")),
        "targets": _shapes(recorded.below("1/targets/")),
        "weights": _shapes(recorded.below("start/")),
        "outputs": _shapes(first.outputs),
        "tolerance": {
            "relative": Policy(Level.SEMANTIC).relative,
            "of": "max|jax - torch| / max|torch|, both in float64, for every tensor of every step",
            "noise": "wider where rounding moves torch itself by more, as the trace has measured",
        },
        "layers": [entry["path"] for entry in manifest["layers"]],
    }


def _shapes(arrays: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in arrays.items()}


def _template(recorded: TraceFile) -> str:
    lines = [f'"""The port of {recorded.manifest["subject"]}. `jaxpar contract check .` judges it."""', ""]
    for name in ("flax_module", *(name for name in ("loss", "optimizer") if recorded.manifest[name])):
        lines.append(f"# {name} = ...  {ENTRY_POINTS[name]}")
    return "\n".join(lines) + "\n"
