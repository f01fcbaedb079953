"""Exactness: arithmetic without needless rounding, and a list of whatever else the numbers depend on."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import jax

from ._sides.task import Task


@contextmanager
def exact() -> Iterator[None]:
    """float64 exists, and no matrix product is rounded to fewer digits than its type has.

    Both settings are those of the thread. A thread that trains meanwhile keeps its own.
    """
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        yield


def environment(task: Task, dtype: str) -> dict[str, str]:
    """What the numbers depend on."""
    found = {
        "dtype": dtype,
        **{name: _version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy", "jaxpar")},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {platform.system()}",
        "jax device": str(jax.devices()[0].device_kind),
        "matmul precision": "highest",
        "seed": str(task.seed),
        "mode": "training" if task.training else "evaluation",
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.__version__
        found["torch threads"] = str(torch.get_num_threads())
        found["torch cpu capability"] = torch.backends.cpu.get_cpu_capability()
    return found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
