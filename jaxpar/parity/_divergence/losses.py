"""Explain losses that differ although the outputs agree: torch's loss with one call changed."""

from __future__ import annotations

from .._comparison_data import Divergence
from .._sides.step_data import Named
from .departures import rerun
from .forward import AlignedForward
from .search import Search, any_mistakes, causes_of, known_mistakes
from .torch_trace import Departure


def loss_divergence(forward: AlignedForward) -> Divergence:
    """Return the loss's divergence, with the changes that yield Flax's loss."""

    def watch(departure: Departure) -> Named:
        results, _ = rerun(forward, departure)
        return results.loss if results else {}

    flax = forward.candidate.step(forward.batch, forward.observed.masks, keep=False).loss
    ops, search = forward.trace.ops[forward.trace.model_ops :], Search(len(forward.trace.ops))
    # Known mistakes first: an arbitrary change that happens to fit explains less.
    explanations = search.first(known_mistakes(ops), watch, flax) or search.first(
        any_mistakes(ops), watch, flax
    )
    causes = causes_of(explanations)
    return Divergence("loss", "loss", "loss", "The outputs agree; the losses do not.", causes)
