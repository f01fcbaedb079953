"""Mistakes with losses."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional as F

from ..torch_trace import Op
from .variation import Kwargs, Variation, acting_as, afterwards, applying, arguments_of, calling, short


def cross_entropy(op: Op) -> Iterator[Variation]:
    bound = arguments_of(op)
    smoothing, weight, target = bound["label_smoothing"], bound["weight"], bound["target"]
    yield from _reductions(bound)
    yield from acting_as("label_smoothing", smoothing, (0.0, 0.1, 0.2, 0.05), short)
    if smoothing:
        yield applying(
            f"label_smoothing={smoothing:g} spreads over all classes (it spreads over the wrong ones only)",
            lambda *args, **kwargs: _smoothed_elsewhere(bound),
        )
    if weight is not None:
        yield calling("class weights are used (they are not)", weight=None)
        yield afterwards(
            "the mean divides by the sum of the rows' weights (it divides by their number)",
            lambda y: y * weight[target.clamp(min=0)].sum() / target.numel(),
        )
    # optax has no ignore_index, so a port multiplies by a mask and takes the mean over all rows.
    counted = target != bound["ignore_index"]
    if not counted.all():
        yield afterwards(
            "the mean divides by the number of rows that are kept (it divides by all)",
            lambda y: y * counted.sum() / target.numel(),
        )


def _smoothed_elsewhere(bound: Kwargs) -> torch.Tensor:
    logits, target, a = bound["input"], bound["target"], bound["label_smoothing"]
    classes = logits.shape[1]
    goal = torch.full_like(logits, a / (classes - 1)).scatter(1, target[:, None], 1 - a)
    return F.cross_entropy(logits, goal, bound["weight"], reduction=bound["reduction"])


def _reductions(bound: Kwargs) -> Iterator[Variation]:
    right, x = bound["reduction"], bound["input"]
    yield from acting_as("reduction", right, ("sum", "mean"), repr)
    if right == "mean":
        rows, columns = x.shape[0], x.numel() / max(x.shape[0], 1)
        yield afterwards(
            "the mean runs over all elements (it runs over the rows alone)", lambda y: y * columns
        )
        yield afterwards(
            "the mean runs over the rows alone (it runs over all elements)", lambda y: y / columns
        )
        yield afterwards(f"it is divided by the rows once (by {rows} twice)", lambda y: y / rows)


def elementwise_loss(op: Op) -> Iterator[Variation]:
    bound = arguments_of(op)
    yield from _reductions(bound)
    yield afterwards("there is no factor 1/2 (optax.l2_loss has one)", lambda y: y / 2)
    yield afterwards("there is a factor 1/2 (it is left out)", lambda y: y * 2)
    for name in bound.keys() & {"beta", "delta"}:
        right = bound[name]
        yield afterwards(
            f"{name}={right:g}: huber(delta) / delta (it is not divided)", partial(operator.mul, right)
        )
        yield from acting_as(name, right, (0.5, 1.0, 2.0), short)
    if bound.get("pos_weight") is not None:
        yield calling("pos_weight is used (it is not)", pos_weight=None)


def divergence_loss(op: Op) -> Iterator[Variation]:
    """kl_div."""
    yield from acting_as("reduction", arguments_of(op)["reduction"], ("batchmean", "sum", "mean"), repr)
