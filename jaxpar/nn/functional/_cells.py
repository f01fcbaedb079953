"""One step of an RNN, an LSTM and a GRU.

torch's formulas with its two biases. Matrices are in Flax's layout, [in, out]: the transposed ones
of torch. Flax's `nnx.GRUCell` has no bias inside the reset gate's product, so no torch GRU fits it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

State = tuple[jax.Array, ...]
Gates = tuple[jax.Array, ...]
Weights = Mapping[str, Any]
"""Of one layer and direction: weight_ih, weight_hh and, where there are any, bias_ih, bias_hh, weight_hr."""


@dataclass(frozen=True)
class Form:
    """What makes a stack an RNN, an LSTM or a GRU."""

    name: str
    gates: int
    fixed: Callable[[Weights], Any]
    """The part of the biases that no state meets: it is added to the inputs of all steps at once."""
    step: Callable[[Weights, Gates, State], State]
    """The next state from the weights, the inputs' part of each gate and the state."""


def _both(weights: Weights) -> Any:
    return weights["bias_ih"] + weights["bias_hh"]


def _elman(activation: Callable[[jax.Array], jax.Array]) -> Callable[[Weights, Gates, State], State]:
    def step(weights: Weights, gates: Gates, state: State) -> State:
        (h,) = state
        return (activation(gates[0] + h @ weights["weight_hh"]),)

    return step


def _long_short(weights: Weights, gates: Gates, state: State) -> State:
    h, c = state
    of_state = jnp.split(h @ weights["weight_hh"], 4, axis=-1)
    i, f, g, o = (x + y for x, y in zip(gates, of_state, strict=True))
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    if "weight_hr" in weights:
        h = h @ weights["weight_hr"]
    return h, c


def _all_but_new(weights: Weights) -> Any:
    # b_hn is multiplied by the reset gate, so it stays with the state.
    H = weights["weight_hh"].shape[0]
    return weights["bias_ih"] + weights["bias_hh"].at[2 * H :].set(0)


def _gated(weights: Weights, gates: Gates, state: State) -> State:
    (h,) = state
    r, z, n = jnp.split(h @ weights["weight_hh"], 3, axis=-1)
    if "bias_hh" in weights:
        n = n + weights["bias_hh"][2 * h.shape[-1] :]
    n = jnp.tanh(gates[2] + jax.nn.sigmoid(gates[0] + r) * n)
    return (n + jax.nn.sigmoid(gates[1] + z) * (h - n),)


RNN_TANH = Form("RNN", 1, _both, _elman(jnp.tanh))
RNN_RELU = Form("RNN", 1, _both, _elman(jax.nn.relu))
LSTM = Form("LSTM", 4, _both, _long_short)
GRU = Form("GRU", 3, _all_but_new, _gated)


def _cell(form: Form, input: jax.Array, hx: State | None, arrays: Sequence[Any]) -> State:
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = {name: jnp.asarray(w) for name, w in zip(names, arrays, strict=True) if w is not None}
    if ("bias_ih" in weights) != ("bias_hh" in weights):
        raise ValueError(f"{form.name}Cell: bias_ih and bias_hh come together or not at all.")
    if input.ndim not in (1, 2):
        raise ValueError(f"{form.name}Cell: Expected input to be 1D or 2D, got {input.ndim}D instead")
    inputs, H = weights["weight_ih"].shape[0], weights["weight_hh"].shape[0]
    if input.shape[-1] != inputs:
        raise RuntimeError(
            f"{form.name}Cell: input has inconsistent input_size: got {input.shape[-1]} expected {inputs}"
        )
    shape = (*input.shape[:-1], H)
    for number, state in enumerate(hx or ()):
        if state.shape != shape:
            raise RuntimeError(
                f"{form.name}Cell: Expected hx[{number}] of shape {shape} for an input of shape "
                f"{input.shape}, got {state.shape}"
            )
    if hx is None:
        hx = (jnp.zeros(shape, jnp.result_type(input, *weights.values())),) * (2 if form is LSTM else 1)
    return form.step(weights, input_gates(form, weights, input), hx)


def input_gates(form: Form, weights: Weights, x: jax.Array) -> Gates:
    """The inputs' part of each gate, [..., H] each.

    One array for each gate: a loop that cuts a step and a gate out of one array for all is not
    vectorised by XLA on CPUs.
    """
    gates = x @ weights["weight_ih"]
    if "bias_ih" in weights:
        gates = gates + form.fixed(weights)
    return tuple(jnp.split(gates, form.gates, axis=-1))


def rnn_tanh_cell(
    input: jax.Array,
    hx: jax.Array | None,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any = None,
    bias_hh: Any = None,
) -> jax.Array:
    """One step, tanh(x W_ih + b_ih + h W_hh + b_hh).

    Args:
      input: [B, I] or [I].
      hx: the state, [B, H] or [H]; None for zeros.
      weight_ih, weight_hh: [I, H] and [H, H].
      bias_ih, bias_hh: [H], both or none.

    Returns:
      The next state, of hx's shape.

    Raises:
      ValueError, RuntimeError: shapes that do not fit, in torch's words.

    torch counterpart: `torch.rnn_tanh_cell`. Source: torch/nn/modules/rnn.py, class RNNCell.
    """
    arrays = (weight_ih, weight_hh, bias_ih, bias_hh)
    return _cell(RNN_TANH, input, None if hx is None else (hx,), arrays)[0]


def rnn_relu_cell(
    input: jax.Array,
    hx: jax.Array | None,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any = None,
    bias_hh: Any = None,
) -> jax.Array:
    """`rnn_tanh_cell` with relu for tanh. torch counterpart: `torch.rnn_relu_cell`."""
    arrays = (weight_ih, weight_hh, bias_ih, bias_hh)
    return _cell(RNN_RELU, input, None if hx is None else (hx,), arrays)[0]


def lstm_cell(
    input: jax.Array,
    hx: tuple[jax.Array, jax.Array] | None,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any = None,
    bias_hh: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """One step of an LSTM. The columns of the weights are the gates i, f, g, o, H of each.

    Args:
      input: [B, I] or [I].
      hx: the states (h, c), each [B, H] or [H]; None for zeros.
      weight_ih, weight_hh: [I, 4H] and [H, 4H].
      bias_ih, bias_hh: [4H], both or none.

    Returns:
      The next (h, c).

    Raises:
      ValueError, RuntimeError: shapes that do not fit, in torch's words.

    torch counterpart: `torch.lstm_cell`. Source: torch/nn/modules/rnn.py, class LSTMCell.
    """
    h, c = _cell(LSTM, input, hx, (weight_ih, weight_hh, bias_ih, bias_hh))
    return h, c


def gru_cell(
    input: jax.Array,
    hx: jax.Array | None,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any = None,
    bias_hh: Any = None,
) -> jax.Array:
    """One step of a GRU. The columns of the weights are r, z, n, H of each; n has both biases.

    Args:
      input: [B, I] or [I].
      hx: the state, [B, H] or [H]; None for zeros.
      weight_ih, weight_hh: [I, 3H] and [H, 3H].
      bias_ih, bias_hh: [3H], both or none.

    Returns:
      The next state, of hx's shape.

    Raises:
      ValueError, RuntimeError: shapes that do not fit, in torch's words.

    torch counterpart: `torch.gru_cell`. Source: torch/nn/modules/rnn.py, class GRUCell.
    """
    arrays = (weight_ih, weight_hh, bias_ih, bias_hh)
    return _cell(GRU, input, None if hx is None else (hx,), arrays)[0]
