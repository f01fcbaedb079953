"""One step of an RNN, an LSTM and a GRU."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .._gates import GRU, LSTM, RNN_RELU, RNN_TANH, Recurrence, State


def rnn_tanh_cell(
    input: jax.Array,
    hx: jax.Array | None,
    weight_ih: jax.Array,
    weight_hh: jax.Array,
    bias_ih: jax.Array | None = None,
    bias_hh: jax.Array | None = None,
) -> jax.Array:
    """One step, tanh(x W_ih + b_ih + h W_hh + b_hh).

    Args:
      input: [B, I] or [I].
      hx: the state, [B, H] or [H]; None for zeros.
      weight_ih, weight_hh: [I, H] and [H, H].
      bias_ih, bias_hh: [H], both or none.

    Returns: The next state, of hx's shape. Raises: ValueError, RuntimeError: shapes that do not fit, with
    torch's message.

    torch counterpart: `torch.rnn_tanh_cell`. Source: torch/nn/modules/rnn.py, class RNNCell.
    """
    return _step_one_state(RNN_TANH, input, hx, weight_ih, weight_hh, bias_ih, bias_hh)


def rnn_relu_cell(
    input: jax.Array,
    hx: jax.Array | None,
    weight_ih: jax.Array,
    weight_hh: jax.Array,
    bias_ih: jax.Array | None = None,
    bias_hh: jax.Array | None = None,
) -> jax.Array:
    """`rnn_tanh_cell` with relu for tanh. torch counterpart: `torch.rnn_relu_cell`."""
    return _step_one_state(RNN_RELU, input, hx, weight_ih, weight_hh, bias_ih, bias_hh)


def lstm_cell(
    input: jax.Array,
    hx: tuple[jax.Array, jax.Array] | None,
    weight_ih: jax.Array,
    weight_hh: jax.Array,
    bias_ih: jax.Array | None = None,
    bias_hh: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """One step of an LSTM. The columns of the weights are the gates i, f, g, o, H of each.

    Arguments, result and errors as for `rnn_tanh_cell`, but hx and the result are the states (h, c),
    weight_ih is [I, 4H], weight_hh [H, 4H] and both biases [4H].

    torch counterpart: `torch.lstm_cell`. Source: torch/nn/modules/rnn.py, class LSTMCell.
    """
    h, c = _step(LSTM, input, hx, weight_ih, weight_hh, bias_ih, bias_hh)
    return h, c


def gru_cell(
    input: jax.Array,
    hx: jax.Array | None,
    weight_ih: jax.Array,
    weight_hh: jax.Array,
    bias_ih: jax.Array | None = None,
    bias_hh: jax.Array | None = None,
) -> jax.Array:
    """One step of a GRU. The columns of the weights are the gates r, z, n, H of each; n has both biases.

    Arguments, result and errors as for `rnn_tanh_cell`, but weight_ih is [I, 3H], weight_hh [H, 3H] and both
    biases [3H].

    torch counterpart: `torch.gru_cell`. Source: torch/nn/modules/rnn.py, class GRUCell.
    """
    return _step_one_state(GRU, input, hx, weight_ih, weight_hh, bias_ih, bias_hh)


def _step_one_state(
    kind: Recurrence, input: jax.Array, hx: jax.Array | None, *arrays: jax.Array | None
) -> jax.Array:
    return _step(kind, input, None if hx is None else (hx,), *arrays)[0]


def _step(kind: Recurrence, input: jax.Array, hx: State | None, *arrays: jax.Array | None) -> State:
    # Same gates as in a stack, which finds biases by name.
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = {name: jnp.asarray(w) for name, w in zip(names, arrays, strict=True) if w is not None}
    if ("bias_ih" in weights) != ("bias_hh" in weights):
        raise ValueError(f"{kind.name}Cell: bias_ih and bias_hh come together or not at all.")
    if input.ndim not in (1, 2):
        raise ValueError(f"{kind.name}Cell: Expected input to be 1D or 2D, got {input.ndim}D instead")
    inputs, H = weights["weight_ih"].shape[0], weights["weight_hh"].shape[0]
    if input.shape[-1] != inputs:
        raise RuntimeError(
            f"{kind.name}Cell: input has inconsistent input_size: got {input.shape[-1]} expected {inputs}"
        )
    shape = (*input.shape[:-1], H)
    # Shapes that merely broadcast would pass silently: a state without a batch for a batched input.
    for number, state in enumerate(hx or ()):
        if state.shape != shape:
            raise RuntimeError(
                f"{kind.name}Cell: Expected hx[{number}] of shape {shape} for an input of shape "
                f"{input.shape}, got {state.shape}"
            )
    # An LSTM's state is the pair (h, c). Zeros have the common type, or a scan over cells would change types.
    if hx is None:
        hx = (jnp.zeros(shape, jnp.result_type(input, *weights.values())),) * (2 if kind is LSTM else 1)
    return kind.update(kind.add_state(kind.input_gates(weights, input), weights["weight_hh"], hx[0]), hx)
