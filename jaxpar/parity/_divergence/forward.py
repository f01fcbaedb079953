"""Forward: both models' layers side by side on the reference's inputs, and the first that differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial

import numpy as np

from .._levels import Batches
from .._pair import Pair
from .._result import Cause, Divergence, LayerResult
from .._sides.task import Named, Seen
from .._weights import Link
from .flax_replay import Key, fit, replay
from .search import EQUAL, causes, relative_error
from .torch_trace import Change, LayerCall, Op, Trace, watched


class Forward:
    """One forward pass of torch, watched, and Flax's replay of it, both from the reference's weights.

    Attributes:
      links: the layers that are replayed, by torch path: those with a rule in the rulebook.
      before: torch's weights and buffers before the pass.
    """

    def __init__(self, pair: Pair, batches: Batches, step: int):
        self.step, self.batch = step, batches(step)
        self.links, self.trace = _layers(pair), Trace()
        self.reference = pair.reference("float64")
        # The comparison may have been in float32. Here float64 takes the steps again, to have no rounding.
        for earlier in range(1, step):
            self.reference.step(batches(earlier))
        self.candidate = pair.candidate(self.reference)
        module = self.reference.module
        # Clones, because BatchNorm writes its statistics in place.
        self.before = {name: x.clone() for name, x in module.state_dict().items()}
        self.seen = self.reference.step(self.batch, watched(module, self.links, self.trace, keep=True))
        calls = {self._key(call): (call, _channels_last(self.links[call.path])) for call in self.trace.calls}
        self.replay = replay(self.candidate, self.batch, self.seen.masks, calls)

    @cached_property
    def layers(self) -> tuple[LayerResult, ...]:
        """Every call, in torch's order."""
        return tuple(self._result(call) for call in self.trace.calls)

    def divergence(self) -> Divergence | None:
        """The first place of the forward pass that differs; None if there is none."""
        previous: LayerCall | None = None
        for call, result in zip(self.trace.calls, self.layers, strict=True):
            key = self._key(call)
            # What arrives comes first: a layer's own result is from the reference's inputs in any case.
            if key in self.replay.inputs and relative_error(*self.replay.inputs[key]) > EQUAL:
                return self._between(previous, call)
            if key in self.replay.results and not result.same:
                return self._inside(call, result)
            previous = call
        for name, wanted in self.seen.outputs.items():
            if relative_error(self.replay.outputs.get(name, np.empty(0)), wanted) > EQUAL:
                return self._after_all(previous, name)
        return None

    def loss_divergence(self) -> Divergence:
        flax = self.candidate.step(self.batch, self.seen.masks, keep=False).loss
        found = self._causes(self.trace.ops[self.trace.model_ops :], lambda seen, trace: seen.loss, flax)
        return Divergence("loss", "loss", "loss", "The outputs agree; the losses do not.", found)

    def _result(self, call: LayerCall) -> LayerResult:
        link, key = self.links[call.path], self._key(call)
        kind = type(self.reference.module.get_submodule(call.path)).__name__
        found = partial(LayerResult, call.path, link.flax, kind)
        if key not in self.replay.results:
            # Nothing is known of it, and that is not the same as equal.
            return found(math.inf, False, f"not replayed: {self.replay.missing.get(key, '')}")
        relative = relative_error(*self.replay.results[key])
        state = max(map(self._state_apart, self._states(link)), default=0.0)
        if relative <= EQUAL < state:
            return found(state, False, "its state differs")
        return found(relative, relative <= EQUAL, f"call {call.nth + 1}" if call.nth else "")

    def _states(self, link: Link) -> list[str]:
        names = [name for name in self.seen.state if name.startswith(f"{link.flax}.") or not link.flax]
        return [name for name in names if name in self.replay.state]

    def _state_apart(self, name: str) -> float:
        return relative_error(self.replay.state[name], self.seen.state[name])

    def _inside(self, call: LayerCall, result: LayerResult) -> Divergence:
        ops = self.trace.ops[call.first : call.last]
        if result.note == "its state differs":
            names = self._states(self.links[call.path])
            flax = {name: self.replay.state[name] for name in names}
            found = self._causes(ops, lambda seen, trace: seen.state, flax)
            words = " and ".join(name.rpartition(".")[2] for name in names if self._state_apart(name) > EQUAL)
            what = f"gives the same outputs, and its {words} differs afterwards"
        else:
            ours = self.replay.results[self._key(call)][0]
            found = self._causes(ops, partial(self._first_array, call, "outputs", ours), {"": ours})
            what = "differs although it is given the same inputs"
        where = f"{result.candidate or 'The model'} ({result.kind}) {what}: {result.relative:.2g} relative."
        return Divergence(call.path, result.candidate, result.kind, where, found)

    def _between(self, previous: LayerCall | None, call: LayerCall) -> Divergence:
        ours, theirs = self.replay.inputs[self._key(call)]
        arriving = partial(self._first_array, call, "inputs", ours)
        found = self._causes_between(previous, call.first, arriving, {"": ours})
        flax = self.links[call.path].flax
        after = self.links[previous.path].flax if previous else "the model's inputs"
        where = (
            f"Everything before {flax} agrees, and what arrives there does not "
            f"({relative_error(ours, theirs):.2g}): look between {after} and {flax}."
        )
        kind = f"between {previous.path if previous else 'inputs'} and {call.path}"
        return Divergence(call.path, flax, kind, where, found)

    def _after_all(self, previous: LayerCall | None, name: str) -> Divergence:
        flax = {name: self.replay.outputs[name]} if name in self.replay.outputs else {}
        found = self._causes_between(previous, self.trace.model_ops, lambda seen, trace: seen.outputs, flax)
        last = self.links[previous.path].flax if previous else "the inputs"
        where = f"Every layer agrees, and the output {name} does not: look after {last}."
        return Divergence(previous.path if previous else "", last, "after the last layer", where, found)

    def _causes_between(
        self, previous: LayerCall | None, end: int, look: Look, flax: Named
    ) -> tuple[Cause, ...]:
        """In the ops since the previous layer, or else in all before `end` that no layer made.

        What arrives through a residual was made before the layer in between.
        """
        found = self._causes(self.trace.ops[previous.last if previous else 0 : end], look, flax)
        if found:
            return found
        inside = {i for call in self.trace.calls for i in range(call.first, call.last)}
        return self._causes([op for op in self.trace.ops[:end] if op.index not in inside], look, flax)

    def _causes(self, ops: list[Op], look: Look, flax: Named) -> tuple[Cause, ...]:
        return causes(ops, lambda changes: look(*self._rerun(changes)), flax)

    def _key(self, call: LayerCall) -> Key:
        return self.links[call.path].flax, call.nth

    def _first_array(self, call: LayerCall, which: str, like: np.ndarray, seen: Seen, trace: Trace) -> Named:
        """The first array of the call's inputs or outputs, in Flax's layout."""
        again = trace.call(call.path, call.nth)
        arrays = getattr(again, which) if again else []
        fitting = fit(arrays[0], like.shape, _channels_last(self.links[call.path])) if arrays else None
        return {} if fitting is None else {"": np.asarray(fitting)}

    def _rerun(self, changes: dict[int, Change]) -> tuple[Seen, Trace]:
        """Forward and loss once more from the same start, without a backward pass."""
        self.reference.module.load_state_dict(self.before)
        self.reference.steps = self.step - 1
        trace = Trace()
        watching = watched(self.reference.module, self.links, trace, changes)
        return self.reference.step(self.batch, watching, forward_only=True), trace


Look = Callable[[Seen, Trace], Named]
"""The arrays of a run of torch that Flax's are to be held against."""


def _layers(pair: Pair) -> dict[str, Link]:
    """The outermost layers that the rulebook knows, by torch path."""
    found: dict[str, Link] = {}
    for link in pair.links.layers:
        # A layer inside of a known one has no counterpart that could be called alone, as in attention.
        below = any(link.flax.startswith(f"{other.flax}.") for other in found.values())
        if link.rule and not below:
            found[link.torch] = link
    return found


def _channels_last(link: Link) -> bool:
    return bool(link.rule and link.rule.channels == "last")
