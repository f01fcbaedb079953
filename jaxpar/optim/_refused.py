"""What cannot be had, and why."""

from __future__ import annotations

from typing import Any, NoReturn


def sparse_adam(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused: there are no sparse gradients in JAX.

    `torch.optim.SparseAdam` updates only the rows that occur in a sparse gradient, moments included.
    A dense gradient does not say which rows these are: a row may have been used and have gradient zero.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(
        "sparse_adam: JAX has no sparse gradients, and a dense one does not say which rows were used. "
        "Use adam; its numbers are torch.optim.Adam's with sparse=False."
    )


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
