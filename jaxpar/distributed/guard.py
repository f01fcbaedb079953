"""A guard against ranks that silently do different things.

JAX compares nothing between processes. With batches of different shapes two ranks go on training and get
wrong weights, the same on both (measured); with different programs they wait for each other for ever.
torch's DDP compares parameter shapes once, when it is constructed (docs/semantics.md row D2), and nothing
after that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import jax

from ..errors import DivergenceError
from ._rendezvous import version
from .exchange import exchange
from .group import current
from .step_agreement import Ledger, difference, ledger


class Guard:
    """Compares ranks once at the start, and whenever one of them has something for the first time.

    Args:
      name: names what is guarded, in errors; the same on all ranks, and different for each guard.

    Raises:
      DivergenceError: world, versions, devices or configuration differ.
    """

    def __init__(self, name: str = "training"):
        self.name = name
        group = current()
        self._ledger: Ledger | None = ledger(name)
        if group is not None and group.size > 1:
            said = exchange(f"guard {name}", json.dumps(fingerprint()), group.timeout)
            problem = difference(name, {rank: json.loads(text) for rank, text in enumerate(said)})
            if problem:
                raise DivergenceError(problem)

    def check(self, signature_text_parts: Mapping[str, str], step: int) -> None:
        """Compares the ranks. Call it before running a compiled program that has collectives.

        Args:
          signature_text_parts: what must be the same on all ranks, by field: tree, shapes, dtypes, the
            module's definition, the mode.
          step: the number of this call, growing, the same on all ranks.

        Raises:
          DivergenceError: ranks differ; names the field, the ranks and their values. The rank whose parts
            are new raises at once, and its end also ends the ranks that wait in a collective by then.
        """
        if self._ledger is not None:
            key = tuple(signature_text_parts.items())
            self._ledger.check(step, key, lambda: dict(signature_text_parts))


def fingerprint() -> dict[str, str]:
    """What can make two processes run different programs for the same script."""
    import jaxlib

    group = current()
    devices = jax.local_devices()
    return {
        "world": str(group.size if group else 1),
        "jaxpar": version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "jax_enable_x64": str(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "jax_default_matmul_precision": str(jax.config.jax_default_matmul_precision),  # type: ignore[attr-defined]
    }
