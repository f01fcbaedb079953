"""Compare world size, versions, devices and configuration between ranks. `step_agreement` compares the steps.

JAX compares nothing between processes. With batches of different shapes two ranks keep training and get equal
but wrong weights (measured); with different programs they deadlock. torch's DDP compares parameter shapes
once, when it is constructed (docs/semantics.md row D2), and nothing afterwards.
"""

from __future__ import annotations

import json

import jax

from ..errors import DivergenceError
from ._rendezvous import versions
from .exchange import exchange
from .group import Group, current
from .step_agreement import difference


def compare_environments(name: str, group: Group | None = None) -> None:
    """Compare everything that can make ranks compile different programs from one script.

    All ranks must call it.

    Args:
      name: the name of the comparison in errors; equal on all ranks.
      group: the ranks to compare; the default group if omitted.

    Raises:
      DivergenceError: world, versions, devices or configuration differ.
    """
    group = group or current()
    if group is not None and group.size > 1:
        texts = exchange(f"guard {name}", json.dumps(fingerprint()), group.timeout, group)
        fingerprints = {rank: json.loads(text) for rank, text in zip(group.ranks, texts, strict=True)}
        problem = difference(name, fingerprints)
        if problem:
            raise DivergenceError(problem)


def fingerprint() -> dict[str, str]:
    """Return this process's values by field."""
    group = current()
    devices = jax.local_devices()
    return {
        "world": str(group.size if group else 1),
        **versions(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "jax_enable_x64": str(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "jax_default_matmul_precision": str(jax.config.jax_default_matmul_precision),  # type: ignore[attr-defined]
    }
