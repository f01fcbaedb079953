"""The catalogue of known causes: for each function of torch, what a port gets wrong about it.

An entry is a function from an `Op` to `Variation`s. A variation runs torch's function the wrong way; if torch
then gives what Flax gave, its text says what Flax should have done. To add one, write an entry in the file
that the function belongs to, and name the function here.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..torch_trace import Op
from . import layers, losses, sequences, shapes
from .variation import Entry, Variation

ACTIVATIONS = (
    "relu", "relu_", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "leaky_relu_", "elu", "selu", "celu",
    "softplus", "mish", "relu6", "hardswish", "hardsigmoid", "hardtanh",
)  # fmt: skip

NAMES: dict[Entry, tuple[str, ...]] = {
    layers.activation: ACTIVATIONS,
    layers.epsilons: ("layer_norm", "rms_norm", "instance_norm"),
    layers.group_norm: ("group_norm",),
    layers.batch_norm: ("batch_norm",),
    layers.softmax: ("softmax", "log_softmax"),
    layers.dropout: ("dropout", "dropout1d", "dropout2d", "dropout3d"),
    layers.linear: ("linear",),
    layers.embedding: ("embedding",),
    shapes.convolution: tuple(f"conv{transposed}{n}d" for transposed in ("", "_transpose") for n in "123"),
    shapes.average_pool: ("avg_pool1d", "avg_pool2d", "avg_pool3d"),
    shapes.max_pool: ("max_pool1d", "max_pool2d", "max_pool3d"),
    shapes.interpolate: ("interpolate",),
    shapes.flatten: ("flatten",),
    shapes.reshape: ("view", "reshape"),
    shapes.pieces: ("chunk", "split", "unbind"),
    shapes.concatenation: ("cat", "concat"),
    shapes.binary: (
        "add", "add_", "__add__", "__radd__", "__iadd__", "mul", "mul_", "__mul__", "__rmul__", "sub",
        "__sub__", "div", "__truediv__",
    ),
    shapes.reduction: ("mean", "sum"),
    shapes.product: ("matmul", "bmm", "__matmul__"),
    sequences.attention: ("scaled_dot_product_attention",),
    sequences.multi_head_attention: ("multi_head_attention_forward",),
    sequences.recurrent: ("lstm", "gru", "rnn_tanh", "rnn_relu"),
    losses.cross_entropy: ("cross_entropy",),
    losses.elementwise_loss: (
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "nll_loss",
    ),
    losses.divergence_loss: ("kl_div",),
}  # fmt: skip
"""By entry: the names of the torch functions that it is about."""

ENTRIES = {name: entry for entry, names in NAMES.items() for name in names}
REMOVABLE = {"softmax", "layer_norm", "batch_norm", *ACTIVATIONS}
"""Functions that a port may leave out without a change of shapes."""


def variations(op: Op) -> Iterator[Variation]:
    """All known wrong ways to call this function; none for a function that is not in the catalogue."""
    if op.name in ENTRIES:
        yield from ENTRIES[op.name](op)
    if op.name in REMOVABLE:
        yield from layers.identity(op)
