"""Trace torch's forward pass, replay Flax's layers on the traced inputs, and align the two.

    trace_torch ──► align: replay, and replay again where Flax has a different layout ──► AlignedForward

`departures` runs torch again from the same start, with changes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ..._rulebook import Rule
from .._levels import Batches
from .._model_pair import ModelPair
from .._sides.flax_side import FlaxSide
from .._sides.torch_float64 import in_float64
from .._sides.torch_side import to_numpy
from .._tensors import tensor_of
from .aligned_forward import AlignedForward
from .flax_replay import Key, innermost, replay
from .recorded_replay import replayed_by_record
from .search import EQUAL, relative_error, with_tensors
from .torch_trace import LayerCall, Trace, tensors, watched

OVERRIDDEN = "has a forward of its own, and Flax's layer is the plain one"
CHANNELS_FIRST = "is called with channels last, and Flax's layer with channels first"
NEARER = 0.01
"""How much smaller the error of an array is in a layout that is its own."""
PLAIN = 0.1
"""The same for the result of torch's plain layer, where Flax's layer is one."""


def forward_passes(pair: ModelPair, batches: Batches, step: int) -> AlignedForward:
    return align(trace_torch(pair, batches, step))


def trace_torch(pair: ModelPair, batches: Batches, step: int) -> AlignedForward:
    """Train torch up to a step in float64, and trace that step's forward pass."""
    trace, reference = Trace(), pair.reference("float64")
    batch = batches(step)
    # The comparison may have been in float32, whose rounding would hide which layer differs. So the earlier
    # steps are repeated in float64.
    for earlier in range(1, step):
        reference.step(batches(earlier))
    candidate = pair.candidate(reference)
    called = candidate.called(batch) if isinstance(candidate, FlaxSide) else ()
    links = pair.links.outermost(called)
    # Clones, because BatchNorm updates its statistics in place. A state_dict lacks non-persistent buffers.
    initial = {name: x.detach().clone() for name, x in _tensors(reference.module).items()}
    watching = watched(reference.module, links, trace, keep=True, outputs=reference.leaves)
    observed = reference.step(batch, watching)
    links = innermost(links, trace.calls)
    trace.calls = [call for call in trace.calls if call.path in links]
    forward = AlignedForward(
        *(step, batch, links, reference, candidate, initial, trace, trace, observed, observed.outputs, {})
    )
    # The optimizer has updated the weights in place, and the traced functions are called on them again.
    restore(forward)
    return forward


def align(forward: AlignedForward) -> AlignedForward:
    """Replay Flax until every layer is compared in a layout and a form that both sides share."""
    forward = replayed(forward)
    # The layout of a user-defined layer is unknown before the replay; and once a layer's layout is right,
    # the following layers get arrays that show their own layout.
    while turned := forward.turned(forward.trace.calls):
        forward = replayed(dataclasses.replace(forward, channels_last=forward.channels_last | turned))
    without = {forward.key(call): OVERRIDDEN for call in forward.free.calls if _is_overridden(forward, call)}
    if without:
        forward = replayed(forward, without)
    # Where a layer is left out, the following ones get arrays that show their own layout.
    while others := [call for call in forward.trace.calls if _has_channels_first(forward, call)]:
        without |= {forward.key(call): CHANNELS_FIRST for call in others}
        forward = replayed(forward, without)
    mark(forward, forward.trace)
    return dataclasses.replace(forward, layers=tuple(map(forward.result, forward.trace.calls)))


def _has_channels_first(forward: AlignedForward, call: LayerCall) -> bool:
    """Whether a library's layer has channels first where torch's, after a permute, has them last."""
    both = forward.arriving(call).get(0)
    if not (isinstance(forward.candidate, FlaxSide) and forward.candidate.net.is_pytree and both):
        return False
    flax_array, torch_array = both
    if torch_array.ndim < 3 or np.moveaxis(torch_array, -1, 1).shape != flax_array.shape:
        return False
    # Only the values distinguish axes of equal length.
    as_first = relative_error(flax_array, np.moveaxis(torch_array, -1, 1))
    return as_first < NEARER * relative_error(flax_array, torch_array)


def replayed(forward: AlignedForward, without: Mapping[Key, str] = MappingProxyType({})) -> AlignedForward:
    """Replay Flax; `without` has the layers that are not replayed, and why."""
    if forward.candidate.is_recorded:
        with_record = replayed_by_record(forward, without)
        restore(forward)
        return _explained(with_record, without)
    calls = {forward.key(call): call for call in forward.trace.calls}
    layouts = {
        key: (call, forward.has_channels_last(call)) for key, call in calls.items() if key not in without
    }
    arrays = replay(forward.candidate, forward.batch, forward.observed.masks, layouts)
    return _explained(dataclasses.replace(forward, replay=arrays), without)


def _explained(forward: AlignedForward, without: Mapping[Key, str]) -> AlignedForward:
    calls = {forward.key(call): call for call in forward.trace.calls}
    arrays = forward.replay
    unreplayed = arrays.unreplayed | {
        key: f"{forward.kind(calls[key])} {why}" for key, why in without.items()
    }
    return dataclasses.replace(forward, replay=dataclasses.replace(arrays, unreplayed=unreplayed))


def mark(forward: AlignedForward, trace: Trace) -> None:
    """Mark the calls of a trace whose Flax layers were replayed."""
    for call in trace.calls:
        call.replayed = forward.key(call) in forward.replay.inputs


def restore(forward: AlignedForward) -> None:
    forward.reference.steps = forward.step - 1
    for name, x in _tensors(forward.module).items():
        before = forward.initial.get(name)
        if before is not None and before.shape == x.shape and not torch.equal(before, x):
            x.detach().copy_(before)


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _is_overridden(forward: AlignedForward, call: LayerCall) -> bool:
    """Whether torch's layer does what Flax does outside: compute a table's positions, scale an embedding."""
    # An overridden `forward` may have the same meaning on both sides: then equal inputs give equal results.
    both, rule = forward.arriving(call).values(), forward.links[call.path].rule
    if not both or rule is None or forward.result(call).same:
        return False
    plain = plain_results(forward.module.get_submodule(call.path), rule, call)
    if plain is None or any(relative_error(x, call.outputs[0]) <= EQUAL for x in plain):
        return False
    if any(relative_error(flax_array, torch_array) > EQUAL for flax_array, torch_array in both):
        return True
    if forward.key(call) not in forward.replay.results:
        return False
    flax_array, torch_array = forward.replay.results[forward.key(call)]
    distance = relative_error(flax_array, torch_array)
    # Far nearer to the plain layer is enough: the layer may differ in a setting, such as an epsilon, too.
    limit = max(EQUAL, PLAIN * distance) if math.isfinite(distance) else EQUAL
    return any(relative_error(flax_array, forward.in_flax_layout(call, x)) <= limit for x in plain)


# A torch layer with a `forward` of its own may compute its inputs, such as positions from a mask. The Flax
# counterpart is the plain layer, which correctly returns something different for the same inputs.
def plain_results(layer: torch.nn.Module, rule: Rule, call: LayerCall) -> list[np.ndarray] | None:
    """Return the results of the rule's torch class, one for each way to call it; None without an override."""
    plain = _plain_forward(layer, rule)
    if plain is None or not call.outputs:
        return None
    results = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]), in_float64():
        for args, kwargs in _ways_to_call(call):
            try:
                again = tensors(plain(layer, *args, **kwargs))
            except Exception:
                continue  # the plain forward has a different signature, or rejects these arguments
            results += [to_numpy(x) for x in again[:1]]
    return results


def _plain_forward(layer: torch.nn.Module, rule: Rule) -> Callable[..., Any] | None:
    """Return the overridden `forward`, or None if the layer does not override it."""
    for kind in rule.kinds:
        base = getattr(torch.nn, kind, None)
        if base is not None and isinstance(layer, base):
            layer_forward = getattr(layer.forward, "__func__", None)
            return None if layer_forward is base.forward else base.forward
    return (lambda self, index: F.embedding(index, self.weight)) if "Embedding" in rule.kinds else None


def _ways_to_call(call: LayerCall) -> Iterator[tuple[tuple, dict[str, Any]]]:
    """Yield the original arguments, the arrays alone, and the first array alone."""
    arrays = [tensor_of(x.copy()) for x in call.inputs]
    instead = {id(old): new for old, new in zip(call.input_tensors, arrays, strict=True)}
    yield with_tensors(call.arguments, instead)
    yield tuple(arrays), {}
    yield tuple(arrays[:1]), {}
