"""Run torch again with departures, from the start of a traced pass, and read single arrays off the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from .._sides.step_data import Named, Observation
from .._sides.torch_side import to_numpy
from .._tensors import tensor_of
from .flax_replay import Both, together, unfit
from .forward import AlignedForward, mark, restore
from .search import Dataflow, quick, relative_error
from .torch_trace import Departure, Enough, LayerCall, Nth, Trace, watched


def rerun(
    forward: AlignedForward,
    departure: Departure,
    until: tuple[Nth, str] | None = None,
    forced: bool = True,
    keep: bool = False,
) -> tuple[Observation | None, Trace]:
    """Run forward and loss once more from the same start; the observation is None if it stops at `until`."""
    restore(forward)
    trace = Trace()
    # Replayed layers return the outputs of the traced pass, as Flax's layers do in the replay. Then a layer's
    # inputs depend only on the code between the layers, as they do there.
    if forced:
        returned = {call.key: call.outputs for call in forward.trace.calls if call.replayed}
        departure = Departure(inputs=forward.inputs, outputs=returned) | departure
    leaves = forward.reference.leaves
    watching = watched(forward.module, forward.links, trace, departure, until, keep, leaves)
    try:
        return forward.reference.step(forward.batch, watching, forward_only=True), trace
    except Enough:
        return None, trace
    finally:
        mark(forward, trace)


def gradients(forward: AlignedForward) -> Named:
    """Return the step's gradients with the module as it is now."""
    restore(forward)
    results = forward.reference.step(forward.batch).gradients
    restore(forward)
    return results


def output_change(forward: AlignedForward, departure: Departure | None) -> float:
    """Return the relative change of the model's outputs under a departure; inf if torch cannot run it."""
    if departure is None:
        return math.inf
    try:
        results, _ = rerun(forward, departure, forced=False)
    except Exception:
        return math.inf  # the model's code may raise anything on Flax's array
    if results is None:
        return math.inf
    errors = (relative_error(x, forward.observed.outputs[name]) for name, x in results.outputs.items())
    return max(errors, default=0.0)


def layer_output(forward: AlignedForward, call: LayerCall, departure: Departure) -> Named:
    """Return the layer's first output under a departure, in Flax's layout and shape."""
    _, trace = rerun(forward, departure, (call.key, "outputs"))
    again = trace.call(call.key)
    both = forward.replay.results[forward.key(call)]
    return _like(forward, call, again.outputs[0], both) if again else {}


def layer_output_of_any_shape(forward: AlignedForward, call: LayerCall, departure: Departure) -> Named:
    """Return the layer's first output under a departure, in Flax's layout."""
    _, trace = rerun(forward, departure, (call.key, "outputs"))
    again = trace.call(call.key)
    return in_flax_layout(forward, call, [tensor_of(x) for x in again.outputs]) if again else {}


def in_flax_layout(forward: AlignedForward, call: LayerCall, tensors: Sequence[torch.Tensor]) -> Named:
    return {"": forward.in_flax_layout(call, to_numpy(tensors[0]))} if tensors else {}


def layer_input(forward: AlignedForward, call: LayerCall, index: int, departure: Departure) -> Named:
    """Return one of the layer's inputs under a departure, in Flax's layout and shape."""
    _, trace = rerun(forward, departure, (call.key, "inputs"))
    again = trace.call(call.key)
    return input_of(forward, call, again, index) if again else {}


def input_of(forward: AlignedForward, call: LayerCall, again: LayerCall, index: int) -> Named:
    return _like(forward, call, again.inputs[index], forward.arriving(call)[index])


def recomputed(
    forward: AlignedForward, flow: Dataflow, call: LayerCall, index: int, which: str, departure: Departure
) -> Named:
    """Return an input or output of the layer under a departure, without a run of the model."""
    tensors = quick(flow, call, index, which, departure)
    both = forward.arriving(call)[index] if which == "inputs" else forward.replay.results[forward.key(call)]
    return _like(forward, call, to_numpy(tensors[0]), both) if tensors else {}


def _like(forward: AlignedForward, call: LayerCall, array: np.ndarray, both: Both) -> Named:
    aligned = together(both[0], array, forward.has_channels_last(call), rows=True)
    if aligned is None or aligned[0].shape != both[0].shape:
        return {}
    return {"": np.asarray(aligned[1])}


def with_flax_input(forward: AlignedForward, call: LayerCall, index: int) -> Departure | None:
    """Replace the layer's input by Flax's array; None if the shapes differ."""
    flax_array = forward.arriving(call)[index][0]
    array = unfit(flax_array, call.inputs[index].shape, forward.has_channels_last(call))
    return None if array is None else Departure(inputs={call.key: {index: array}})


def with_flax_output(forward: AlignedForward, call: LayerCall) -> Departure | None:
    """Replace the layer's first output by Flax's array; None if the shapes differ."""
    flax_array = forward.replay.results[forward.key(call)][0]
    array = unfit(flax_array, call.outputs[0].shape, forward.has_channels_last(call))
    return None if array is None else Departure(outputs={call.key: [array]})
