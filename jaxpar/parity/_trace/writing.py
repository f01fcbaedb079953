"""Write a trace's two files; needs neither torch nor JAX."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._files import safetensors_file
from .._files.sealing import digest, seal
from .._sides.step_data import PARTS, Named, Observation

FORMAT = "jaxpar parity trace"
VERSION = 1
ARRAYS, MANIFEST = "arrays.safetensors", "trace.json"
SETTINGS = (bool, int, float, str, type(None))


class TraceArrays:
    """The arrays of a trace by name; equal arrays are stored once."""

    def __init__(self) -> None:
        self.arrays: Named = {}
        self.names: dict[str, str] = {}
        self._by_digest: dict[str, str] = {}

    def add(self, name: str, x: np.ndarray) -> None:
        x = np.array(x, order="C")
        digest = hashlib.sha256(f"{x.dtype}{x.shape}".encode() + x.tobytes()).hexdigest()
        stored = self._by_digest.setdefault(digest, f"a{len(self._by_digest)}")
        self.arrays.setdefault(stored, x)
        self.names[name] = stored

    def add_all(self, prefix: str, arrays: Mapping[str, np.ndarray]) -> None:
        for name, x in arrays.items():
            self.add(f"{prefix}{name}", x)

    def add_step(
        self, prefix: str, inputs: Mapping[str, Any], targets: tuple[np.ndarray, ...], results: Observation
    ) -> None:
        self.add_all(f"{prefix}inputs/", inputs)
        for name, arrays in (("targets", targets), ("masks", results.masks)):
            self.add_all(f"{prefix}{name}/", {str(i): x for i, x in enumerate(arrays)})
        for part in PARTS:
            self.add_all(f"{prefix}{part}/", getattr(results, part))


def is_setting(x: object) -> bool:
    """Whether a layer's attribute is recorded: a plain value, or a tuple of these."""
    return isinstance(x, SETTINGS) or (isinstance(x, tuple) and all(isinstance(y, SETTINGS) for y in x))


def table_of(moves: Mapping[Any, Any]) -> list[list[Any]]:
    """Return how far tensors move, by key, as rows for JSON."""
    rows = ((key, x if isinstance(x, tuple) else (0.0, x)) for key, x in moves.items())
    return [[kind.value, name, step, *map(_finite, x)] for (kind, name, step), x in rows]


def _finite(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def written(folder: Path, store: TraceArrays, manifest: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    arrays, temporary = folder / ARRAYS, folder / f".{ARRAYS}"
    temporary.unlink(missing_ok=True)
    safetensors_file.write(str(temporary), str(arrays), store.arrays, {"format": FORMAT})
    os.replace(temporary, arrays)
    content = {"format": FORMAT, "version": VERSION, "arrays": store.names, **manifest}
    content["sha256"] = digest(arrays)
    content["seal"] = seal(content)
    # The .json last: without this file, a folder is not read as a trace.
    (folder / MANIFEST).write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
    return folder
