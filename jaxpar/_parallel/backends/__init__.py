"""Backends: run a function once on every device. Adding one is a file and a row here."""

from __future__ import annotations

from .backend import Backend as Backend
from .pmap import run as _pmap
from .shard_map import run as _shard_map

BACKENDS: dict[str, Backend] = {"shard_map": _shard_map, "pmap": _pmap}

FOR_A_MESH = ("shard_map",)
"""Those that can run over one axis of a mesh with several."""


def backend(name: str) -> Backend:
    if name not in BACKENDS:
        raise ValueError(f"backend={name!r} is unknown; there are {', '.join(map(repr, BACKENDS))}.")
    return BACKENDS[name]
