"""The circumstances of a comparison: exact arithmetic, and what else the numbers depend on."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version

import jax

from ._sides.flax_attention import softmax_in_float64
from ._sides.task import Task


@contextmanager
def exact() -> Iterator[None]:
    """float64 exists, and no matrix product is rounded to fewer digits than its type has."""
    with ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.default_matmul_precision("highest"))
        stack.enter_context(softmax_in_float64())
        yield


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


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
