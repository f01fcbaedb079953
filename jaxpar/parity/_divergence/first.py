"""Find every layer or piece of code that differs although it received the reference's inputs, and why.

    torch_trace ──► inputs and outputs of every layer, the functions called ──┐
                                                                              ├─► sites ─► Divergence
    flax_replay ──► each layer of Flax on these inputs ───────────────────────┤
    search ───────► torch with one change, until it computes Flax's arrays ───┘

`forward` traces and replays both passes; weights, losses, gradients and `optimizers` are the rest of a
training step. `catalogue` and `layer_exchanges` list possible mistakes, and `search` tries them. All of this
is in float64, where a layer is either the same or clearly different.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from .._comparison_data import Cause, ComparisonData, Divergence
from .._levels import Batches
from .._model_pair import ModelPair
from .._sides.step_data import Named
from ..measuring import Difference, Kind, Outcome
from . import departures, optimizers, wording
from .array_changes import blocks
from .catalogue.variation import orders
from .forward import AlignedForward, forward_passes
from .interventions import intervened, interventions
from .search import EQUAL, Budget, Search, any_mistakes, causes_of, known_mistakes, relative_error
from .sites import DivergenceSite, SiteSearch, in_order
from .torch_trace import Departure

MOST_SORTED = 128  # heads or experts whose names may have been sorted as strings


def find(
    pair: ModelPair, batches: Batches, compared: ComparisonData, budget: Budget, first_only: bool = False
) -> Iterator[Divergence]:
    """Yield the first divergence, with one more of the others each time; the largest come first."""
    step = min((row.difference.step for row in compared.different), default=1)
    different = [row.difference for row in compared.different if row.difference.step == step]
    noise = {row.difference.name for row in compared.rows if row.outcome is Outcome.NOISE}
    kinds = {d.kind for d in different}
    if step == 0:  # weights="own": they were compared before the first step
        if divergence := weights_divergence(pair, different):
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
            causes = gradient_causes(forward, later.reference, later.candidate, budget)
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


def weights_divergence(pair: ModelPair, different: list[Difference]) -> Divergence:
    """Return the divergence of the first differing leaf."""
    name = different[0].name
    reference = pair.reference("float64")
    every = reference.weights()
    torch_leaf, flax_leaf = every[name], pair.candidate(reference).weights()[name]
    link = next(link for link in pair.links.layers for part in link.parts if name in part.flax)
    # Rearrangements of equal shape raise no error when weights are loaded, so they are the likeliest
    # mistakes.
    fitting = ((text, x) for text, x in _rearranged(flax_leaf) if x.shape == torch_leaf.shape)
    candidates = [Cause(text, relative_error(x, torch_leaf)) for text, x in fitting]
    candidates += [
        Cause(f"it holds torch's {name} (it holds torch's {other})", relative_error(flax_leaf, x))
        for other, x in every.items()
        if other != name
    ]
    causes = tuple(sorted((c for c in candidates if c.relative <= EQUAL), key=lambda c: c.relative))
    where = f"The weights of {len(different)} leaves are not torch's; the first is {name}."
    return Divergence(link.torch, link.flax, link.rule.torch if link.rule else "", where, causes)


def _rearranged(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    for axes in orders(x.ndim):
        yield f"its axes are permuted by {axes}", x.transpose(axes)
    for axis in range(x.ndim):
        yield f"axis {axis} is reversed", np.flip(x, axis)
        for count in (2, 3, 4):
            if x.shape[axis] % count == 0:
                yield from _in_order(x, axis, orders(count))
        yield from blocks(x, axis)
        yield from _sorted(x, axis)
    if x.ndim > 2:
        yield "its spatial axes are reversed", np.flip(x, tuple(range(x.ndim - 2)))
    yield "its sign is turned", -x


def _in_order(
    x: np.ndarray, axis: int, orders: Iterable[tuple[int, ...]]
) -> Iterator[tuple[str, np.ndarray]]:
    for order in orders:
        parts = np.split(x, len(order), axis)
        text = f"the {len(order)} blocks of axis {axis} are taken in order {order}"
        yield text, np.concatenate([parts[i] for i in order], axis)


def _sorted(x: np.ndarray, axis: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the order of heads or experts whose numbers were sorted as strings: 0, 1, 10, 11, 2."""
    length = x.shape[axis]
    for count in range(11, min(length, MOST_SORTED) + 1):
        if length % count == 0:
            as_texts = sorted(range(count), key=str)
            back = tuple(as_texts.index(i) for i in range(count))
            for _, array in _in_order(x, axis, [back]):
                yield (
                    f"the {count} blocks of axis {axis} are in order (they are sorted as texts: 0, 1, 10)",
                    array,
                )


def gradient_causes(forward: AlignedForward, path: str, flax: str, budget: Budget) -> tuple[Cause, ...]:
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
        results, _ = departures.rerun(forward, departure)
        return results.loss if results else {}

    flax = forward.candidate.step(forward.batch, forward.observed.masks, keep=False).loss
    ops, search = forward.trace.ops[forward.trace.model_ops :], Search(len(forward.trace.ops), budget)
    # Known mistakes first: an arbitrary change that happens to fit explains less.
    explanations = search.first(known_mistakes(ops), watch, flax) or search.first(
        any_mistakes(ops), watch, flax
    )
    return dataclasses.replace(wording.LOSS, causes=causes_of(explanations))
