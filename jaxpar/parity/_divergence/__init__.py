"""Divergence: every place that differs although it is given the reference's inputs, and why.

    torch_trace ──► inputs and outputs of every layer, the functions called ──┐
                                                                              ├─► places ─► Divergence
    flax_replay ──► each layer of Flax on these inputs ───────────────────────┤
    search ───────► torch, departing in one thing, until it is Flax ──────────┘

`forward` holds both passes; `losses`, `gradients`, `weights` and `optimizers` look elsewhere. `catalogue`,
`exchanges` and `arrays` know what may be wrong, and `search` tries it. Everything is done in float64, where a
layer is either the same or not.
"""

from __future__ import annotations

import dataclasses

from .._comparison_data import ComparisonData, Divergence
from .._levels import Batches
from .._model_pair import ModelPair
from ..measuring import Difference, Kind, Outcome
from . import gradients, optimizers, weights
from .forward import Forward
from .losses import loss_divergence
from .sites import SiteSearch, in_order


def find(pair: ModelPair, batches: Batches, compared: ComparisonData) -> Divergence | None:
    """The places where the models differ, those first that change the outputs; None if float64 shows none.

    Weights come first, if each model has its own; then layers and the code between them; the loss;
    gradients, where the last layer that differs is the first of the backward pass; the update; last what
    leaves the outputs alone.
    """
    step = min((row.difference.step for row in compared.different), default=1)
    different = [row.difference for row in compared.different if row.difference.step == step]
    noise = {row.difference.name for row in compared.rows if row.outcome is Outcome.NOISE}
    kinds = {d.kind for d in different}
    if step == 0:  # weights="own": they were compared before the first step
        return weights.divergence(pair, different)
    # In the order of computation: every later place inherits what an earlier one got wrong.
    forward = Forward(pair, batches, step)
    sites = list(SiteSearch(forward))
    divergences = list(in_order(sites))
    later: Divergence | None = None
    if not any(site.moved for site in sites):
        if Kind.LOSS in kinds:
            later = loss_divergence(forward)
        elif kinds & {Kind.GRADIENT, Kind.INPUT_GRADIENT}:
            later = _backward(forward, different)
        elif kinds & {Kind.UPDATE, Kind.WEIGHT}:
            later = optimizers.divergence(pair, batches, min(compared.steps, step + 2), noise)
    divergences = [later, *divergences] if later else divergences
    if not divergences:
        return None
    return dataclasses.replace(divergences[0], layers=forward.layers, others=tuple(divergences[1:]))


def _backward(forward: Forward, different: list[Difference]) -> Divergence | None:
    """Outputs agree, gradients do not: the layer nearest to the loss whose own gradient differs."""
    order = [result.candidate for result in forward.layers]
    names = {d.name for d in different if d.kind is Kind.GRADIENT}
    owners = [path for path in order if any(name.startswith(f"{path}.") for name in names)]
    if not owners:
        where = "Outputs and parameter gradients agree; the gradient of the inputs does not."
        return Divergence("", "", "", where)
    # The backward pass starts at the loss, so the last layer of the forward pass is its first.
    last = next(result for result in forward.layers if result.candidate == owners[-1])
    where = (
        f"All outputs agree. In the backward pass the gradient of {last.candidate} is the first to differ: "
        "look for stop_gradient, padding_idx, and functions with another derivative where they have a kink."
    )
    causes = gradients.causes(forward, last.reference, last.candidate)
    return Divergence(last.reference, last.candidate, last.kind, where, causes)
