"""What the constructors of torch's layers draw: tensors by their torch names, filled in torch's order.

Source: `reset_parameters` in the files of torch/nn/modules, torch 2.13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import init
from ._generator import Generator

Tensors = Mapping[str, np.ndarray]
Construct = Callable[[Tensors, Any, Generator], None]
"""Fill the tensors; read from the layer only options that the shapes do not determine."""


def construction(kind: str) -> Construct | None:
    return _ROWS.get(re.sub(r"[123]d$", "", kind))


def axes_of(kind: str) -> int | None:
    if convolution := re.fullmatch(r"Conv(?:Transpose)?([123])d", kind):
        return int(convolution[1]) + 2
    return {"Linear": 2, "Bilinear": 3, "Embedding": 2, "EmbeddingBag": 2}.get(kind)


def reason_missing(kind: str) -> str:
    if kind.startswith("Parametrized"):
        return "which begins with norms that torch sums up in an order of its own."
    return "and it is not known here what its constructor draws."


def _kaiming_uniform(tensors: Tensors, layer: Any, generator: Generator) -> None:
    weight = tensors["weight"]
    fan_in, _ = init.fans(weight)
    # For a weight without elements torch draws nothing, and warns.
    if weight.size:
        init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    if "bias" in tensors:
        bound = 1 / math.sqrt(fan_in) if fan_in else 0
        generator.uniform_(tensors["bias"], -bound, bound)


def _bilinear(tensors: Tensors, layer: Any, generator: Generator) -> None:
    bound = 1 / math.sqrt(tensors["weight"].shape[1])  # (out, in1, in2): only in1 counts
    for name in ("weight", "bias"):
        if name in tensors:
            generator.uniform_(tensors[name], -bound, bound)


def _embedding(tensors: Tensors, layer: Any, generator: Generator) -> None:
    generator.normal_(tensors["weight"])
    # The padding row is drawn like any other, and zeroed after that.
    padding = getattr(layer, "padding_idx", None)
    if padding is not None:
        tensors["weight"][padding] = 0


def _recurrent(gates: int) -> Construct:
    def construct(tensors: Tensors, layer: Any, generator: Generator) -> None:
        # Not from the columns: with proj_size these are fewer than hidden_size.
        hidden = next(t.shape[0] for name, t in tensors.items() if name.startswith("weight_hh")) // gates
        bound = 1 / math.sqrt(hidden) if hidden else 0
        for name in sorted(tensors, key=_position):
            generator.uniform_(tensors[name], -bound, bound)

    return construct


_RECURRENT_ORDER = ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"]


def _position(name: str) -> tuple[int, bool, int]:
    """Where a recurrent layer keeps a tensor: by depth, direction and the list above."""
    tensor, _, suffix = name.partition("_l")
    depth, _, reverse = suffix.partition("_")
    return int(depth or 0), bool(reverse), _RECURRENT_ORDER.index(tensor)


def _attention(tensors: Tensors, layer: Any, generator: Generator) -> None:
    # The output projection is constructed, and draws, before _reset_parameters draws the others; the bias
    # that it draws is overwritten with zeros.
    out = {"weight": tensors["out_proj.weight"]}
    if "out_proj.bias" in tensors:
        out["bias"] = tensors["out_proj.bias"]
    _kaiming_uniform(out, layer, generator)
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
    for name, tensor in tensors.items():
        init.constant_(tensor, name in ("weight", "running_var"))


def keep_values(tensors: Tensors, layer: Any, generator: Generator) -> None:
    """For values that a constructor is given: the tensors keep those they have."""


_ROWS: dict[str, Construct] = {
    **dict.fromkeys(("Linear", "Conv", "ConvTranspose"), _kaiming_uniform),
    "Bilinear": _bilinear,
    **dict.fromkeys(("Embedding", "EmbeddingBag"), _embedding),
    **dict.fromkeys(("LSTM", "LSTMCell"), _recurrent(4)),
    **dict.fromkeys(("GRU", "GRUCell"), _recurrent(3)),
    **dict.fromkeys(("RNN", "RNNCell"), _recurrent(1)),
    "MultiheadAttention": _attention,
    **dict.fromkeys(
        ("BatchNorm", "SyncBatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm"), _norm
    ),
    "PReLU": keep_values,
}
