"""Explain losses and gradients that differ although the outputs agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from .._comparison_data import Cause, Divergence
from .._sides.step_data import Named
from . import departures
from .departures import rerun
from .forward import AlignedForward
from .interventions import intervened, interventions
from .search import EQUAL, Budget, Search, any_mistakes, causes_of, known_mistakes, relative_error
from .torch_trace import Departure
from .wording import LOSS


def causes(forward: AlignedForward, path: str, flax: str, budget: Budget) -> tuple[Cause, ...]:
    """Return the changes to torch that yield Flax's gradients of a layer's parameters."""
    every = forward.candidate.step(forward.batch, forward.observed.masks, keep=False).gradients
    flax_gradients = {name: x for name, x in every.items() if name.startswith(f"{flax}.")}
    torch_gradients = forward.observed.gradients
    explanations = []
    layer = forward.module.get_submodule(path)
    is_table = isinstance(layer, torch.nn.Embedding)
    padded = _padded(layer, flax_gradients, torch_gradients) if is_table else ()
    for text, settings in interventions(layer, padded):
        if budget.over:
            break
        with intervened(settings):
            again = departures.gradients(forward)
        relative = max((relative_error(x, again[name]) for name, x in flax_gradients.items()), default=1.0)
        if relative <= EQUAL:
            explanations.append(Cause(text, relative))
    return tuple(sorted(explanations, key=lambda cause: cause.relative))


def _padded(layer: torch.nn.Embedding, flax_gradients: Named, torch_gradients: Named) -> Iterator[int | None]:
    """Yield None, and up to two rows that have a gradient in torch but not in Flax."""
    yield None
    for name, x in flax_gradients.items():
        if x.ndim == 2 and len(x) == layer.num_embeddings:
            lost = (x == 0).all(1) & (torch_gradients[name] != 0).any(1)
            yield from map(int, lost.nonzero()[0][:2])


def loss_divergence(forward: AlignedForward, budget: Budget) -> Divergence:
    """Return the loss's divergence, with the changes that yield Flax's loss."""

    def watch(departure: Departure) -> Named:
        results, _ = rerun(forward, departure)
        return results.loss if results else {}

    flax = forward.candidate.step(forward.batch, forward.observed.masks, keep=False).loss
    ops, search = forward.trace.ops[forward.trace.model_ops :], Search(len(forward.trace.ops), budget)
    # Known mistakes first: an arbitrary change that happens to fit explains less.
    explanations = search.first(known_mistakes(ops), watch, flax) or search.first(
        any_mistakes(ops), watch, flax
    )
    return dataclasses.replace(LOSS, causes=causes_of(explanations))
