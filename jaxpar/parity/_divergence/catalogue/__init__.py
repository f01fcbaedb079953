"""The catalogue of known causes: for each torch function, the mistakes that ports make.

A `Variation` calls torch's function in a wrong way; if torch then computes Flax's arrays, its text states
what Flax should have done. To add one, write an entry (from an `Op` to variations) and list its functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..torch_trace import Op
from . import axes, layers, losses, masks, positions, scales, sequences, shapes
from .any_call import anything, by_hand, other_arrays
from .variation import Entry, Variation

__all__ = ["Variation", "anything", "other_arrays", "variations"]

ACTIVATIONS = (
    "relu", "relu_", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "leaky_relu_", "elu", "selu", "celu",
    "softplus", "mish", "relu6", "hardswish", "hardsigmoid", "hardtanh",
)  # fmt: skip

JOINING = ("cat", "concat", "concatenate")

NAMES: dict[Entry, tuple[str, ...]] = {
    layers.activation: ACTIVATIONS,
    layers.epsilons: ("layer_norm", "rms_norm", "instance_norm"),
    layers.deviation: ("layer_norm",),
    layers.added_epsilon: layers.SUMS,
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
    shapes.pixel_shuffle: ("pixel_shuffle",),
    shapes.roll: ("roll",),
    shapes.flatten: ("flatten",),
    shapes.reshape: ("view", "reshape"),
    axes.heads: ("view", "reshape", "flatten", "unflatten"),
    axes.moved: ("transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t"),
    axes.reduced: (
        "mean", "sum", "amax", "amin", "max", "min", "prod", "norm", "cumsum", "logsumexp", "argmax",
        "normalize",
    ),
    axes.spread: ("var", "std"),
    axes.repeated: ("repeat_interleave", "repeat", "tile"),
    axes.norm_axis: ("layer_norm", "rms_norm"),
    positions.counted: ("arange", "cumsum"),
    positions.difference: ("sub", "__rsub__"),
    positions.negated: ("neg",),
    positions.taken: ("__getitem__",),
    positions.base: ("pow", "__pow__", "__rpow__"),
    masks.triangle: ("tril", "triu"),
    masks.comparison: tuple(
        f"{under}{name}{under}" for under in ("", "__") for name in ("lt", "le", "gt", "ge", "eq", "ne")
    ),
    masks.both: ("__and__", "__or__", "logical_and", "logical_or", "bitwise_and", "bitwise_or"),
    masks.inverted: ("__invert__", "logical_not", "bitwise_not"),
    masks.filled: ("masked_fill", "masked_fill_"),
    masks.chosen: ("where",),
    scales.factor: ("mul", "mul_", "__mul__", "__rmul__", "div", "div_", "__truediv__"),
    shapes.pieces: ("chunk", "split", "unbind"),
    shapes.concatenation: JOINING,
    shapes.binary: (
        "add", "add_", "__add__", "__radd__", "__iadd__", "mul", "mul_", "__mul__", "__rmul__", "sub",
        "__sub__", "div", "__truediv__",
    ),
    shapes.reduction: ("mean", "sum", "amax", "amin"),
    shapes.product: ("matmul", "bmm", "__matmul__"),
    scales.addition: layers.SUMS,
    scales.product: ("matmul", "bmm", "__matmul__", "einsum"),
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

ENTRIES: dict[str, list[Entry]] = {}
for _entry, _names in NAMES.items():
    for _name in _names:
        ENTRIES.setdefault(_name, []).append(_entry)

REMOVABLE = {"softmax", "layer_norm", "batch_norm", *ACTIVATIONS}  # without changing a shape


def variations(ops: Sequence[Op], index: int) -> Iterator[Variation]:
    """Yield all known wrong variations of the call ops[index]; none without an entry."""
    op = ops[index]
    for entry in ENTRIES.get(op.name, ()):
        yield from entry(op)
    if op.name in REMOVABLE:
        yield from layers.identity(op)
    if op.name in (*JOINING, "stack"):
        yield from positions.rotary(ops, index)
    if op.name in positions.INDEXED:
        yield from positions.exchanged_indices(ops, index)
    yield from layers.crossed(ops, index, frozenset(ACTIVATIONS))
    yield from by_hand(ops, index, frozenset(ACTIVATIONS))
