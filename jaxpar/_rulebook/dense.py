"""Linear, TiedLinear, Bilinear, Embedding and PReLU."""

from __future__ import annotations

import math
from typing import Any

from .rule import Layer, Part, Rule, Shape, Shapes, kernel, same

LINEAR = Rule("Linear", (kernel(), same("bias")), also=("NonDynamicallyQuantizableLinear", "LazyLinear"))
TIED = Rule("Linear", (same("weight", "embedding"), same("bias")))
EMBEDDING = Rule("Embedding", (same("weight", "embedding"),), also=("EmbeddingBag",))
PRELU_BY_CHANNEL = Rule("PReLU", (same("weight", "negative_slope"),), "last")


def general(layer: Layer, shapes: Shapes | None) -> Rule | None:
    """Linen's layer does not store its input features; several input axes are read from `shapes`."""
    # Batch dimensions give each batch entry a kernel of its own, which no layer of torch has.
    if getattr(layer, "batch_axis", None) or getattr(layer, "batch_dims", None):
        return None
    if hasattr(layer, "in_features"):
        into, out = _tuple(layer.in_features), _tuple(layer.out_features)
    elif shapes and "kernel" in shapes:
        out = _tuple(layer.features)
        into = shapes["kernel"][: -len(out)]
    elif len(_tuple(layer.axis)) == 1:
        into, out = (-1,), _tuple(layer.features)
    else:
        return None
    return Rule("Linear", (cut_kernel("weight", "kernel", into, out), cut_bias("bias", "bias", out)))


def cut_kernel(torch: str, flax: str, into: Shape, out: Shape) -> Part:
    """Convert a (prod(out), prod(into)) matrix to an (*into, *out) kernel."""
    rows = math.prod(out)
    return Part((torch,), (flax,), lambda w: (w.T.reshape(*into, *out),), lambda k: (k.reshape(-1, rows).T,))


def cut_bias(torch: str, flax: str, out: Shape) -> Part:
    return Part((torch,), (flax,), lambda b: (b.reshape(out),), lambda b: (b.reshape(-1),))


def _tuple(value: Any) -> Shape:
    return (value,) if isinstance(value, int) else tuple(value)


# Raises for a torch layer with one slope per channel.
PRELU = Rule("PReLU", (cut_bias("weight", "negative_slope", ()),))
# (O, I, J) to (I, J, O)
_TURN = Part(("weight",), ("kernel",), lambda w: (w.transpose(1, 2, 0),), lambda k: (k.transpose(2, 0, 1),))
BILINEAR = Rule("Bilinear", (_TURN, same("bias")))
ROWS = {
    **dict.fromkeys(("nnx.Linear", "linen.Dense"), LINEAR),
    **dict.fromkeys(("nnx.LinearGeneral", "linen.DenseGeneral"), general),
    **dict.fromkeys(("nnx.Embed", "linen.Embed", "jaxpar.nn.Embedding", "jaxpar.nn.EmbeddingBag"), EMBEDDING),
    **dict.fromkeys(("nnx.PReLU", "linen.PReLU"), PRELU),
    **dict.fromkeys(("nnx.Dropout", "linen.Dropout"), Rule("Dropout")),
    "jaxpar.nn.TiedLinear": TIED,
    "jaxpar.nn.PReLU": PRELU_BY_CHANNEL,
    "jaxpar.nn.Bilinear": BILINEAR,
}
