"""The gates of an RNN, an LSTM and a GRU, and how they update the state. Matrices are [in, out]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

State = tuple[jax.Array, ...]
Gates = tuple[jax.Array, ...]
Weights = Mapping[str, jax.Array]
"""One layer and direction: weight_ih, weight_hh and, optionally, bias_ih, bias_hh, weight_hr."""
Lengths = jax.Array | np.ndarray | Sequence[int] | None
"""How many steps of each sequence count; None for all of them."""


@dataclass(frozen=True)
class Recurrence:
    """The kind of a recurrent layer."""

    # Each gate is an array: XLA on CPUs does not vectorise a loop that cuts a step and a gate out of one
    # array.

    name: str
    num_gates: int
    """Number of gates that the columns of the weights contain."""
    input_gates: Callable[[Weights, jax.Array], Gates]
    """The inputs' part of each gate, [..., H] each."""
    state_gates: tuple[int, ...]
    """For each block of columns of the state's product, the gate to which it is added."""
    update: Callable[[Gates, State], State]
    """The next state from the complete gates and the state, without any matrix product."""

    def add_state(self, gates: Gates, weight_hh: jax.Array, h: jax.Array) -> Gates:
        complete = list(gates)
        parts = jnp.split(matmul(h, weight_hh), self.num_gates, axis=-1)
        for gate, part in zip(self.state_gates, parts, strict=True):
            complete[gate] = complete[gate] + part
        return tuple(complete)


def matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x @ weight, for one step, [B, I] or [I], or for all of them at once, [T, B, I]."""
    # All steps become the rows of one matrix: for the gradient of a product over two axes XLA makes two
    # transposed copies and uses its slow kernel on CPUs. B is the major part of the merged axis, since only a
    # major axis may be divided over devices without being gathered first.
    if x.ndim < 3:
        return x @ weight
    T, B, I = x.shape
    rows = x.swapaxes(0, 1).reshape(B * T, I) @ weight
    return rows.reshape(B, T, weight.shape[1]).swapaxes(0, 1)


def _input_gates(num_gates: int) -> Callable[[Weights, jax.Array], Gates]:
    def gates(weights: Weights, x: jax.Array) -> Gates:
        product = matmul(x, weights["weight_ih"])
        # Add the two biases once, before they are broadcast to all steps.
        if "bias_ih" in weights:
            product = product + (weights["bias_ih"] + weights["bias_hh"])
        return tuple(jnp.split(product, num_gates, axis=-1))

    return gates


def _gru_input_gates(weights: Weights, x: jax.Array) -> Gates:
    """r, z and n, and after them what r multiplies: b_hn, to which the state's part is added."""
    r, z, n = jnp.split(matmul(x, weights["weight_ih"]), 3, axis=-1)
    # n = tanh(x W_in + b_in + r (h W_hn + b_hn)): the last bias is inside of the product with r.
    inner = jnp.zeros(n.shape[-1:], n.dtype)
    if "bias_ih" in weights:
        (a, b, c), (d, e, inner) = (jnp.split(weights[name], 3) for name in ("bias_ih", "bias_hh"))
        r, z, n = r + (a + d), z + (b + e), n + c
    return r, z, n, jnp.broadcast_to(inner, n.shape)


def _rnn_update(activation: Callable[[jax.Array], jax.Array]) -> Callable[[Gates, State], State]:
    return lambda gates, state: (activation(gates[0]),)


# The derivatives of the two updates are written out. From every step JAX would keep twelve arrays for the
# backward pass of an LSTM; this keeps one factor for each tangent, six.


@jax.custom_jvp
def _lstm_update(gates: Gates, state: State) -> State:
    i, f, g, o = gates
    c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


@_lstm_update.defjvp
def _lstm_update_jvp(primals: tuple[Gates, State], tangents: tuple[Gates, State]) -> tuple[State, State]:
    (gates, (_, before)), ((di, df, dg, do), (_, dbefore)) = primals, tangents
    i, f, o = (jax.nn.sigmoid(gates[k]) for k in (0, 1, 3))
    g = jnp.tanh(gates[2])
    c = f * before + i * g
    t = jnp.tanh(c)
    dc = (g * i * (1 - i)) * di + (before * f * (1 - f)) * df + (i * (1 - g * g)) * dg + f * dbefore
    return (o * t, c), ((t * o * (1 - o)) * do + (o * (1 - t * t)) * dc, dc)


@jax.custom_jvp
def _gru_update(gates: Gates, state: State) -> State:
    r, z, n, inner = gates
    n = jnp.tanh(n + jax.nn.sigmoid(r) * inner)
    # (1 - z) n + z h with one product less.
    return (n + jax.nn.sigmoid(z) * (state[0] - n),)


@_gru_update.defjvp
def _gru_update_jvp(primals: tuple[Gates, State], tangents: tuple[Gates, State]) -> tuple[State, State]:
    ((r, z, n, inner), (h,)), ((dr, dz, dn, dinner), (dh,)) = primals, tangents
    r, z = jax.nn.sigmoid(r), jax.nn.sigmoid(z)
    n = jnp.tanh(n + r * inner)
    dpre = dn + (inner * r * (1 - r)) * dr + r * dinner
    change = ((1 - z) * (1 - n * n)) * dpre + ((h - n) * z * (1 - z)) * dz + z * dh
    return (n + z * (h - n),), (change,)


RNN_TANH = Recurrence("RNN", 1, _input_gates(1), (0,), _rnn_update(jnp.tanh))
RNN_RELU = Recurrence("RNN", 1, _input_gates(1), (0,), _rnn_update(jax.nn.relu))
LSTM = Recurrence("LSTM", 4, _input_gates(4), (0, 1, 2, 3), _lstm_update)
# The state's third block belongs inside the reset gate's product, so it is added to the fourth array.
GRU = Recurrence("GRU", 3, _gru_input_gates, (0, 1, 3), _gru_update)


def weight_names(num_layers: int, bidirectional: bool, bias: bool, projected: bool) -> list[list[str]]:
    """torch's names, one list for each layer and direction, in torch's order."""
    kinds = ["weight_ih", "weight_hh", *["bias_ih", "bias_hh"] * bias, *["weight_hr"] * projected]
    ends = [f"_l{layer}{end}" for layer in range(num_layers) for end in ("", "_reverse")[: 1 + bidirectional]]
    return [[kind + end for kind in kinds] for end in ends]
