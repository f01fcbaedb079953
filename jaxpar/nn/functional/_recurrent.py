"""Stacks of RNNs, LSTMs and GRUs over a sequence, with weights in a mapping by torch's names, [in, out] each.

`lengths` gives what packing, running and padding again give: nothing past a sequence's end is read, its
outputs are 0 there, its final state comes from its last step, and the backward direction starts there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from ..._arguments import NonNegative
from .._gates import GRU, LSTM, RNN_RELU, RNN_TANH, Gates, Lengths, Recurrence, State, Weights, weight_names
from ._dropout import Key
from ._dropout import dropout as drop


class StackOptions(TypedDict, total=False):
    """The keyword arguments of `lstm`, which explains them."""

    lengths: Lengths
    batch_first: bool
    dropout: NonNegative
    training: bool
    key: Key | None


def lstm(
    input: jax.Array,
    hx: tuple[jax.Array, jax.Array] | None,
    params: Mapping[str, jax.Array],
    *,
    lengths: Lengths = None,
    batch_first: bool = False,
    dropout: NonNegative = 0.0,
    training: bool = True,
    key: Key | None = None,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """A stack of LSTMs over a sequence. L layers, D directions, H hidden, P = H or projected.

    Args:
      input: [T, B, I], [B, T, I] with `batch_first`, or [T, I] without a batch.
      hx: the initial (h, c), [L*D, B, P] and [L*D, B, H] (without B for an input without a batch), regardless
        of `batch_first`; None for zeros.
      params: arrays by torch's names: weight_ih_l{k} [I, 4H] (further layers [D*P, 4H]), weight_hh_l{k} [P,
        4H], bias_ih_l{k} and bias_hh_l{k} [4H], weight_hr_l{k} [H, P]; the backward direction's end in
        `_reverse`.
      lengths: [B], how many steps of each sequence count; in any order.
      batch_first: whether B is the first axis of input and output.
      dropout: the rate between layers, in `training` only; needs `key`.

    Returns: The last layer's outputs, [T, B, D*P] ([B, T, D*P] with `batch_first`), and the final (h, c) of
    every layer and direction, of hx's shapes. Past a sequence's end outputs are 0. Raises: ValueError,
    RuntimeError: shapes that do not fit, with torch's message. Lengths are checked outside of `jax.jit` only.

    torch counterpart: `torch.lstm`; `lengths`: pack_padded_sequence(enforce_sorted=False) before and
    pad_packed_sequence(total_length=T) after. Source: aten/src/ATen/native/RNN.cpp.
    """
    output, (h, c) = _run(LSTM, input, hx, params, lengths, batch_first, dropout, training, key)
    return output, (h, c)


def gru(
    input: jax.Array, hx: jax.Array | None, params: Mapping[str, jax.Array], **options: Unpack[StackOptions]
) -> tuple[jax.Array, jax.Array]:
    """A stack of GRUs over a sequence; arguments and results as for `lstm`, with one state.

    torch counterpart: `torch.gru`.
    """
    return _run_one_state(GRU, input, hx, params, **options)


def rnn_tanh(
    input: jax.Array, hx: jax.Array | None, params: Mapping[str, jax.Array], **options: Unpack[StackOptions]
) -> tuple[jax.Array, jax.Array]:
    """A stack of tanh RNNs over a sequence; arguments and results as for `lstm`, with one state.

    torch counterpart: `torch.rnn_tanh`.
    """
    return _run_one_state(RNN_TANH, input, hx, params, **options)


def rnn_relu(
    input: jax.Array, hx: jax.Array | None, params: Mapping[str, jax.Array], **options: Unpack[StackOptions]
) -> tuple[jax.Array, jax.Array]:
    """A stack of relu RNNs over a sequence; arguments and results as for `lstm`, with one state.

    torch counterpart: `torch.rnn_relu`.
    """
    return _run_one_state(RNN_RELU, input, hx, params, **options)


def _run_one_state(
    kind: Recurrence,
    input: jax.Array,
    hx: jax.Array | None,
    params: Mapping[str, jax.Array],
    **options: Unpack[StackOptions],
) -> tuple[jax.Array, jax.Array]:
    output, (h,) = _run(kind, input, None if hx is None else (hx,), params, **options)
    return output, h


def _run(
    kind: Recurrence,
    input: jax.Array,
    hx: State | None,
    params: Mapping[str, jax.Array],
    lengths: Lengths = None,
    batch_first: bool = False,
    dropout: NonNegative = 0.0,
    training: bool = True,
    key: Key | None = None,
) -> tuple[jax.Array, State]:
    if input.ndim not in (2, 3):
        raise ValueError(f"{kind.name}: Expected input to be 2D or 3D, got {input.ndim}D instead")
    weights, directions = _by_direction(kind, params)
    dtype = jnp.result_type(input, *params.values(), *(hx or ()))
    batched = input.ndim == 3
    x = jnp.asarray(input, dtype)
    if not batched:
        x = x[:, None]
    elif batch_first:
        # scan runs over the leading axis, so time comes first internally whatever the layout outside.
        x = x.swapaxes(0, 1)
    states = _initial_states(kind, weights, hx, x, batched)
    live = _live(kind, lengths, x, batched)
    if live is not None:
        # Padding may hold anything, even NaN, and 0 * NaN would spoil the gradient of weight_ih.
        x = jnp.where(live, x, 0)
    finals: list[State] = []
    for first in range(0, len(weights), directions):
        if first and training and dropout:
            if key is None:
                raise ValueError(f"{kind.name}: dropout={dropout} in training needs key, a jax.random.key.")
            now = key
            if isinstance(key, jax.Array):
                key, now = jax.random.split(key)  # another mask in each gap between layers
            x = drop(x, dropout, key=now)
        outputs = []
        for i in range(first, first + directions):  # the second one, if any, runs backwards
            gates = kind.input_gates(weights[i], x)
            hh, hr = weights[i]["weight_hh"], weights[i].get("weight_hr")
            final, output = _scan(kind, i > first, hh, hr, gates, states[i], live)
            finals.append(final)
            outputs.append(output)
        x = jnp.concatenate(outputs, axis=-1)
    last = tuple(jnp.stack(parts) for parts in zip(*finals, strict=True))
    if not batched:
        return x[:, 0], tuple(part[:, 0] for part in last)
    return x.swapaxes(0, 1) if batch_first else x, last


def _by_direction(kind: Recurrence, params: Mapping[str, jax.Array]) -> tuple[list[Weights], int]:
    """The weights of each layer and direction under their bare names, and the number of directions."""
    bidirectional = "weight_ih_l0_reverse" in params
    num_layers = sum(name.startswith("weight_ih_l") and not name.endswith("_reverse") for name in params)
    names = weight_names(num_layers, bidirectional, "bias_ih_l0" in params, "weight_hr_l0" in params)
    # An empty mapping has no layers, so the error names the first two weights.
    expected = {name for group in names for name in group} or {"weight_ih_l0", "weight_hh_l0"}
    if expected != set(params):
        raise ValueError(
            f"{kind.name}: the weights are not those of a stack of {num_layers} layers: missing "
            f"{sorted(expected - set(params))}, unknown {sorted(set(params) - expected)}."
        )
    if "weight_hr_l0" in params and kind is not LSTM:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
    dtype = jnp.result_type(*params.values())
    bare = [{name.split("_l")[0]: jnp.asarray(params[name], dtype) for name in group} for group in names]
    return list(bare), 1 + bidirectional


def _initial_states(
    kind: Recurrence, weights: list[Weights], hx: State | None, x: jax.Array, batched: bool
) -> list[State]:
    T, B, inputs = x.shape
    first = weights[0]
    if inputs != first["weight_ih"].shape[0]:
        expected = first["weight_ih"].shape[0]
        raise RuntimeError(f"input.size(-1) must be equal to input_size. Expected {expected}, got {inputs}")
    if T == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    # h is as wide as the projection, c as the gates.
    H = first["weight_ih"].shape[1] // kind.num_gates
    widths = [first["weight_hh"].shape[0], H][: 2 if kind is LSTM else 1]
    shapes = [(len(weights), B, width) if batched else (len(weights), width) for width in widths]
    if hx is None:
        return [tuple(jnp.zeros((B, width), x.dtype) for width in widths)] * len(weights)
    if len(hx) != len(shapes):
        raise RuntimeError(f"{kind.name}: hx has {len(hx)} states, not {len(shapes)}")
    for number, (state, shape) in enumerate(zip(hx, shapes, strict=True)):
        if state.shape != shape:
            which = f"hidden[{number}]" if kind is LSTM else "hidden"
            raise RuntimeError(f"Expected {which} size {shape}, got {list(state.shape)}")
    full = [jnp.asarray(state, x.dtype).reshape(len(weights), B, -1) for state in hx]
    return [tuple(state[i] for state in full) for i in range(len(weights))]


def _live(kind: Recurrence, lengths: Lengths, x: jax.Array, batched: bool) -> jax.Array | None:
    """[T, B, 1]: whether step t of sequence b comes before its end. None without lengths."""
    if lengths is None:
        return None
    T, B, _ = x.shape
    if not batched:
        raise ValueError(f"{kind.name}: lengths are for batched input; cut a single sequence at its end.")
    lengths = lengths if isinstance(lengths, jax.Array) else np.asarray(lengths)
    if lengths.shape != (B,):
        raise ValueError(
            f"{kind.name}: expected one length for each of the {B} sequences, got shape {lengths.shape}"
        )
    if not isinstance(lengths, jax.core.Tracer):
        concrete = np.asarray(lengths)
        if concrete.size and concrete.min() <= 0:
            raise RuntimeError(
                "Length of all samples has to be greater than 0, "
                "but found an element in 'lengths' that is <= 0"
            )
        if concrete.size and concrete.max() > T:
            raise ValueError(f"{kind.name}: a length of {concrete.max()} for sequences of {T} steps")
    return (jnp.arange(T)[:, None] < jnp.asarray(lengths))[..., None]


def _plain_scan(
    kind: Recurrence,
    reverse: bool,
    weight_hh: jax.Array,
    weight_hr: jax.Array | None,
    gates: Gates,
    state: State,
    live: jax.Array | None,
) -> tuple[State, jax.Array]:
    """One layer in one direction, from the inputs' gates: the final state and the outputs [T, B, H]."""

    def step(state: State, now: tuple[Gates, jax.Array | None]) -> tuple[State, jax.Array]:
        gates, alive = now
        # Only `weight_hh` acts inside the loop; the product with weight_ih is part of `gates`.
        h, *more = kind.update(kind.add_state(gates, weight_hh, state[0]), state)
        new = (h if weight_hr is None else h @ weight_hr, *more)
        if alive is None:
            return new, new[0]
        # Backwards the padding comes first: the state must still be the initial one at the sequence's end.
        # A finished sequence carries its state on, so the final state is the one at its own end.
        carry = tuple(jnp.where(alive, n, old) for n, old in zip(new, state, strict=True))
        return carry, jnp.where(alive, new[0], 0)

    return jax.lax.scan(step, state, (gates, live), reverse=reverse)


_scan = functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))(_plain_scan)


@_scan.defjvp
def _scan_jvp(kind: Recurrence, reverse: bool, primals: Any, tangents: Any) -> Any:
    # A change of weight_hh changes the gates of all steps by one product with all states. So the gradient by
    # weight_hh is one product after the loop; JAX would add one up for each step.
    weight_hh, weight_hr, gates, state, live = primals
    by_hh, by_hr, by_gates, by_state, _ = tangents

    def run(weight_hr: jax.Array | None, gates: Gates, state: State) -> tuple[State, jax.Array]:
        return _plain_scan(kind, reverse, weight_hh, weight_hr, gates, state, live)

    # Linearize with weight_hh constant; its tangent enters below through the gates of all steps together.
    (last, outputs), change = jax.linearize(run, weight_hr, gates, state)
    # The state before each step: the outputs, shifted by one step against the direction.
    first = state[0][None]
    before = jnp.concatenate([outputs[1:], first] if reverse else [first, outputs[:-1]])
    if reverse and live is not None:
        # Backwards, a sequence's last step comes first. It starts from the initial state, and the
        # adjacent output is padding, 0.
        before = jnp.where(jnp.pad(live[1:], [(0, 1), (0, 0), (0, 0)]), before, first)
    return (last, outputs), change(by_hr, kind.add_state(by_gates, by_hh, before), by_state)


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
