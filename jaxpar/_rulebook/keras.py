"""Layers of Keras 3, whose leaves are named by Keras's attributes without leading underscores."""

from __future__ import annotations

import dataclasses

import numpy as np

from . import attention, convolution, dense, normalisation, recurrent
from .rule import Layer, Part, Rule, Shapes, kernel, same

AFFINE = (same("weight", "gamma"), same("bias", "beta"))
MOVING = (same("running_mean", "moving_mean"), same("running_var", "moving_variance"))


def _in_layout(rule: Rule, layer: Layer) -> Rule:
    """Return the rule of a layer for whose channels the data format, or the axis of a norm, is decisive."""
    first = getattr(layer, "data_format", None) == "channels_first" or getattr(layer, "axis", -1) == 1
    return dataclasses.replace(rule, channels=None) if first else rule


def _einsum(layer: Layer, shapes: Shapes | None) -> Rule | None:
    """EinsumDense that contracts an input's last axes with the kernel's first ones."""
    inputs, arrow, outputs = layer.equation.replace(" ", "").partition("->")
    inputs, _, weights = inputs.partition(",")
    out = "".join(axis for axis in weights if axis in outputs)
    into = weights.removesuffix(out)
    plain = arrow and into and inputs.endswith(into) and outputs == inputs.removesuffix(into) + out
    if not plain or not shapes or "kernel" not in shapes:
        return None
    shape = shapes["kernel"]
    sizes = shape[: len(into)], shape[len(into) :]
    bias = dense.cut_bias("bias", "bias", shapes.get("bias", sizes[1]))
    return Rule("Linear", (dense.cut_kernel("weight", "kernel", *sizes), bias))


def _convolution(layer: Layer, shapes: Shapes | None) -> Rule:
    return _in_layout(convolution.convolution(layer, shapes), layer)


def _transposed(layer: Layer, shapes: Shapes | None) -> Rule:
    return _in_layout(convolution.transposed(layer, shapes), layer)


def _depthwise(layer: Layer, shapes: Shapes | None) -> Rule:
    """(C*M, 1, *k) to (*k, C, M)."""
    M = layer.depth_multiplier

    def forth(weight: np.ndarray) -> tuple[np.ndarray]:
        moved = np.moveaxis(weight[:, 0], 0, -1)
        return (moved.reshape(*moved.shape[:-1], -1, M),)

    def back(array: np.ndarray) -> tuple[np.ndarray]:
        C = array.shape[-2]
        return (np.moveaxis(array.reshape(*array.shape[:-2], C * M), -1, 0)[:, None],)

    rule = convolution.convolution(layer, shapes)
    parts = Part(("weight",), ("kernel",), forth, back), same("bias")
    return _in_layout(dataclasses.replace(rule, parts=parts), layer)


def _batch_norm(layer: Layer, shapes: Shapes | None) -> Rule:
    return _in_layout(dataclasses.replace(normalisation.BATCH_NORM, parts=AFFINE + MOVING), layer)


def _group_norm(layer: Layer, shapes: Shapes | None) -> Rule:
    return _in_layout(Rule("GroupNorm", AFFINE, "last"), layer)


def _attention(layer: Layer, shapes: Shapes | None) -> Rule:
    return attention.by_heads(layer.num_heads, ("query_dense", "key_dense", "value_dense", "output_dense"))


def _gru(layer: Layer, shapes: Shapes | None) -> Rule | None:
    """Keras's gates are z, r, n, and torch's r, z, n; None without `reset_after`, which torch always does."""
    if not layer.reset_after:
        return None

    def swapped(array: np.ndarray) -> np.ndarray:
        r, z, n = np.split(array, 3)
        return np.concatenate([z, r, n])

    def matrix(torch: str, flax: str) -> Part:
        return Part((torch,), (flax,), lambda w: (swapped(w).T,), lambda k: (swapped(k.T),))

    biases = Part(
        recurrent.BOTH,
        ("bias",),
        lambda a, b: (np.stack([swapped(a), swapped(b)]),),
        lambda both: (swapped(both[0]), swapped(both[1])),
    )
    return Rule("GRUCell", (matrix("weight_ih", "kernel"), matrix("weight_hh", "recurrent_kernel"), biases))


def _prelu(layer: Layer, shapes: Shapes | None) -> Rule:
    """(C,), or (1,) for one slope, to an array for all axes, of which those that share slopes are 1."""
    shape = (shapes or {}).get("alpha", (-1,))
    return _in_layout(Rule("PReLU", (dense.cut_bias("weight", "alpha", shape),), "last"), layer)


def _cell(kind: str) -> Rule:
    weights = kernel("weight_ih"), kernel("weight_hh", "recurrent_kernel")
    return Rule(kind, (*weights, recurrent.merged("bias")))


ROWS = {
    "keras.Dense": dense.LINEAR,
    "keras.EinsumDense": _einsum,
    "keras.Embedding": Rule("Embedding", (same("weight", "embeddings"),), also=("EmbeddingBag",)),
    "keras.PReLU": _prelu,
    "keras.BatchNormalization": _batch_norm,
    "keras.LayerNormalization": Rule("LayerNorm", AFFINE),
    "keras.GroupNormalization": _group_norm,
    "keras.RMSNormalization": Rule("RMSNorm", (same("weight", "scale"),)),
    "keras.MultiHeadAttention": _attention,
    "keras.LSTMCell": _cell("LSTMCell"),
    "keras.SimpleRNNCell": _cell("RNNCell"),
    "keras.GRUCell": _gru,
    **{f"keras.{kind}": Rule(kind) for kind in ("Dropout", "AlphaDropout", "ReLU", "LeakyReLU", "ELU")},
    **{f"keras.{kind}": Rule(kind) for kind in ("Softmax", "Identity")},
    **{f"keras.SpatialDropout{n}D": Rule(f"Dropout{n}d", (), "last") for n in (1, 2, 3)},
    **{f"keras.Conv{n}D": _convolution for n in (1, 2, 3)},
    **{f"keras.Conv{n}DTranspose": _transposed for n in (1, 2, 3)},
    **{f"keras.DepthwiseConv{n}D": _depthwise for n in (1, 2)},
    **{f"keras.MaxPooling{n}D": Rule(f"MaxPool{n}d", (), "last") for n in (1, 2, 3)},
    **{f"keras.AveragePooling{n}D": Rule(f"AvgPool{n}d", (), "last") for n in (1, 2, 3)},
    **{f"keras.UpSampling{n}D": Rule("Upsample", (), "last") for n in (1, 2, 3)},
    **{f"keras.ZeroPadding{n}D": Rule(f"ZeroPad{n}d", (), "last") for n in (1, 2, 3)},
}
