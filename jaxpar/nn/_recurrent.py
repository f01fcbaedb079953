"""RNN, LSTM, GRU and their cells with torch's weights, options and initial values.

The parameters are one array for each of torch's tensors, under torch's names; matrices are [in, out].
`nnx.GRUCell` has no place for one of torch's biases, b_hn.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from .._arguments import warn
from . import functional
from ._array_types import Floating
from ._gates import Lengths, weight_names
from ._layer import TypedLayer, arrays, cast, optional, uniform


@dataclasses.dataclass(eq=False, repr=False)
class _Stack(TypedLayer):
    num_gates: ClassVar[int]  # of the class, since the weights are shaped by it
    proj_size = 0  # torch knows projections for the LSTM alone

    input_size: int
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        self._check_options()
        self.dropout = float(self.dropout)
        self.deterministic = False  # module.train() and module.eval() set it
        # Forked only if it is used, as a model without dropout may come without such a stream.
        self.rngs = rngs.dropout.fork() if self.dropout else nnx.data(None)
        inputs, H = self.input_size, self.hidden_size
        P, D, G = self.proj_size or H, 1 + self.bidirectional, self.num_gates * H
        for number, names in enumerate(self._weight_names()):
            # The first D rows of weights read the input, the others the outputs of the layer below.
            shapes = {
                "weight_ih": (inputs if number < D else P * D, G),
                "weight_hh": (P, G),
                "weight_hr": (H, P),
            }
            for name in names:  # biases have no entry: all of them are [G]
                setattr(self, name, uniform(rngs, shapes.get(name[:9], (G,)), H, self.param_dtype))

    def _check_options(self) -> None:
        # In torch's order.
        dropout, num_layers, proj_size = self.dropout, self.num_layers, self.proj_size
        # To Python a bool is a number; torch excludes it by hand.
        if not isinstance(dropout, numbers.Number) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an element being "
                "zeroed"
            )
        if dropout > 0 and num_layers == 1:
            warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}"
            )
        for name in ("bias", "batch_first"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} should be of type bool, got: {type(getattr(self, name)).__name__}")
        _check_positive(self, "input_size", "hidden_size", "num_layers")
        # A projection to the width itself would be a matrix product for nothing; torch refuses it, too.
        if proj_size < 0:
            raise ValueError("proj_size should be a positive integer or zero to disable projections")
        if proj_size >= self.hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")

    def _weight_names(self) -> list[list[str]]:
        return weight_names(self.num_layers, self.bidirectional, self.bias, self.proj_size > 0)

    def _run(self, function: Callable[..., Any], input: jax.Array, hx: Any, lengths: Lengths) -> Any:
        params = {name: getattr(self, name)[...] for group in self._weight_names() for name in group}
        input, hx, params = cast((input, hx, params), self.dtype)
        # No stream where nothing is dropped: a model without dropout may have none.
        drops = self.dropout > 0 and self.num_layers > 1 and not self.deterministic
        return function(
            input,
            hx,
            params,
            lengths=lengths,
            batch_first=self.batch_first,
            dropout=self.dropout,
            training=not self.deterministic,
            key=self.rngs if drops else None,
        )


@dataclasses.dataclass(eq=False, repr=False)
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
      dtype, param_dtype: of the computation (the arrays' common type if left out) and of the parameters.
      rngs: `params` for the weights, `dropout` if there is dropout.

    Called with `(input, hx=None, *, lengths=None)` it returns `(output, (h_n, c_n))`, with the shapes of
    `functional.lstm`. `lengths` replaces a PackedSequence.

    Parameters, k from 0 to L - 1, each once more with `_reverse` for D = 2: weight_ih_l{k} [I, 4H] (for k > 0
    [D*P, 4H]), weight_hh_l{k} [P, 4H], bias_ih_l{k} [4H], bias_hh_l{k} [4H], weight_hr_l{k} [H, P]; gates in
    the order i, f, g, o. All start from U(-1/sqrt(H), 1/sqrt(H)).

    Raises: ValueError, TypeError: options that torch refuses, with its message.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from jaxpar import nn
    >>> output, (h, c) = nn.LSTM(3, 4, rngs=nnx.Rngs(0))(jnp.ones((5, 2, 3)))
    >>> output.shape, h.shape
    ((5, 2, 4), (1, 2, 4))

    torch counterpart: `torch.nn.LSTM`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 4
    proj_size: int = 0

    def __call__(
        self, input: Floating, hx: tuple[jax.Array, ...] | None = None, *, lengths: Lengths = None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return self._run(functional.lstm, input, hx, lengths)


@dataclasses.dataclass(eq=False, repr=False)
class GRU(_Stack):
    """A stack of GRUs: arguments, shapes and names as for `LSTM`, without projection, with one state.

    Called with `(input, hx=None, *, lengths=None)` it returns `(output, h_n)`. Weights are [.., 3H], gates in
    the order r, z, n.

    torch counterpart: `torch.nn.GRU`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 3

    def __call__(
        self, input: Floating, hx: jax.Array | None = None, *, lengths: Lengths = None
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
        _check_nonlinearity(nonlinearity)
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options
        )
        self.nonlinearity = nonlinearity

    def __call__(
        self, input: Floating, hx: jax.Array | None = None, *, lengths: Lengths = None
    ) -> tuple[jax.Array, jax.Array]:
        function = functional.rnn_tanh if self.nonlinearity == "tanh" else functional.rnn_relu
        return self._run(function, input, hx, lengths)


@dataclasses.dataclass(eq=False, repr=False)
class _Cell(TypedLayer):
    num_gates: ClassVar[int]

    input_size: int
    hidden_size: int
    bias: bool = True

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        _check_positive(self, "input_size", "hidden_size")
        H, G = self.hidden_size, self.num_gates * self.hidden_size

        # torch's bound is 1 / sqrt(H) for all parameters, whatever their fan-in.
        def weight(*shape: int) -> nnx.Param:
            return uniform(rngs, shape, H, self.param_dtype)

        self.weight_ih, self.weight_hh = weight(self.input_size, G), weight(H, G)
        self.bias_ih = optional(self.bias, lambda: weight(G))
        self.bias_hh = optional(self.bias, lambda: weight(G))

    def _step(self, function: Callable[..., Any], input: jax.Array, hx: Any) -> Any:
        params = arrays(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        input, hx, params = cast((input, hx, params), self.dtype)
        return function(input, hx, *params)


class LSTMCell(_Cell):
    """One step of an LSTM: `(input, (h, c) or None)` to the next `(h, c)`, as `functional.lstm_cell`.

    Args: input_size, hidden_size, bias, dtype, param_dtype and rngs as for `LSTM`. Parameters: weight_ih [I,
    4H], weight_hh [H, 4H], bias_ih [4H], bias_hh [4H].

    torch counterpart: `torch.nn.LSTMCell`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 4

    def __call__(
        self, input: Floating, hx: tuple[jax.Array, ...] | None = None
    ) -> tuple[jax.Array, jax.Array]:
        return self._step(functional.lstm_cell, input, hx)


class GRUCell(_Cell):
    """One step of a GRU: `(input, h or None)` to the next h, as `functional.gru_cell`.

    Args as for `LSTMCell`. Parameters: weight_ih [I, 3H], weight_hh [H, 3H], bias_ih [3H], bias_hh [3H].

    torch counterpart: `torch.nn.GRUCell`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 3

    def __call__(self, input: Floating, hx: jax.Array | None = None) -> jax.Array:
        return self._step(functional.gru_cell, input, hx)


@dataclasses.dataclass(eq=False, repr=False)
class RNNCell(_Cell):
    """One step of an Elman RNN: `(input, h or None)` to the next h, as `functional.rnn_tanh_cell`.

    Args as for `LSTMCell`, and nonlinearity, "tanh" or "relu". Parameters: weight_ih [I, H], weight_hh [H,
    H], bias_ih [H], bias_hh [H].

    torch counterpart: `torch.nn.RNNCell`. Source: torch/nn/modules/rnn.py.
    """

    num_gates = 1
    nonlinearity: str = "tanh"

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        _check_nonlinearity(self.nonlinearity)
        super().__post_init__(rngs)

    def __call__(self, input: Floating, hx: jax.Array | None = None) -> jax.Array:
        function = functional.rnn_tanh_cell if self.nonlinearity == "tanh" else functional.rnn_relu_cell
        return self._step(function, input, hx)


def _check_nonlinearity(nonlinearity: str) -> None:
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")


def _check_positive(layer: nnx.Module, *names: str) -> None:
    for name in names:
        size = getattr(layer, name)
        if not isinstance(size, int):
            raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
        if size <= 0:
            raise ValueError(f"{name} must be greater than zero")
