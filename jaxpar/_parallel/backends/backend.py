"""What a backend is: one function, by which a body runs once on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import jax

from ..._typing import PyTree
from ..placement import Placement

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
