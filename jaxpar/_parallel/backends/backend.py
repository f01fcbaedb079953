"""The interface of a backend: one function, which runs a body once on every device."""

from __future__ import annotations

from collections.abc import Callable

import jax

from ..._typing import PyTree
from ..placement import Placement

Body = Callable[[jax.Array, PyTree, list[jax.Array]], tuple[PyTree, PyTree]]
Backend = Callable[[Body, Placement, PyTree, list[jax.Array]], tuple[PyTree, PyTree]]
"""`run(body, placement, shared, rows) -> (results, shared)`, traced under `jax.jit`.

`rows` are arrays [N, ...] and `shared` is a tree that all devices hold. Each device runs `body(i, shared,
[x[i] for x in rows])` with its own i; the tree of results that it returns is stacked to [N, ...] again, and
the shared tree that it returns must be equal on all devices.
"""
