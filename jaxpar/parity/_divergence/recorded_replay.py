"""Replay torch on the arrays of a recorded JAX model, where that model cannot be replayed on torch's.

Each layer of torch gets the inputs that JAX's layer got, and returns what JAX's returned. The results that
are replaced depend on the layer alone, and the inputs that are replaced on the code between the layers alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._typing import Shape
from .aligned_forward import AlignedForward
from .flax_replay import Key, Replay, misfit, together, with_rows
from .torch_trace import Departure, Nth, Trace, watched

if TYPE_CHECKING:
    from .._trace.reading import JaxCall


def replayed_by_record(forward: AlignedForward, without: Collection[Key]) -> AlignedForward:
    """Return the pass with torch's trace on JAX's arrays, and the replay that compares the two."""
    candidate: Any = forward.candidate
    recorded: dict[Key, JaxCall] = candidate.calls(forward.step)
    inputs: dict[Nth, dict[int, np.ndarray]] = {}
    outputs: dict[Nth, list[np.ndarray]] = {}
    unreplayed: dict[Key, str] = {}
    misfits: dict[Key, np.ndarray] = {}
    for call in forward.free.calls:
        key, last = forward.key(call), forward.has_channels_last(call)
        if key in without:
            continue
        jax_call = recorded.get(key)
        if jax_call is None or 0 not in jax_call.inputs:
            unreplayed[key] = "not called in Flax, or inside of a transformation"
            continue
        arrays = _in_torch(jax_call.inputs, call.inputs, last)
        returned = _in_torch(dict(enumerate(jax_call.outputs)), call.outputs, last, _is_whole(jax_call))
        if 0 not in arrays:
            unreplayed[key] = misfit("is given", [*jax_call.inputs.values()], call.inputs)
        elif 0 not in returned:
            unreplayed[key] = misfit("returns", jax_call.outputs, call.outputs)
            if jax_call.outputs:
                misfits[key] = jax_call.outputs[0]
        else:
            inputs[call.key] = {i: x for i, x in arrays.items() if i == 0 or x.dtype.kind == "f"}
            outputs[call.key] = [returned[i] for i in range(len(returned)) if i in returned]
    trace, departure = Trace(), Departure(inputs=inputs, outputs=outputs)
    watching = watched(
        forward.module, forward.links, trace, departure, keep=True, outputs=forward.reference.leaves
    )
    results = forward.reference.step(forward.batch, watching, forward_only=True)
    replay = _compared(forward, trace, recorded, outputs)
    after = candidate.restarted_at(forward.step).step(forward.batch)
    replay = dataclasses.replace(
        replay, outputs=after.outputs, state=after.state, misfits=misfits, unreplayed=unreplayed
    )
    observed = dataclasses.replace(forward.observed, state=results.state)
    return dataclasses.replace(
        forward, trace=trace, replay=replay, observed=observed, outputs=results.outputs, inputs=inputs
    )


def _compared(
    forward: AlignedForward, trace: Trace, recorded: Mapping[Key, JaxCall], outputs: Mapping[Nth, list]
) -> Replay:
    """Pair the arrays of JAX's layers with torch's, and let torch's calls have returned JAX's arrays."""
    inputs: dict[Key, dict[int, Any]] = {}
    results: dict[Key, Any] = {}
    for call in trace.calls:
        if call.key not in outputs:
            continue
        key, last = forward.key(call), forward.has_channels_last(call)
        jax_call = recorded[key]
        of_integers = _is_whole(jax_call)
        pairs = {
            i: together(x, call.inputs[i], last, rows=i == 0 and of_integers)
            for i, x in jax_call.inputs.items()
            if i < len(call.inputs) and (i == 0 or x.dtype.kind == "f")
        }
        inputs[key] = {i: _arrays(both) for i, both in pairs.items() if both is not None}
        both = together(jax_call.outputs[0], call.outputs[0], last, of_integers)
        if both is not None:
            results[key] = _arrays(both)
        call.outputs = [*outputs[call.key], *call.outputs[len(outputs[call.key]) :]]
    return Replay(inputs, results, {}, {}, {}, {})


def _arrays(both: tuple[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(both[0]), np.asarray(both[1])


def _is_whole(call: JaxCall) -> bool:
    return call.inputs[0].dtype.kind in "biu"


def _in_torch(
    arrays: Mapping[int, np.ndarray], like: list[np.ndarray], last: bool, rows: bool = False
) -> dict[int, np.ndarray]:
    """Return the arrays that fit torch's, by position, in torch's layout and shape."""
    fitting = {}
    for i, x in arrays.items():
        if i < len(like):
            y = _unfit(x, like[i].shape, last, rows or x.dtype.kind in "biu")
            if y is not None:
                fitting[i] = y
    return fitting


def _unfit(x: np.ndarray, shape: Shape, last: bool, rows: bool) -> np.ndarray | None:
    """Return a JAX array in torch's layout and shape: the inverse of `fit`."""
    moved = np.moveaxis(x, -1, 1) if x.ndim > 2 else x
    x = moved if last else x
    options = [x, x.swapaxes(0, 1) if x.ndim > 2 else x, *([moved] if x.dtype.kind == "f" else [])]
    option = next((option for option in options if option.shape == shape), None)
    if option is None and rows and (of_rows := with_rows(x, shape)) is not None:
        option = np.asarray(of_rows)
    return option
