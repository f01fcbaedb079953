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
    blocks: int
    """How many gates stand beside each other in the columns of the weights."""
    gates: Callable[[Weights, jax.Array], Gates]
    """The inputs' part of each gate, [..., H] each."""
    places: tuple[int, ...]
    """The gate that each block of the state's product is added to."""
    update: Callable[[Gates, State], State]
    """The next state from the whole gates and the state, without any product of matrices."""

    def add_state(self, gates: Gates, weight_hh: jax.Array, h: jax.Array) -> Gates:
        """The gates, and the state's product with its weights at their places."""
        whole = list(gates)
        for place, part in zip(
            self.places, jnp.split(product(h, weight_hh), self.blocks, axis=-1), strict=True
        ):
            whole[place] = whole[place] + part
        return tuple(whole)


def product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x @ weight, for one step, [B, I] or [I], or all of them at once, [T, B, I].

    All steps become the rows of one matrix: the gradient of a product over two axes takes XLA two
    transposed copies and its slow kernel on CPUs. B is the major part of the merged axis, since only
    there it may be divided over devices without being gathered first.
    """
    if x.ndim < 3:
        return x @ weight
    T, B, I = x.shape
    rows = x.swapaxes(0, 1).reshape(B * T, I) @ weight
    return rows.reshape(B, T, weight.shape[1]).swapaxes(0, 1)


# Each gate is an array of its own: a loop that cuts a step and a gate out of one array for all is
# not vectorised by XLA on CPUs.


def _plain(blocks: int) -> Callable[[Weights, jax.Array], Gates]:
    def gates(weights: Weights, x: jax.Array) -> Gates:
        whole = product(x, weights["weight_ih"])
        if "bias_ih" in weights:
            whole = whole + (weights["bias_ih"] + weights["bias_hh"])
        return tuple(jnp.split(whole, blocks, axis=-1))

    return gates


def _reset(weights: Weights, x: jax.Array) -> Gates:
    """r, z and n, and behind them what r is multiplied by: b_hn, to which the state's part is added."""
    r, z, n = jnp.split(product(x, weights["weight_ih"]), 3, axis=-1)
    inner = jnp.zeros(n.shape[-1:], n.dtype)
    if "bias_ih" in weights:
        (a, b, c), (d, e, inner) = (jnp.split(weights[name], 3) for name in ("bias_ih", "bias_hh"))
        r, z, n = r + (a + d), z + (b + e), n + c
    return r, z, n, jnp.broadcast_to(inner, n.shape)


def _elman(activation: Callable[[jax.Array], jax.Array]) -> Callable[[Gates, State], State]:
    return lambda gates, state: (activation(gates[0]),)


# The derivatives of the two updates are written out. What JAX would keep of every step for the way
# back is twelve arrays for the LSTM; here it is one factor for each tangent, six.


@jax.custom_jvp
def _long_short(gates: Gates, state: State) -> State:
    i, f, g, o = gates
    c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


@_long_short.defjvp
def _long_short_jvp(primals: tuple[Gates, State], tangents: tuple[Gates, State]) -> tuple[State, State]:
    (gates, (_, before)), ((di, df, dg, do), (_, dbefore)) = primals, tangents
    i, f, o = (jax.nn.sigmoid(gates[k]) for k in (0, 1, 3))
    g = jnp.tanh(gates[2])
    c = f * before + i * g
    t = jnp.tanh(c)
    dc = (g * i * (1 - i)) * di + (before * f * (1 - f)) * df + (i * (1 - g * g)) * dg + f * dbefore
    return (o * t, c), ((t * o * (1 - o)) * do + (o * (1 - t * t)) * dc, dc)


@jax.custom_jvp
def _gated(gates: Gates, state: State) -> State:
    r, z, n, inner = gates
    n = jnp.tanh(n + jax.nn.sigmoid(r) * inner)
    return (n + jax.nn.sigmoid(z) * (state[0] - n),)


@_gated.defjvp
def _gated_jvp(primals: tuple[Gates, State], tangents: tuple[Gates, State]) -> tuple[State, State]:
    ((r, z, n, inner), (h,)), ((dr, dz, dn, dinner), (dh,)) = primals, tangents
    r, z = jax.nn.sigmoid(r), jax.nn.sigmoid(z)
    n = jnp.tanh(n + r * inner)
    inside = dn + (inner * r * (1 - r)) * dr + r * dinner
    change = ((1 - z) * (1 - n * n)) * inside + ((h - n) * z * (1 - z)) * dz + z * dh
    return (n + z * (h - n),), (change,)


RNN_TANH = Form("RNN", 1, _plain(1), (0,), _elman(jnp.tanh))
RNN_RELU = Form("RNN", 1, _plain(1), (0,), _elman(jax.nn.relu))
LSTM = Form("LSTM", 4, _plain(4), (0, 1, 2, 3), _long_short)
GRU = Form("GRU", 3, _reset, (0, 1, 3), _gated)


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
    return form.update(form.add_state(form.gates(weights, input), weights["weight_hh"], hx[0]), hx)


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
