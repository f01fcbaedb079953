"""RNNCell, LSTMCell and GRUCell with torch's weights, biases and initial values.

Flax starts from lecun normal and orthogonal weights with biases of 0, torch from
U(-1/sqrt(H), 1/sqrt(H)) for everything. `nnx.GRUCell` has no place for one of torch's biases, b_hn.
Parameters have torch's names; matrices are [in, out], torch's transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from . import functional
from ._variable import arrays, cast, optional, uniform


class _Cell(nnx.Module):
    """What RNNCell, LSTMCell and GRUCell have in common."""

    num_gates: int

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_positive(input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        self.dtype = dtype
        G = self.num_gates * hidden_size
        self.weight_ih = uniform(rngs, (input_size, G), hidden_size, param_dtype)
        self.weight_hh = uniform(rngs, (hidden_size, G), hidden_size, param_dtype)
        self.bias_ih = optional(bias, lambda: uniform(rngs, (G,), hidden_size, param_dtype))
        self.bias_hh = optional(bias, lambda: uniform(rngs, (G,), hidden_size, param_dtype))

    def _step(self, function: Callable[..., Any], input: jax.Array, hx: Any) -> Any:
        params = arrays(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        input, hx, params = cast((input, hx, params), self.dtype)
        return function(input, hx, *params)


class LSTMCell(_Cell):
    """One step of an LSTM: `(input, (h, c) or None)` to the next `(h, c)`, as `functional.lstm_cell`.

    Args: input_size, hidden_size, bias, dtype, param_dtype and rngs as for `LSTM`. Parameters:
    weight_ih [I, 4H], weight_hh [H, 4H], bias_ih [4H], bias_hh [4H].

    torch counterpart: `torch.nn.LSTMCell`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 4

    def __call__(
        self, input: jax.Array, hx: tuple[jax.Array, jax.Array] | None = None
    ) -> tuple[jax.Array, jax.Array]:
        return self._step(functional.lstm_cell, input, hx)


class GRUCell(_Cell):
    """One step of a GRU: `(input, h or None)` to the next h, as `functional.gru_cell`.

    Args as for `LSTMCell`. Parameters: weight_ih [I, 3H], weight_hh [H, 3H], bias_ih [3H], bias_hh [3H].

    torch counterpart: `torch.nn.GRUCell`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 3

    def __call__(self, input: jax.Array, hx: jax.Array | None = None) -> jax.Array:
        return self._step(functional.gru_cell, input, hx)


class RNNCell(_Cell):
    """One step of an Elman RNN: `(input, h or None)` to the next h, as `functional.rnn_tanh_cell`.

    Args as for `LSTMCell`, and nonlinearity, "tanh" or "relu". Parameters: weight_ih [I, H], weight_hh
    [H, H], bias_ih [H], bias_hh [H].

    torch counterpart: `torch.nn.RNNCell`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_nonlinearity(nonlinearity)
        super().__init__(input_size, hidden_size, bias, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.nonlinearity = nonlinearity

    def __call__(self, input: jax.Array, hx: jax.Array | None = None) -> jax.Array:
        function = functional.rnn_tanh_cell if self.nonlinearity == "tanh" else functional.rnn_relu_cell
        return self._step(function, input, hx)


def check_nonlinearity(nonlinearity: str) -> None:
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")


def check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int):
            raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
        if size <= 0:
            raise ValueError(f"{name} must be greater than zero")
