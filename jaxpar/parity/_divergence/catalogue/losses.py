"""Losses: what ports get wrong about them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional as F

from ..torch_trace import Op
from .variation import Given, Variation, acting_as, afterwards, applying, arguments_of, calling, short


def cross_entropy(op: Op) -> Iterator[Variation]:
    given = arguments_of(op)
    smoothing, weight, target = given["label_smoothing"], given["weight"], given["target"]
    yield from _reductions(given)
    yield from acting_as("label_smoothing", smoothing, (0.0, 0.1, 0.2, 0.05), short)
    if smoothing:
        yield applying(
            f"label_smoothing={smoothing:g} spreads over all classes (it spreads over the wrong ones only)",
            lambda *args, **kwargs: _smoothed_elsewhere(given),
        )
    if weight is not None:
        yield calling("class weights are used (they are not)", weight=None)
        yield afterwards(
            "the mean divides by the sum of the rows' weights (it divides by their number)",
            lambda y: y * weight[target.clamp(min=0)].sum() / target.numel(),
        )
    # optax's has no ignore_index: a port multiplies by a mask, and takes the mean over all rows.
    kept = target != given["ignore_index"]
    if not kept.all():
        yield afterwards(
            "the mean divides by the number of rows that are kept (it divides by all)",
            lambda y: y * kept.sum() / target.numel(),
        )


def _smoothed_elsewhere(given: Given) -> torch.Tensor:
    logits, target, a = given["input"], given["target"], given["label_smoothing"]
    classes = logits.shape[1]
    goal = torch.full_like(logits, a / (classes - 1)).scatter(1, target[:, None], 1 - a)
    return F.cross_entropy(logits, goal, given["weight"], reduction=given["reduction"])


def _reductions(given: Given) -> Iterator[Variation]:
    right, x = given["reduction"], given["input"]
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
    given = arguments_of(op)
    yield from _reductions(given)
    yield afterwards("there is no factor 1/2 (optax.l2_loss has one)", lambda y: y / 2)
    yield afterwards("there is a factor 1/2 (it is left out)", lambda y: y * 2)
    for name in given.keys() & {"beta", "delta"}:
        right = given[name]
        yield afterwards(
            f"{name}={right:g}: huber(delta) / delta (it is not divided)", partial(operator.mul, right)
        )
        yield from acting_as(name, right, (0.5, 1.0, 2.0), short)
    if given.get("pos_weight") is not None:
        yield calling("pos_weight is used (it is not)", pos_weight=None)


def divergence_loss(op: Op) -> Iterator[Variation]:
    """kl_div."""
    yield from acting_as("reduction", arguments_of(op)["reduction"], ("batchmean", "sum", "mean"), repr)
