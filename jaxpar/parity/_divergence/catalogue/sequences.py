"""Mistakes with attention and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from ...._typing import PyTree
from ..torch_trace import Change, Function, Op
from . import masks
from .scales import roots
from .variation import Kwargs, Variation, acting_as, applying, arguments_of, calling, orders, reordered


def attention(op: Op) -> Iterator[Variation]:
    """scaled_dot_product_attention."""
    bound = arguments_of(op)
    query, key = bound["query"], bound["key"]
    causal, mask, size = bound.get("is_causal", False), bound.get("attn_mask"), query.shape[-1]
    yield from acting_as("is_causal", causal, [not causal], attn_mask=None)
    yield from _masks("attn_mask", mask)
    right = bound.get("scale") or size**-0.5
    width = size * query.shape[1]
    scales = {"1": 1.0, "1 / size": 1 / size, "the root of the size": size**0.5}
    for name, scale in {**scales, **roots((size, width, key.shape[-2]))}.items():
        if scale != right:
            yield calling(f"scores are scaled by {right:.4g} (they are scaled by {name})", scale=scale)
    visible = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
    if causal:
        for text, change in masks.changes(visible.tril()):
            yield calling(text, is_causal=False, attn_mask=change(visible.tril()))
    yield from masks.of_attention("attn_mask", op)
    yield applying(
        "softmax runs over the keys (it runs over the queries)",
        partial(_over_queries, right, visible.tril() if causal else mask),
    )


def _over_queries(
    scale: float, mask: torch.Tensor | None, /, *args: torch.Tensor, **kwargs: object
) -> torch.Tensor:
    q, k, v = args[:3]
    scores = q @ k.mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-2) @ v


def multi_head_attention(op: Op) -> Iterator[Variation]:
    bound = arguments_of(op)
    yield from _masks("attn_mask", bound["attn_mask"])
    yield from masks.of_attention("attn_mask", op)
    yield from _masks("key_padding_mask", bound["key_padding_mask"])
    if bound["in_proj_weight"] is not None:
        for order in orders(3):
            wrong_order = ", ".join(("query", "key", "value")[i] for i in order)
            yield calling(
                f"in_proj's thirds are query, key, value (they are {wrong_order})",
                in_proj_weight=reordered(bound["in_proj_weight"], order),
                in_proj_bias=reordered(bound["in_proj_bias"], order),
            )
    yield calling(
        "out_proj's kernel is (heads, size, out) (it is transposed)",
        out_proj_weight=bound["out_proj_weight"].T,
    )
    if bound["in_proj_bias"] is not None:
        yield calling("the biases of query, key and value are added (they are not)", in_proj_bias=None)


def _masks(name: str, mask: torch.Tensor | None) -> Iterator[Variation]:
    if mask is None:
        return
    yield calling(f"{name} is applied (it is not)", **{name: None})
    # True masks out in torch's nn.MultiheadAttention, but keeps in scaled_dot_product_attention and in Flax.
    polarity = f"{name} has Flax's polarity, True for what is kept (it is inverted)"
    if mask.dtype == torch.bool:
        yield calling(polarity, **{name: ~mask})
    elif ((mask == 0) | mask.isneginf()).all():  # nn.MultiheadAttention converts bool masks to this form
        yield calling(polarity, **{name: torch.zeros_like(mask).masked_fill(mask == 0, -torch.inf)})


def recurrent(op: Op) -> Iterator[Variation]:
    """torch.lstm, gru and rnn: (input, states, flat weights, ...)."""
    if not isinstance(op.args[2], list | tuple):  # the overload for a PackedSequence
        return
    gates = {"lstm": 4, "gru": 3}.get(op.name, 1)
    for order in orders(gates):
        yield Variation(f"gates are in torch's order (they are in order {order})", _with_weights(order))
    # Four weights for each layer and direction: two kernels, then two biases.
    plain = tuple(range(gates))
    for skipped, name in ((2, "bias_ih"), (3, "bias_hh")):
        is_used = lambda i, skipped=skipped: i % 4 != skipped  # noqa: E731
        yield Variation(f"{name} is added (it is left out)", _with_weights(plain, is_used))
    if op.name == "lstm" and op.args[3]:  # with biases
        yield Variation("the forget gate has no bias of its own (1 is added to it)", _with_forget_bias)
    _, _, _, _, layers, _, _, both_ways, batch_first = op.args
    if both_ways and layers == 1:
        time = 1 if batch_first else 0
        text = "the backward direction reads from the end (it reads from the beginning)"
        yield Variation(text, partial(_backward, True, time))
        text = "the backward direction's results are in the order of time (they are in the order of reading)"
        yield Variation(text, partial(_backward, False, time))


def _with_forget_bias(function: Function, args: tuple, kwargs: Kwargs) -> PyTree:
    """Add 1 to the forget gate, the second of four blocks, as TensorFlow's and Haiku's LSTM do."""
    weights = list(args[2])
    for i in range(2, len(weights), 4):
        size = weights[i].shape[0] // 4
        weights[i] = torch.cat([weights[i][:size], weights[i][size : 2 * size] + 1, weights[i][2 * size :]])
    return function(*args[:2], weights, *args[3:], **kwargs)


def _backward(reads_forward: bool, time: int, function: Function, args: tuple, kwargs: Kwargs) -> PyTree:
    """Reverse what the backward direction of one layer reads or only what it returns."""
    output, *states = function(*args, **kwargs)
    other = function(args[0].flip(time), *args[1:], **kwargs)[0] if reads_forward else output
    forward, _ = output.chunk(2, -1)
    return (torch.cat([forward, other.chunk(2, -1)[1].flip(time)], -1), *states)


def _with_weights(order: tuple[int, ...], is_used: Callable[[int], bool] = lambda i: True) -> Change:
    """Reorder the gates of all weights; unused weights become zeros."""

    def change(function: Function, args: tuple, kwargs: Kwargs) -> PyTree:
        moved = [reordered(w, order) if is_used(i) else torch.zeros_like(w) for i, w in enumerate(args[2])]
        return function(*args[:2], moved, *args[3:], **kwargs)

    return change
