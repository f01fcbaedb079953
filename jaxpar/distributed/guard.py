"""A guard against ranks that do different things without a word.

JAX compares nothing between processes: with batches of different shapes two ranks train on and get
wrong weights, the same on both (measured), and with different programs they wait for each other for
ever. torch's DDP compares parameter shapes once, at construction (docs/semantics.md row D2), and nothing
after it.
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
    """Compares ranks once at the start and whenever one of them sees something for the first time.

    Args:
      name: of what is guarded, in errors; the same on all ranks, another one for each guard.

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
        """Call it before a compiled program with collectives is run.

        Args:
          signature_text_parts: what has to be the same on all ranks, by field: tree, shapes, dtypes, the
            module's definition, the mode.
          step: the number of this call, growing, the same on all ranks.

        Raises:
          DivergenceError: ranks differ; names the field, the ranks and their values. The rank whose parts
            are new raises at once, and its end ends the ranks that already wait in a collective.
        """
        if self._ledger is not None:
            key = tuple(signature_text_parts.items())
            self._ledger.check(step, key, lambda: dict(signature_text_parts))


def fingerprint() -> dict[str, str]:
    """What makes two processes run different programs for the same script."""
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
