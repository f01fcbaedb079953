"""What constructing a torch layer draws: its tensors by their torch names, filled in torch's order.

Source: `reset_parameters` in torch/nn/modules/linear.py, conv.py, sparse.py, rnn.py, activation.py
and the norms', torch 2.13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import init
from ._generator import Generator

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = Mapping[str, Array]
Construct = Callable[[Tensors, Any, Generator], None]
"""Fills the tensors; the layer is asked for what their shapes do not say."""


def construction(kind: str) -> Construct | None:
    """The row of torch's class `kind`: "Conv2d" is that of Conv."""
    return _ROWS.get(re.sub(r"[123]d$", "", kind))


def axes_of(kind: str) -> int | None:
    """How many axes its weight has, where that is always the same."""
    if convolution := re.fullmatch(r"Conv(?:Transpose)?([123])d", kind):
        return int(convolution[1]) + 2
    return {"Linear": 2, "Bilinear": 3, "Embedding": 2, "EmbeddingBag": 2}.get(kind)


def why_not(kind: str) -> str:
    """The reason why a class has no row."""
    if kind.startswith("Parametrized"):
        return "which begins with norms that torch sums up in an order of its own."
    return "and it is not known here what its constructor draws."


def _affine(tensors: Tensors, layer: Any, generator: Generator) -> None:
    del layer
    weight = tensors["weight"]
    fan_in, _ = init.fans(weight)
    if weight.size:
        init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    if "bias" in tensors:
        bound = 1 / math.sqrt(fan_in) if fan_in else 0
        generator.uniform_(tensors["bias"], -bound, bound)


def _bilinear(tensors: Tensors, layer: Any, generator: Generator) -> None:
    del layer
    bound = 1 / math.sqrt(tensors["weight"].shape[1])
    for name in ("weight", "bias"):
        if name in tensors:
            generator.uniform_(tensors[name], -bound, bound)


def _embedding(tensors: Tensors, layer: Any, generator: Generator) -> None:
    generator.normal_(tensors["weight"])
    padding = getattr(layer, "padding_idx", None)
    if padding is not None:
        tensors["weight"][padding] = 0


def _recurrent(gates: int) -> Construct:
    def construct(tensors: Tensors, layer: Any, generator: Generator) -> None:
        del layer
        hidden = next(t.shape[0] for name, t in tensors.items() if name.startswith("weight_hh")) // gates
        bound = 1 / math.sqrt(hidden) if hidden else 0
        for name in sorted(tensors, key=_place):
            generator.uniform_(tensors[name], -bound, bound)

    return construct


_TENSORS = ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"]


def _place(name: str) -> tuple[int, bool, int]:
    """Where a recurrent layer keeps a tensor: by depth, direction and this list."""
    tensor, _, rest = name.partition("_l")
    depth, _, reverse = rest.partition("_")
    return int(depth or 0), bool(reverse), _TENSORS.index(tensor)


def _attention(tensors: Tensors, layer: Any, generator: Generator) -> None:
    out = {"weight": tensors["out_proj.weight"]}
    if "out_proj.bias" in tensors:
        out["bias"] = tensors["out_proj.bias"]
    _affine(out, layer, generator)
    for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
        if name in tensors:
            init.xavier_uniform_(tensors[name], generator=generator)
    for name in ("in_proj_bias", "out_proj.bias"):
        if name in tensors:
            init.zeros_(tensors[name])
    for name in ("bias_k", "bias_v"):
        if name in tensors:
            init.xavier_normal_(tensors[name], generator=generator)


def _norm(tensors: Tensors, layer: Any, generator: Generator) -> None:
    del layer, generator
    for name, tensor in tensors.items():
        init.constant_(tensor, name in ("weight", "running_var"))


def keep(tensors: Tensors, layer: Any, generator: Generator) -> None:
    """For what a constructor is told: the tensors come with the values that they have."""
    del tensors, layer, generator


_ROWS: dict[str, Construct] = {
    **dict.fromkeys(("Linear", "Conv", "ConvTranspose"), _affine),
    "Bilinear": _bilinear,
    **dict.fromkeys(("Embedding", "EmbeddingBag"), _embedding),
    **dict.fromkeys(("LSTM", "LSTMCell"), _recurrent(4)),
    **dict.fromkeys(("GRU", "GRUCell"), _recurrent(3)),
    **dict.fromkeys(("RNN", "RNNCell"), _recurrent(1)),
    "MultiheadAttention": _attention,
    **dict.fromkeys(
        ("BatchNorm", "SyncBatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm"), _norm
    ),
    "PReLU": keep,
}
