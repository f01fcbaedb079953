"""RNN, LSTM and GRU with torch's weights and options.

Flax has cells and a loop around them. torch's layers combine several layers, two directions, dropout
between layers, projections and variable lengths in one.

The parameters are one array for each of torch's tensors, under torch's names; matrices are [in, out],
torch's transposed.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from . import functional
from ._cells import check_nonlinearity, check_positive
from ._gates import Lengths, weight_names
from ._variable import cast, uniform


class _Stack(nnx.Module):
    """What RNN, LSTM and GRU have in common."""

    num_gates: int

    def _create(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int,
        dtype: DTypeLike | None,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        _check_options(input_size, hidden_size, num_layers, bias, batch_first, dropout, proj_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self.dtype = dtype
        self.deterministic = False
        # Forked only if it is used, as a model without dropout may come without such a stream.
        self.rngs = rngs.dropout.fork() if dropout else nnx.data(None)
        P, D, G = proj_size or hidden_size, 1 + bidirectional, self.num_gates * hidden_size
        for number, names in enumerate(self._weight_names()):
            # The first D rows of weights read the input, the others the outputs of the layer below.
            shapes = {
                "weight_ih": (input_size if number < D else P * D, G),
                "weight_hh": (P, G),
                "weight_hr": (hidden_size, P),
            }
            for name in names:
                setattr(self, name, uniform(rngs, shapes.get(name[:9], (G,)), hidden_size, param_dtype))

    def _weight_names(self) -> list[list[str]]:
        return weight_names(self.num_layers, self.bidirectional, self.bias, self.proj_size > 0)

    def _run(self, function: Callable[..., Any], input: jax.Array, hx: Any, lengths: Lengths) -> Any:
        params = {name: getattr(self, name)[...] for group in self._weight_names() for name in group}
        input, hx, params = cast((input, hx, params), self.dtype)
        drops = self.dropout > 0 and self.num_layers > 1 and not self.deterministic
        return function(
            input,
            hx,
            params,
            lengths=lengths,
            batch_first=self.batch_first,
            dropout=self.dropout,
            training=not self.deterministic,
            key=self.rngs() if drops else None,
        )


class LSTM(_Stack):
    """A stack of LSTMs. L layers, D directions, I `input_size`, H `hidden_size`, P `proj_size` or H.

    Args:
      input_size, hidden_size: I and H.
      num_layers: L.
      bias: whether there are bias_ih and bias_hh.
      batch_first: whether input and output are [B, T, ...] instead of [T, B, ...]; states never are.
      dropout: rate between the layers, in training.
      bidirectional: D = 2, outputs of both directions side by side, forward first.
      proj_size: the width that h is projected to; 0 for none.
      dtype: of the computation; the arrays' common type if left out.
      param_dtype: of the parameters.
      rngs: `params` for the weights, `dropout` if there is dropout.

    Called with `(input, hx=None, *, lengths=None)` it returns `(output, (h_n, c_n))`; the shapes are
    those of `functional.lstm`, which it calls. `lengths` takes the place of a PackedSequence.

    Parameters, k from 0 to L - 1, each once more with `_reverse` for D = 2: weight_ih_l{k} [I, 4H] (for
    k > 0 [D*P, 4H]), weight_hh_l{k} [P, 4H], bias_ih_l{k} [4H], bias_hh_l{k} [4H], weight_hr_l{k} [H, P];
    gates in the order i, f, g, o. All start from U(-1/sqrt(H), 1/sqrt(H)).

    Raises:
      ValueError, TypeError: options that torch refuses, in its words.

    torch counterpart: `torch.nn.LSTM`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        shape = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        self._create(*shape, dtype, param_dtype, rngs)

    def __call__(
        self, input: jax.Array, hx: tuple[jax.Array, jax.Array] | None = None, *, lengths: Lengths = None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return self._run(functional.lstm, input, hx, lengths)


class GRU(_Stack):
    """A stack of GRUs: arguments, shapes and names as for `LSTM`, without projection, with one state.

    Called with `(input, hx=None, *, lengths=None)` it returns `(output, h_n)`. Weights are [.., 3H], gates
    in the order r, z, n.

    torch counterpart: `torch.nn.GRU`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        shape = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0)
        self._create(*shape, dtype, param_dtype, rngs)

    def __call__(
        self, input: jax.Array, hx: jax.Array | None = None, *, lengths: Lengths = None
    ) -> tuple[jax.Array, jax.Array]:
        return self._run(functional.gru, input, hx, lengths)


class RNN(_Stack):
    """A stack of Elman RNNs: arguments, shapes and names as for `GRU`, weights [.., H].

    `nonlinearity` is "tanh" or "relu".

    torch counterpart: `torch.nn.RNN`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_nonlinearity(nonlinearity)
        shape = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0)
        self._create(*shape, dtype, param_dtype, rngs)
        self.nonlinearity = nonlinearity

    def __call__(
        self, input: jax.Array, hx: jax.Array | None = None, *, lengths: Lengths = None
    ) -> tuple[jax.Array, jax.Array]:
        function = functional.rnn_tanh if self.nonlinearity == "tanh" else functional.rnn_relu
        return self._run(function, input, hx, lengths)


def _check_options(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool,
    batch_first: bool,
    dropout: float,
    proj_size: int,
) -> None:
    """torch's checks, in torch's order and words."""
    if not isinstance(dropout, numbers.Number) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
        raise ValueError(
            "dropout should be a number in range [0, 1] representing the probability of an element being "
            "zeroed"
        )
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
            f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}",
            # This, _create and __init__, above them three frames of Flax, then the caller.
            stacklevel=7,
        )
    for name, value in {"bias": bias, "batch_first": batch_first}.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} should be of type bool, got: {type(value).__name__}")
    check_positive(input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
    if proj_size < 0:
        raise ValueError("proj_size should be a positive integer or zero to disable projections")
    if proj_size >= hidden_size:
        raise ValueError("proj_size has to be smaller than hidden_size")
