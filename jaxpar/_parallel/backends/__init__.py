"""Backends: run a function once on every device.

A backend is a function with this signature and nothing more; adding one is a file and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import jax

from ..._typing import PyTree
from ..placement import Placement
from .pmap import run as _pmap
from .shard_map import run as _shard_map

Body = Callable[[jax.Array, PyTree, list[jax.Array]], tuple[list[jax.Array], PyTree]]


class Backend(Protocol):
    """`run(body, placement, shared, rows) -> (rows, shared)`, traced under `jax.jit`.

    `rows` are arrays [N, ...] and `shared` is a tree that all devices hold. Each device runs
    `body(i, shared, [x[i] for x in rows])` with its own i; the rows that it returns are stacked to
    [N, ...] again, and the shared tree that it returns must be equal on all devices.
    """

    def __call__(
        self, body: Body, placement: Placement, shared: PyTree, rows: list[jax.Array], /
    ) -> tuple[list[jax.Array], PyTree]: ...


BACKENDS: dict[str, Backend] = {"shard_map": _shard_map, "pmap": _pmap}


def backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
      ValueError: there is none of that name.
    """
    if name not in BACKENDS:
        raise ValueError(f"backend={name!r} is unknown; there are {', '.join(map(repr, BACKENDS))}.")
    return BACKENDS[name]
