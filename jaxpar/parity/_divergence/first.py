"""Find every layer or piece of code that differs although it received the reference's inputs, and why.

    torch_trace ──► inputs and outputs of every layer, the functions called ──┐
                                                                              ├─► sites ─► Divergence
    flax_replay ──► each layer of Flax on these inputs ───────────────────────┤
    search ───────► torch with one change, until it computes Flax's arrays ───┘

`forward` traces and replays both passes; `gradients`, `weights` and `optimizers` cover the rest of a
training step. `catalogue` and `layer_exchanges` list possible mistakes, and `search` tries them. All of this
is in float64, where a layer is either the same or clearly different.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from .._comparison_data import ComparisonData, Divergence
from .._levels import Batches
from .._model_pair import ModelPair
from ..measuring import Kind, Outcome
from . import gradients, optimizers, weights, wording
from .forward import AlignedForward, forward_passes
from .gradients import loss_divergence
from .search import Budget
from .sites import DivergenceSite, SiteSearch, in_order


def find(
    pair: ModelPair, batches: Batches, compared: ComparisonData, budget: Budget, first_only: bool = False
) -> Iterator[Divergence]:
    """Yield the first divergence, with one more of the others each time; the largest come first."""
    step = min((row.difference.step for row in compared.different), default=1)
    different = [row.difference for row in compared.different if row.difference.step == step]
    noise = {row.difference.name for row in compared.rows if row.outcome is Outcome.NOISE}
    kinds = {d.kind for d in different}
    if step == 0:  # weights="own": they were compared before the first step
        if divergence := weights.divergence(pair, different):
            yield divergence
        return
    # In the order of computation, because later values inherit the errors of earlier ones.
    forward = forward_passes(pair, batches, step)
    sites: list[DivergenceSite] = []
    for site in SiteSearch(forward, budget):
        sites.append(site)
        yield _as_one(in_order(sites), forward)
        if first_only:
            return
    if budget.over or any(site.output_change for site in sites):
        return
    later: Divergence | None = None
    if Kind.LOSS in kinds:
        later = loss_divergence(forward, budget)
    elif kinds & {Kind.GRADIENT, Kind.INPUT_GRADIENT}:
        later = wording.backward(forward.layers, different)
        if later.candidate:
            causes = gradients.causes(forward, later.reference, later.candidate, budget)
            later = dataclasses.replace(later, causes=causes)
    elif kinds & {Kind.UPDATE, Kind.WEIGHT}:
        later = optimizers.divergence(pair, batches, min(compared.steps, step + 2), noise, budget)
    if later:
        yield _as_one((later, *in_order(sites)), forward)


def layers_agree(pair: ModelPair, batches: Batches, step: int) -> bool:
    """Whether every layer and the code between them compute torch's arrays from torch's arrays."""
    forward = forward_passes(pair, batches, step)
    calls = forward.trace.calls
    replayed = all(forward.key(call) in forward.replay.results for call in calls)
    return bool(calls) and replayed and not any(True for _ in SiteSearch(forward, Budget(0)))


def _as_one(divergences: tuple[Divergence, ...], forward: AlignedForward) -> Divergence:
    return dataclasses.replace(divergences[0], layers=forward.layers, others=divergences[1:])
