"""LSTM, GRU and RNN: gates in one tensor or several, two biases in torch, one or two in Flax.

Where Flax stores the sum of torch's two biases, a value converts back to (b, 0). The gradients of both biases
are equal, so a gradient converts back to (g, g). Training differs: torch's optimizer updates both biases.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import MatchError
from .rule import Layer, Part, Rule, Shapes, kernel, same

BOTH = ("bias_ih", "bias_hh")


def merged(flax: str) -> Part:
    """Convert bias_ih and bias_hh to their sum, one Flax bias."""
    return Part(
        BOTH,
        (flax,),
        lambda a, b: (a + b,),
        lambda b: (b, np.zeros_like(b)),
        lambda a, b: (a,),
        lambda g: (g, g),
    )


def gates(torch: str, flax: tuple[str, ...]) -> Part:
    """Convert a (G*H, I) matrix to G kernels (I, H)."""
    return Part(
        (torch,),
        flax,
        lambda w: tuple(part.T for part in np.split(w, len(flax))),
        lambda *parts: (np.concatenate(parts, 1).T,),
    )


def merged_gates(flax: tuple[str, ...]) -> Part:
    """Convert bias_ih and bias_hh, (G*H,), to the G slices (H,) of their sum."""
    n = len(flax)
    return Part(
        BOTH,
        flax,
        lambda a, b: tuple(np.split(a + b, n)),
        lambda *parts: (b := np.concatenate(parts), np.zeros_like(b)),
        lambda a, b: tuple(np.split(a, n)),
        lambda *parts: (g := np.concatenate(parts), g),
    )


def _bias_without_hn() -> Part:
    """Convert nnx.GRUCell's biases: sums for r and z, and b_in for n; the cell lacks a b_hn.

    MatchError for a b_hn that is not zero; its gradient converts back to 0, the gradient of a constant.
    """

    def forth(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        # b_hn is inside the product with r, so it cannot be merged with b_in.
        H = len(a) // 3
        hn = b[2 * H :]
        if np.any(hn != 0):
            raise MatchError(
                f"bias_hh[{2 * H}:{3 * H}], torch's b_hn, is not 0 (largest magnitude "
                f"{np.abs(hn.astype(np.float64)).max():.3g}), and nnx.GRUCell has no such bias. Use "
                "jaxpar.nn.GRU, or Linen's GRUCell, which have one."
            )
        return (a + b,)

    def gradient_back(g: np.ndarray) -> tuple[np.ndarray, ...]:
        H = len(g) // 3
        return g, np.concatenate([g[: 2 * H], np.zeros_like(g[2 * H :])])

    return Part(
        BOTH, ("dense_i.bias",), forth, lambda b: (b, np.zeros_like(b)), lambda a, b: (a,), gradient_back
    )


def _gru_biases() -> Part:
    def forth(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        (ar, az, an), (br, bz, bn) = np.split(a, 3), np.split(b, 3)
        return ar + br, az + bz, an, bn

    def back(r: np.ndarray, z: np.ndarray, n: np.ndarray, hn: np.ndarray) -> tuple[np.ndarray, ...]:
        return np.concatenate([r, z, n]), np.concatenate([np.zeros_like(r), np.zeros_like(z), hn])

    # The sum's gradient is the gradient of either bias, so r and z are taken from bias_ih.
    def gradient_forth(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        return (*np.split(a, 3), np.split(b, 3)[2])

    def gradient_back(r: np.ndarray, z: np.ndarray, n: np.ndarray, hn: np.ndarray) -> tuple[np.ndarray, ...]:
        return np.concatenate([r, z, n]), np.concatenate([r, z, hn])

    leaves = ("ir.bias", "iz.bias", "in.bias", "hn.bias")
    return Part(BOTH, leaves, forth, back, gradient_forth, gradient_back)


def lstm_by_gates(f: str) -> Rule:
    """One Dense per gate; `f` is the forget gate's name."""
    return Rule(
        "LSTMCell",
        (
            gates("weight_ih", ("ii.kernel", f"{f}.kernel", "ig.kernel", "io.kernel")),
            gates("weight_hh", tuple(f"h{gate}.kernel" for gate in "ifgo")),
            merged_gates(tuple(f"h{gate}.bias" for gate in "ifgo")),
        ),
    )


def dense(kind: str, i: str, h: str, bias: Part) -> Rule:
    return Rule(kind, (kernel("weight_ih", f"{i}.kernel"), kernel("weight_hh", f"{h}.kernel"), bias))


LSTM = dense("LSTMCell", "dense_i", "dense_h", merged("dense_h.bias"))
GRU = dense("GRUCell", "dense_i", "dense_h", _bias_without_hn())
LINEN_GRU = Rule(
    "GRUCell",
    (
        gates("weight_ih", ("ir.kernel", "iz.kernel", "in.kernel")),
        gates("weight_hh", ("hr.kernel", "hz.kernel", "hn.kernel")),
        _gru_biases(),
    ),
)


def simple(layer: Layer, shapes: Shapes | None) -> Rule | None:
    """h' = f(W_ih x + W_hh h + b); None for residual=True, which torch lacks."""
    if getattr(layer, "residual", False):
        return None
    i, h = ("dense_i", "dense_h") if hasattr(layer, "dense_i") else ("i", "h")
    return dense("RNNCell", i, h, merged(f"{i}.bias"))


def _jaxpar_cell(kind: str, end: str = "") -> Rule:
    """Torch's tensors and names, matrices transposed; `end` is one of a stack's suffixes, "_l0_reverse"."""
    weights = (kernel(f"{name}{end}", f"{name}{end}") for name in ("weight_ih", "weight_hh", "weight_hr"))
    return Rule(kind, (*weights, *(same(f"{name}{end}") for name in BOTH)))


def _jaxpar_stack(kind: str) -> Callable[[Layer, Shapes | None], Rule]:
    def row(layer: Layer, shapes: Shapes | None) -> Rule:
        directions = ("", "_reverse") if layer.bidirectional else ("",)
        ends = [f"_l{k}{end}" for k in range(layer.num_layers) for end in directions]
        return Rule(kind, tuple(part for end in ends for part in _jaxpar_cell(kind, end).parts))

    return row


ROWS = {
    "nnx.OptimizedLSTMCell": LSTM,
    "nnx.LSTMCell": lstm_by_gates("if_"),
    **dict.fromkeys(("linen.OptimizedLSTMCell", "linen.LSTMCell"), lstm_by_gates("if")),
    "nnx.GRUCell": GRU,
    "linen.GRUCell": LINEN_GRU,
    **dict.fromkeys(("nnx.SimpleCell", "linen.SimpleCell"), simple),
    **{f"jaxpar.nn.{kind}Cell": _jaxpar_cell(f"{kind}Cell") for kind in ("LSTM", "GRU", "RNN")},
    **{f"jaxpar.nn.{kind}": _jaxpar_stack(kind) for kind in ("LSTM", "GRU", "RNN")},
}
