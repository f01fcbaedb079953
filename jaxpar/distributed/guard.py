"""Compare world size, versions, devices and configuration between ranks. `step_agreement` compares the steps.

JAX compares nothing between processes: with batches of different shapes two ranks keep training and get equal
but wrong weights (measured).
"""

from __future__ import annotations

import jax

from ..errors import DivergenceError
from ._rendezvous import versions
from .exchange import exchange_json
from .group import Group, current
from .step_agreement import difference


def compare_environments(name: str, group: Group | None = None) -> None:
    """Raise DivergenceError if ranks differ in what can make them compile different programs.

    All ranks call it with the same `name`, which errors contain.
    """
    group = group or current()
    if group is not None and group.size > 1:
        fingerprints = exchange_json(f"guard {name}", fingerprint(), group.timeout, group)
        if problem := difference(name, fingerprints):
            raise DivergenceError(problem)


def fingerprint() -> dict[str, str]:
    group = current()
    devices = jax.local_devices()
    return {
        "world": str(group.size if group else 1),
        **versions(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "jax_enable_x64": str(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "jax_default_matmul_precision": str(jax.config.jax_default_matmul_precision),  # type: ignore[attr-defined]
    }
