"""muon: refused, because torch's numbers cannot be reproduced."""

from __future__ import annotations

from typing import Any, NoReturn


def muon(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused: torch runs the iteration in bfloat16.

    `torch.optim.Muon` orthogonalises each update by five Newton-Schulz products in bfloat16, whose
    rounding depends on the order of the sums in the matrix product, so two libraries cannot agree
    to more than two digits.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(
        "muon: torch.optim.Muon computes in bfloat16, whose rounding is that of torch's own matrix "
        "product, so its numbers cannot be had here. optax.contrib.muon is the algorithm without them."
    )
