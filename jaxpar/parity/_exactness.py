"""Control float64 and matmul precision during a comparison, and record the environment in the report."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

from .. import _stamp
from ._sides.step_data import OWN, Task

# The user's settings outside `exact`: whether float64 is enabled, and the precision of matrix products.
_users: ContextVar[tuple[bool, str | None]] = ContextVar("users")


@contextmanager
def exact() -> Iterator[None]:
    """Enable float64 and full-precision matrix products, in this thread only."""
    token = _users.set(_settings())
    try:
        # Context managers, because `jax.config.update` would change the settings of other threads. "highest",
        # because on GPUs and TPUs JAX may by default multiply float32 matrices in TF32 or bfloat16.
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            yield
    finally:
        _users.reset(token)


@contextmanager
def as_it_runs() -> Iterator[None]:
    """Restore the user's settings inside `exact`."""
    x64, precision = _users.get()
    with jax.enable_x64(x64), jax.default_matmul_precision(precision):
        yield


def in_users_width(x: np.ndarray) -> np.ndarray:
    """Return 64-bit integers in 32 bits if the user's JAX computes them so: their overflow is the model's."""
    if x.dtype not in (np.int64, np.uint64) or _users.get(_settings())[0]:
        return x
    return x.astype(np.int32 if x.dtype == np.int64 else np.uint32)


def _settings() -> tuple[bool, str | None]:
    values: Any = jax.config  # a type checker does not see its options as attributes
    return values.jax_enable_x64, values.jax_default_matmul_precision


def environment(task: Task, dtype: str) -> dict[str, str]:
    """Return the versions, devices and settings that the numbers depend on."""
    values = {
        "date": _stamp.when(),
        "command": _stamp.command(),
        "dtype": dtype,
        **{name: _stamp.installed(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy", "jaxpar")},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {platform.system()}",
        "jax device": str(jax.devices()[0].device_kind),
        "matmul precision": str(_users.get()[1] or "default") if dtype == OWN else "highest",
        "seed": str(task.seed),
        "mode": "training" if task.training else "evaluation",
    }
    # Without an import, because `check` also runs where torch is not installed.
    torch = sys.modules.get("torch")
    if torch is not None:
        values["torch"] = torch.__version__
        values["torch threads"] = str(torch.get_num_threads())
        # torch's roundings and random numbers depend on the vector instructions that its kernels use.
        values["torch cpu capability"] = torch.backends.cpu.get_cpu_capability()
    return values
