"""The catalogue, continued: attention, losses and recurrent layers, and the index of all entries."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from . import catalogue, catalogue_shapes
from .catalogue import Entry, Variation, afterwards, applying, arguments, calling
from .torch_trace import Op


def attention(op: Op) -> Iterator[Variation]:
    """scaled_dot_product_attention."""
    given = arguments(op)
    causal, mask, size = given.get("is_causal", False), given.get("attn_mask"), given["query"].shape[-1]
    yield calling(f"is_causal={causal} (it acts as {not causal})", is_causal=not causal, attn_mask=None)
    yield from _masks(op, "attn_mask", mask)
    right = given.get("scale") or size**-0.5
    for name, scale in (("1", 1.0), ("1 / size", 1 / size), ("the root of the size", size**0.5)):
        yield calling(f"scores are scaled by {right:.4g} (they are scaled by {name})", scale=scale)
    # softmax over queries instead of keys
    if not causal and mask is None:
        yield applying(
            "softmax runs over the keys (it runs over the queries)",
            lambda q, k, v, *args, **kwargs: (q @ k.transpose(-1, -2) * right).softmax(-2) @ v,
        )


def multi_head_attention(op: Op) -> Iterator[Variation]:
    given = arguments(op)
    yield from _masks(op, "attn_mask", given["attn_mask"])
    yield from _masks(op, "key_padding_mask", given["key_padding_mask"])
    if given["in_proj_weight"] is not None:
        for order in itertools.permutations(range(3)):
            if order != (0, 1, 2):
                words = ", ".join(("query", "key", "value")[i] for i in order)
                yield calling(
                    f"in_proj's thirds are query, key, value (they are {words})",
                    in_proj_weight=_reordered(given["in_proj_weight"], order),
                    in_proj_bias=_reordered(given["in_proj_bias"], order),
                )
    yield calling(
        "out_proj's kernel is (heads, size, out) (it is transposed)",
        out_proj_weight=given["out_proj_weight"].T,
    )
    if given["in_proj_bias"] is not None:
        yield calling("the biases of query, key and value are added (they are not)", in_proj_bias=None)


def _masks(op: Op, name: str, mask: Any) -> Iterator[Variation]:
    if mask is None:
        return
    yield calling(f"{name} is applied (it is not)", **{name: None})
    polarity = f"{name} has Flax's polarity, True for what is kept (it is inverted)"
    if mask.dtype == torch.bool:
        yield calling(polarity, **{name: ~mask})
    elif ((mask == 0) | mask.isneginf()).all():  # nn.MultiheadAttention makes such of a bool
        yield calling(polarity, **{name: torch.zeros_like(mask).masked_fill(mask == 0, -torch.inf)})


def _reordered(x: torch.Tensor | None, order: tuple[int, ...]) -> torch.Tensor | None:
    return None if x is None else torch.cat([x.chunk(len(order))[i] for i in order])


def recurrent(op: Op) -> Iterator[Variation]:
    """torch.lstm, gru and rnn: (input, states, flat weights, ...)."""
    weights = op.args[2]
    if not isinstance(weights, list | tuple):
        return
    gates = {"lstm": 4, "gru": 3}.get(op.name, 1)

    def change(order: tuple[int, ...], keep: Any = lambda i: True) -> Any:
        def with_weights(function: Any, args: tuple, kwargs: dict) -> Any:
            moved = [_reordered(w, order) if keep(i) else torch.zeros_like(w) for i, w in enumerate(args[2])]
            return function(*args[:2], moved, *args[3:], **kwargs)

        return with_weights

    for order in itertools.permutations(range(gates)):
        if order != tuple(range(gates)):
            yield Variation(f"gates are in torch's order (they are in order {order})", change(order))
    plain = tuple(range(gates))
    for skipped, name in ((2, "bias_ih"), (3, "bias_hh")):
        yield Variation(f"{name} is added (it is left out)", change(plain, lambda i, s=skipped: i % 4 != s))


def cross_entropy(op: Op) -> Iterator[Variation]:
    given = arguments(op)
    smoothing, weight, ignored = given["label_smoothing"], given["weight"], given["ignore_index"]
    yield from _reductions(op)
    for other in (0.0, 0.1, 0.2, 0.05):
        if other != smoothing:
            yield calling(f"label_smoothing={smoothing:g} (it acts as {other:g})", label_smoothing=other)
    if smoothing:
        yield applying(
            f"label_smoothing={smoothing:g} spreads over all classes (it spreads over the wrong ones only)",
            lambda *args, **kwargs: _smoothed_elsewhere(given),
        )
    if weight is not None:
        yield calling("class weights are used (they are not)", weight=None)
        yield afterwards(
            "the mean divides by the sum of the rows' weights (it divides by their number)",
            lambda y: y * weight[given["target"].clamp(min=0)].sum() / given["target"].numel(),
        )
    if (given["target"] == ignored).any():
        kept = (given["target"] != ignored).sum()
        yield afterwards(
            "the mean divides by the number of rows that are kept (it divides by all)",
            lambda y: y * kept / given["target"].numel(),
        )


def _smoothed_elsewhere(given: dict[str, Any]) -> torch.Tensor:
    logits, target, a = given["input"], given["target"], given["label_smoothing"]
    classes = logits.shape[1]
    goal = torch.full_like(logits, a / (classes - 1)).scatter(1, target[:, None], 1 - a)
    return F.cross_entropy(logits, goal, given["weight"], reduction=given["reduction"])


def _reductions(op: Op) -> Iterator[Variation]:
    given = arguments(op)
    right, x = given["reduction"], given["input"]
    for other in ("sum", "mean"):
        if other != right:
            yield calling(f"reduction={right!r} (it acts as {other!r})", reduction=other)
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
    yield from _reductions(op)
    yield afterwards("there is no factor 1/2 (optax.l2_loss has one)", lambda y: y / 2)
    yield afterwards("there is a factor 1/2 (it is left out)", lambda y: y * 2)
    given = arguments(op)
    for name in ("beta", "delta"):
        if name in given:
            right = given[name]
            yield afterwards(
                f"{name}={right:g}: huber(delta) / delta (it is not divided)", partial(operator.mul, right)
            )
            for other in (0.5, 1.0, 2.0):
                if other != right:
                    yield calling(f"{name}={right:g} (it acts as {other:g})", **{name: other})
    if given.get("pos_weight") is not None:
        yield calling("pos_weight is used (it is not)", pos_weight=None)


def divergence_loss(op: Op) -> Iterator[Variation]:
    right = arguments(op)["reduction"]
    for other in ("batchmean", "sum", "mean"):
        if other != right:
            yield calling(f"reduction={right!r} (it acts as {other!r})", reduction=other)


RELU_LIKE = [
    "relu",
    "relu_",
    "gelu",
    "silu",
    "tanh",
    "sigmoid",
    "leaky_relu",
    "leaky_relu_",
    "elu",
    "selu",
    "celu",
    "softplus",
    "mish",
    "relu6",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
]

ENTRIES: dict[str, tuple[Entry, ...]] = {
    **dict.fromkeys(RELU_LIKE, (catalogue.activation,)),
    "layer_norm": (catalogue.epsilons,),
    "rms_norm": (catalogue.epsilons,),
    "group_norm": (catalogue.group_norm,),
    "instance_norm": (catalogue.instance_norm,),
    "batch_norm": (catalogue.batch_norm,),
    "softmax": (catalogue.softmax,),
    "log_softmax": (catalogue.softmax,),
    **dict.fromkeys(["dropout", "dropout1d", "dropout2d", "dropout3d"], (catalogue.dropout,)),
    "linear": (catalogue_shapes.linear,),
    **dict.fromkeys(catalogue.BUILTIN.keys() & {f"conv{t}{n}d" for t in ("", "_transpose") for n in "123"},
                    (catalogue_shapes.convolution,)),
    **dict.fromkeys(["avg_pool1d", "avg_pool2d", "avg_pool3d"], (catalogue_shapes.average_pool,)),
    **dict.fromkeys(["max_pool1d", "max_pool2d", "max_pool3d"], (catalogue_shapes.max_pool,)),
    "interpolate": (catalogue_shapes.interpolate,),
    "flatten": (catalogue_shapes.flatten,),
    **dict.fromkeys(["view", "reshape"], (catalogue_shapes.reshape,)),
    **dict.fromkeys(["chunk", "split", "unbind"], (catalogue_shapes.pieces,)),
    **dict.fromkeys(["cat", "concat"], (catalogue_shapes.concatenation,)),
    **dict.fromkeys(
        ["add", "add_", "__add__", "__radd__", "__iadd__", "mul", "mul_", "__mul__", "__rmul__", "sub",
         "__sub__", "div", "__truediv__"],
        (catalogue_shapes.binary,),
    ),
    **dict.fromkeys(["mean", "sum"], (catalogue_shapes.reduction,)),
    **dict.fromkeys(["matmul", "bmm", "__matmul__"], (catalogue_shapes.product,)),
    "embedding": (catalogue_shapes.embedding,),
    "scaled_dot_product_attention": (attention,),
    "multi_head_attention_forward": (multi_head_attention,),
    **dict.fromkeys(["lstm", "gru", "rnn_tanh", "rnn_relu"], (recurrent,)),
    **dict.fromkeys(["cross_entropy"], (cross_entropy,)),
    **dict.fromkeys(
        ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
         "binary_cross_entropy_with_logits", "nll_loss"],
        (elementwise_loss,),
    ),
    "kl_div": (divergence_loss,),
}  # fmt: skip
"""By the name of the torch function."""


def variations(op: Op) -> Iterator[Variation]:
    """All known wrong ways to call this function; of a function that is not in the catalogue, none."""
    for entry in ENTRIES.get(op.name, ()):
        yield from entry(op)
    elementwise = {"softmax", "layer_norm", "batch_norm", *RELU_LIKE}
    if op.name in elementwise:
        yield from catalogue.identity(op)
