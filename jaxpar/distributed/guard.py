"""Have all ranks the same world, versions, devices and configuration? `step_agreement` compares what they do.

JAX compares nothing between processes. With batches of different shapes two ranks go on training and get
wrong weights, the same on both (measured); with different programs they wait for each other for ever.
torch's DDP compares parameter shapes once, when it is constructed (docs/semantics.md row D2), and nothing
after that.
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
    """Compares what can make the ranks run different programs for the same script; all ranks call it.

    Args:
      name: names what is compared, in errors; the same on all ranks.
      group: whose ranks; the default group's if left out.

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
    """Of this process, by field."""
    group = current()
    devices = jax.local_devices()
    return {
        "world": str(group.size if group else 1),
        **versions(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "jax_enable_x64": str(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "jax_default_matmul_precision": str(jax.config.jax_default_matmul_precision),  # type: ignore[attr-defined]
    }
