"""Forward: both models' layers side by side on the reference's inputs, and torch once more, departing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from functools import cached_property, partial

import numpy as np
import torch

from .._comparison_data import LayerResult
from .._levels import Batches
from .._model_pair import ModelPair
from .._sides.step_data import Named, Observation
from .._sides.torch_side import to_numpy
from .._tensors import tensor_of
from .._weights import Link
from .dataflow import Dataflow, quick
from .flax_replay import Both, Key, Replay, replay, together, unfit
from .forward_overrides import plain_results
from .search import EQUAL, relative_error
from .torch_trace import Departure, Enough, LayerCall, Nth, Op, Trace, watched


class Forward:
    """One forward pass of torch, watched, and Flax's replay of it, both from the reference's weights.

    Attributes:
      links: the layers that are replayed, by torch path: those with a rule in the rulebook.
      trace, seen: of torch's own pass.
      replay: Flax's layers on the inputs that torch's had.
    """

    def __init__(self, pair: ModelPair, batches: Batches, step: int):
        self.step, self.batch = step, batches(step)
        self.links, self.trace = _layers(pair), Trace()
        self.reference = pair.reference("float64")
        # The comparison may have been in float32. Here float64 takes the steps again, to have no rounding.
        for earlier in range(1, step):
            self.reference.step(batches(earlier))
        self.candidate = pair.candidate(self.reference)
        self.module = self.reference.module
        # Clones, because BatchNorm writes its statistics in place. Not all buffers are in a state_dict.
        self._before = {name: x.detach().clone() for name, x in self._tensors().items()}
        self.seen = self.reference.step(
            self.batch,
            watched(self.module, self.links, self.trace, keep=True, outputs=self.reference.leaves),
        )
        # The optimizer has written to the weights, which functions of the trace are called with again.
        self._restore()
        self._turned: set[Key] = set()
        self.replay = self._replayed()
        while turned := {self.key(call) for call in self.trace.calls if self._is_turned(call)}:
            self._turned |= turned
            self.replay = self._replayed()
        if overridden := {self.key(call) for call in self.trace.calls if self._is_called_otherwise(call)}:
            self.replay = self._replayed(without=overridden)
        self._mark(self.trace)
        returned = {call.key: call.outputs for call in self.trace.calls if call.replayed}
        self._forced = Departure(outputs=returned)

    def _replayed(self, without: Collection[Key] = ()) -> Replay:
        calls = {self.key(call): call for call in self.trace.calls}
        calls_to_replay = {
            key: (call, self.channels_last(call)) for key, call in calls.items() if key not in without
        }
        replayed = replay(self.candidate, self.batch, self.seen.masks, calls_to_replay)
        why = "has a forward of its own, and Flax's layer is the plain one"
        return dataclasses.replace(
            replayed,
            unreplayed=replayed.unreplayed | {key: f"{self.kind(calls[key])} {why}" for key in without},
        )

    def _is_turned(self, call: LayerCall) -> bool:
        """Whether a layer of the user's own has its channels last in Flax, and first in torch."""
        both = self.arriving(call).get(0)
        is_custom = not type(self.module.get_submodule(call.path)).__module__.startswith("torch.nn.")
        if (
            both is None
            or not is_custom
            or self.reference.task.layout.in_torchs_axes
            or self.channels_last(call)
        ):
            return False
        flax_array, torch_array = both[0], call.inputs[0]
        last = np.moveaxis(torch_array, 1, -1) if torch_array.ndim > 2 else torch_array
        if flax_array.shape != last.shape or flax_array.shape != torch_array.shape:
            return flax_array.shape == last.shape and torch_array.ndim > 2
        # Of axes of one length the values tell.
        return relative_error(flax_array, torch_array) > EQUAL and relative_error(flax_array, last) <= EQUAL

    def _is_called_otherwise(self, call: LayerCall) -> bool:
        """Whether torch's layer computes for itself what Flax's is given, as the positions of a table, or
        what Flax does behind it, as the scale of an embedding.

        A layer with a forward of its own may also mean the same in both; then it takes the same inputs, and
        gives the same results from them.
        """
        both, rule = self.arriving(call).values(), self.links[call.path].rule
        if not both or rule is None or self._result(call).same:
            return False
        plain = plain_results(self.module.get_submodule(call.path), rule, call)
        if plain is None or any(relative_error(x, call.outputs[0]) <= EQUAL for x in plain):
            return False
        if any(relative_error(flax_array, torch_array) > EQUAL for flax_array, torch_array in both):
            return True
        result = self.replay.results.get(self.key(call))
        return result is not None and any(relative_error(result[0], x) <= EQUAL for x in plain)

    def _mark(self, trace: Trace) -> None:
        for call in trace.calls:
            call.replayed = self.key(call) in self.replay.inputs

    @cached_property
    def layers(self) -> tuple[LayerResult, ...]:
        """Every call, in torch's order."""
        return tuple(self._result(call) for call in self.trace.calls)

    def flax(self, call: LayerCall) -> str:
        return self.links[call.path].flax

    def key(self, call: LayerCall) -> Key:
        return self.flax(call), call.nth

    def channels_last(self, call: LayerCall) -> bool:
        rule = self.links[call.path].rule
        return bool(rule and rule.channels == "last") or self.key(call) in self._turned

    def ops(self, call: LayerCall) -> list[Op]:
        """The functions that a layer called."""
        return self.trace.ops[call.first : call.last]

    def arriving(self, call: LayerCall) -> dict[int, Both]:
        """What Flax was about to give the layer, and what torch gave it, by the number of the array."""
        return self.replay.inputs.get(self.key(call), {})

    def rerun(
        self,
        departure: Departure,
        until: tuple[Nth, str] | None = None,
        forced: bool = True,
        keep: bool = False,
    ) -> tuple[Observation | None, Trace]:
        """Forward and loss once more from the same start, without a backward pass.

        Args:
          until: where to stop; what is seen is None then.
          forced: whether layers return what they returned at first, as Flax's do in the replay. Then what
            arrives at a layer depends on the code between the layers alone, as it does there.
          keep: whether the ops are kept.
        """
        self._restore()
        trace = Trace()
        departure = self._forced | departure if forced else departure
        watching = watched(self.module, self.links, trace, departure, until, keep, self.reference.leaves)
        try:
            return self.reference.step(self.batch, watching, forward_only=True), trace
        except Enough:
            return None, trace
        finally:
            self._mark(trace)

    def gradients(self) -> Named:
        """Those of the whole step, as the module is now."""
        self._restore()
        gradients = self.reference.step(self.batch).gradients
        self._restore()
        return gradients

    def outputs_of(self, call: LayerCall, departure: Departure) -> Named:
        """The first array that the layer returns in another run, in Flax's layout."""
        _, trace = self.rerun(departure, (call.key, "outputs"))
        again = trace.call(call.key)
        return self._like(call, again.outputs[0], self.replay.results[self.key(call)]) if again else {}

    def outputs_as_flax(self, call: LayerCall, departure: Departure) -> Named:
        """The same, of whatever shape."""
        _, trace = self.rerun(departure, (call.key, "outputs"))
        again = trace.call(call.key)
        return self.in_layout(call, [tensor_of(x) for x in again.outputs]) if again else {}

    def in_layout(self, call: LayerCall, tensors: Sequence[torch.Tensor]) -> Named:
        if not tensors:
            return {}
        array = to_numpy(tensors[0])
        return {"": np.moveaxis(array, 1, -1) if self.channels_last(call) and array.ndim > 2 else array}

    def quickly(self, flow: Dataflow, call: LayerCall, index: int, which: str, departure: Departure) -> Named:
        """The same of inputs or outputs, without a run of the model, where that can be had."""
        recomputed = quick(flow, call, index, which, departure)
        both = self.arriving(call)[index] if which == "inputs" else self.replay.results[self.key(call)]
        return self._like(call, to_numpy(recomputed[0]), both) if recomputed else {}

    def given_to(self, call: LayerCall, index: int, departure: Departure) -> Named:
        """An array that arrives at the layer in another run, in Flax's layout."""
        _, trace = self.rerun(departure, (call.key, "inputs"))
        again = trace.call(call.key)
        return self.arrived(call, again, index) if again else {}

    def arrived(self, call: LayerCall, again: LayerCall, index: int) -> Named:
        """An array of another run's call, in Flax's layout."""
        return self._like(call, again.inputs[index], self.arriving(call)[index])

    def _like(self, call: LayerCall, array: np.ndarray, both: Both) -> Named:
        aligned = together(both[0], array, self.channels_last(call), rows=True)
        if aligned is None or aligned[0].shape != both[0].shape:
            return {}
        return {"": np.asarray(aligned[1])}

    def moved(self, departure: Departure) -> float:
        """How far the model's outputs go, relatively, in an unforced run with this departure."""
        try:
            results, _ = self.rerun(departure, forced=False)
        except Exception:
            return math.inf  # the model cannot go on with Flax's array
        if results is None:
            return math.inf
        errors = (relative_error(x, self.seen.outputs[name]) for name, x in results.outputs.items())
        return max(errors, default=0.0)

    def with_flax_inputs(self, call: LayerCall, index: int) -> Departure | None:
        """The layer is given Flax's array; None where that has another shape than torch's."""
        flax_array = self.arriving(call)[index][0]
        array = unfit(flax_array, call.inputs[index].shape, self.channels_last(call))
        return None if array is None else Departure(inputs={call.key: (index, array)})

    def with_flax_outputs(self, call: LayerCall) -> Departure | None:
        """The layer returns Flax's array; None where that has another shape than torch's."""
        flax_array = self.replay.results[self.key(call)][0]
        array = unfit(flax_array, call.outputs[0].shape, self.channels_last(call))
        return None if array is None else Departure(outputs={call.key: [array]})

    def states(self, call: LayerCall) -> Named:
        """Flax's state of the layer after the pass."""
        prefix = f"{self.flax(call)}." if self.flax(call) else ""
        names = (name for name in self.seen.state if name.startswith(prefix))
        return {name: self.replay.state[name] for name in names if name in self.replay.state}

    def state_apart(self, name: str) -> float:
        return relative_error(self.replay.state[name], self.seen.state[name])

    def _result(self, call: LayerCall) -> LayerResult:
        key = self.key(call)
        result = partial(LayerResult, call.path, self.flax(call), self.kind(call))
        if key not in self.replay.results:
            # Nothing is known of it, and that is not the same as equal.
            return result(math.inf, False, f"not replayed: {self.replay.unreplayed.get(key, '')}")
        relative = relative_error(*self.replay.results[key])
        state = max(map(self.state_apart, self.states(call)), default=0.0)
        if relative <= EQUAL < state:
            return result(state, False, STATE)
        return result(relative, relative <= EQUAL, f"call {call.nth + 1}" if call.nth else "")

    def kind(self, call: LayerCall) -> str:
        return type(self.module.get_submodule(call.path)).__name__

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}

    def _restore(self) -> None:
        self.reference.steps = self.step - 1
        for name, x in self._tensors().items():
            before = self._before.get(name)
            if before is not None and before.shape == x.shape and not torch.equal(before, x):
                x.detach().copy_(before)


STATE = "its state differs"


def _layers(pair: ModelPair) -> dict[str, Link]:
    """The outermost layers that the rulebook knows, by torch path."""
    links: dict[str, Link] = {}
    for link in pair.links.layers:
        # A layer inside of a known one has no counterpart that could be called alone, as in attention.
        is_nested = any(link.flax.startswith(f"{other.flax}.") for other in links.values())
        if link.rule and not is_nested:
            links[link.torch] = link
    return links
