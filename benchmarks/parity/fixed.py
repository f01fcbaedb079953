"""What fixed tolerances say of the same tensors: the checks that people write by hand, in float32."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import numpy as np
import torch

from jaxpar.parity import Level, compare
from jaxpar.parity._compare import CALLBACKS
from jaxpar.parity._exactness import exact
from jaxpar.parity._request import Request
from jaxpar.parity._sides.step_data import Batch, Named

from .case import Case
from .proof import pair


def allclose(tolerance: float) -> Callable[[np.ndarray, np.ndarray], bool]:
    return lambda c, r: bool(np.allclose(c, r, rtol=tolerance, atol=tolerance))


def assert_close(c: np.ndarray, r: np.ndarray) -> bool:
    """torch's own tolerances for float32: relative 1.3e-6, absolute 1e-5."""
    try:
        # A counter that is int32 in JAX and int64 in torch is no question of tolerance.
        torch.testing.assert_close(torch.tensor(c), torch.tensor(r), check_dtype=False)
    except AssertionError:
        return False
    return True


CHECKS = {
    "allclose 1e-3": allclose(1e-3),
    "allclose 1e-4": allclose(1e-4),
    "allclose 1e-5": allclose(1e-5),
    "assert_close": assert_close,
}


def passes(case: Case, seed: int = 0) -> dict[str, bool]:
    """By check: whether every tensor passes it that `compare` would look at."""
    found = list(tensors(case, seed))
    return {name: all(c.shape == r.shape and check(c, r) for c, r in found) for name, check in CHECKS.items()}


def tensors(case: Case, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Candidate and reference in float32: outputs, loss, gradients, state, and weights after each step."""
    reference, candidate, arguments = pair(case, seed)
    bound = inspect.signature(compare).bind(reference, candidate, **arguments)
    bound.apply_defaults()
    for name in CALLBACKS:
        del bound.arguments[name]
    request = Request(**bound.arguments)
    batch = request.batch(1)
    batch = Batch(
        batch.torch_call.map(single),
        batch.flax_call.map(single),
        tuple(map(single, batch.targets)),
        batch.common,
    )
    with exact():
        sides = request.pair().sides(Level.NUMERIC, "float32")
        for _ in range(case.steps):
            theirs = sides.reference.step(batch)
            mine = sides.candidate.step(batch, theirs.masks)
            for part in ("outputs", "loss", "input_gradients", "gradients", "state", "weights"):
                yield from paired(getattr(mine, part), getattr(theirs, part))


def paired(mine: Named, theirs: Named) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for name in theirs:
        yield np.asarray(mine[name]), np.asarray(theirs[name])


def single(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype.kind == "f" else x
