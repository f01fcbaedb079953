"""Whether a model gives the same bits twice for the same batch, and draws no random numbers of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import MaskError, NotDeterministicError
from ._reach import NOT_REACHED
from ._sides.outputs import Outputs as ModelOutputs
from ._sides.step_data import Batch, Observation
from ._tensors import widened
from .measuring import Difference, Kind, measure

if TYPE_CHECKING:
    from ._sides.candidate import Candidate


def check_flax(candidate: Observation, again: Candidate, batch: Batch, masks: tuple[np.ndarray, ...]) -> None:
    """Take the first step again, on a side that has not taken it, and require the same results."""
    require_equal("the Flax module", candidate, again.step(batch, masks, keep=False))
    if again.draws(batch):
        other = again.step(batch, masks, keep=False, reseeded=True)
        _require_own_draws_without_effect(candidate, other)


def number_differences(torchs: dict[str, Any], flaxs: dict[str, Any]) -> list[Difference]:
    """Measure the Python numbers that both sides return; JAX returns those that are computed as arrays."""
    both = [name for name in torchs if name in flaxs]
    candidate, reference = ({name: np.asarray(side[name]) for name in both} for side in (flaxs, torchs))
    return measure(candidate, reference, Kind.OUTPUT, 1)


def forms(torch_returned: ModelOutputs, flax_returned: ModelOutputs) -> list[str]:
    notes = []
    paths = torch_returned.sole, flax_returned.sole
    if None not in paths and paths[0] != paths[1]:
        locations = [f"as outputs{path}" if path else "alone" for path in paths]
        notes.append(
            f"torch returns its only output {locations[0]} and Flax {locations[1]}; "
            "they are compared with each other"
        )
    for name, side in (("torch", torch_returned), ("Flax", flax_returned)):
        if side.left_out:
            notes.append(f"outputs of {name} that were not compared: {', '.join(side.left_out)}")
    return notes


def _require_own_draws_without_effect(first: Observation, other: Observation) -> None:
    """Raise MaskError if the Flax module draws random numbers besides dropout masks, which are torch's."""
    for part in ("outputs", "loss", "state", "gradients"):
        for name, x in getattr(first, part).items():
            if x.tobytes() != getattr(other, part)[name].tobytes():
                raise MaskError(
                    f"parity.compare: {f'{part} {name}'.strip()} of the Flax module depends on random "
                    "numbers that it draws itself, outside of Dropout layers (make_rng, a key, an attention "
                    "of its own), where torch's masks do not reach. Compare with training=False, set that "
                    "rate to 0, or drop with a Dropout layer."
                )


def require_equal(what: str, first: Observation, second: Observation) -> None:
    """Raise NotDeterministicError if two runs of a side on the same batch differ."""
    for part in ("outputs", "state", "gradients"):
        for name, x in getattr(first, part).items():
            y = getattr(second, part)[name]
            # Bytes, because a NaN does not equal itself.
            if x.tobytes() != y.tobytes():
                spread = np.nanmax(np.abs(widened(x) - widened(y)))
                label = f"{part} {name}".strip()
                raise NotDeterministicError(
                    f"parity.compare: {what} gives two results for the same batch, {label}: {spread:.2g} "
                    "apart. Compare in evaluation mode, or take out what draws random numbers (masks of "
                    "torch's dropout are passed on by themselves)."
                )


def generators() -> dict[str, Any]:
    _, key, position, *_ = np.random.get_state()
    return {"Python's random": random.getstate(), "numpy.random": (np.asarray(key).tobytes(), position)}


def throws(drawn: set[str], before: dict[str, Any]) -> Iterator[str]:
    libraries = [name for name, state in generators().items() if state != before[name]]
    sources = [*(f"torch's {name}" for name in sorted(drawn)), *libraries]
    if sources:
        yield f"{NOT_REACHED}other throws of {', '.join(sources)}, drawn in torch's code besides dropout"
