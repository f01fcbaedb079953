"""SiteSearch: find the sites where the forward passes differ independently, and their causes.

A site is a layer whose result differs on the reference's inputs, or the code leading to a layer. Its error
also reaches later layers through residual connections. So torch is made wrong in the same way, by the site's
cause or else by Flax's array; only what still differs after that is a site of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import partial
from types import MappingProxyType

import numpy as np

from .._comparison_data import Divergence
from .._sides.step_data import Named
from .._sides.torch_side import to_numpy
from .array_changes import EQUAL, array_changes, relative_error
from .departures import (
    in_flax_layout,
    input_of,
    layer_input,
    layer_output,
    layer_output_of_any_shape,
    output_change,
    recomputed,
    rerun,
    with_flax_input,
    with_flax_output,
)
from .fitted import fitted
from .flax_replay import STATE
from .forward import AlignedForward
from .layer_exchanges import exchanges
from .search import (
    Budget,
    Dataflow,
    Explanation,
    Hypothesis,
    Quick,
    Search,
    Watch,
    any_mistakes,
    causes_of,
    exchanged_arrays,
    known_mistakes,
    quick,
    repeated_mistakes,
)
from .torch_trace import Departure, LayerCall, Trace
from .values import ValuePlace, value_place
from .wording import INPUTS, after_all, between, inside, of_another_shape, without_layers

SHARE = 1e-2  # of the largest change of the outputs; sites with a smaller change are listed last
CLOSE = 40  # functions before a site whose known mistakes are tried before exchanges of layers


@dataclasses.dataclass(frozen=True)
class DivergenceSite:
    divergence: Divergence
    output_change: float  # the relative change of torch's outputs that the divergence causes


def in_order(sites: list[DivergenceSite]) -> tuple[Divergence, ...]:
    """Sort in the order of computation, with those first that change the outputs."""
    # A change that is NaN or could not be measured is infinite, and must not make all others look small.
    most = max((site.output_change for site in sites if math.isfinite(site.output_change)), default=0.0)
    large = [
        site.divergence for site in sites if site.output_change > 0 and site.output_change >= SHARE * most
    ]
    return (*large, *(site.divergence for site in sites if site.divergence not in large))


class SiteSearch:
    """Yields the sites of one forward pass until the budget is over; can be iterated once."""

    def __init__(self, forward: AlignedForward, budget: Budget):
        self.forward, self.search = forward, Search(len(forward.trace.ops), budget)
        # The departure makes torch as wrong as Flax between the layers, at the sites so far. `expected` and
        # `outputs` belong to torch's run under it.
        self.first, self.departure = True, Departure()
        self.expected, self.outputs = forward.trace, forward.outputs

    def __iter__(self) -> Iterator[DivergenceSite]:
        for site in self._all():
            self.first = False
            yield site
            if self.search.budget.over:
                return

    def _all(self) -> Iterator[DivergenceSite]:
        previous: LayerCall | None = None
        for call, result in zip(self.forward.trace.calls, self.forward.layers, strict=True):
            different = self._input_errors(call)
            if different:
                yield self._between(previous, call, max(different, key=lambda index: different[index]))
            # Independent of the inputs in Flax: the replay gave the layer the reference's inputs.
            if self.forward.key(call) in self.forward.replay.results and not result.same:
                yield self._inside(call, result.relative, result.note == STATE)
            elif not different:
                yield from self._of_another_shape(call)
            previous = call if call.replayed else previous
        # The code after the last layer has no call whose inputs would show its errors.
        for name in self.forward.outputs:
            if self._output_error(name) > EQUAL:
                yield self._after_all(previous, name)

    # ------------------------------------------------------------------------------------- a layer itself

    def _inside(self, call: LayerCall, relative: float, of_state: bool) -> DivergenceSite:
        forward, flax = self.forward, self.forward.flax(call)
        kind = forward.kind(call)
        if of_state:
            states = forward.states(call)
            names = [name.rpartition(".")[2] for name in states if forward.state_error(name) > EQUAL]
            explanations = self.search.first(
                known_mistakes(forward.ops(call)), self._states, states, before=relative
            )
            where, moved = inside(flax, kind, relative, names), 0.0
        else:
            flax_array, torch_array = forward.replay.results[forward.key(call)]
            explanations = self._causes_inside(call, flax_array, torch_array)
            where = inside(flax, kind, relative)
            moved = output_change(self.forward, with_flax_output(forward, call))
        return DivergenceSite(Divergence(call.path, flax, kind, where, causes_of(explanations)), moved)

    def _of_another_shape(self, call: LayerCall) -> Iterator[DivergenceSite]:
        """Yield a layer that returns a different shape, if a cause is known; it may mean the same."""
        forward, flax = self.forward, self.forward.flax(call)
        flax_array = forward.replay.misfits.get(forward.key(call))
        if flax_array is None or not forward.arriving(call):
            return
        flow = Dataflow(forward.trace, call.last, layer_call=call)
        watch = partial(layer_output_of_any_shape, forward, call)
        explanations = self.search.first(
            known_mistakes(forward.ops(call)),
            watch,
            {"": flax_array},
            lambda departure: in_flax_layout(forward, call, quick(flow, call, 0, "outputs", departure)),
        )
        if explanations:
            self._depart(explanations, None)
            kind, shape = forward.kind(call), watch(Departure())[""].shape
            where = of_another_shape(flax, kind, flax_array.shape, shape)
            causes = causes_of(explanations)
            yield DivergenceSite(Divergence(call.path, flax, kind, where, causes), math.inf)

    def _causes_inside(
        self, call: LayerCall, flax_array: np.ndarray, torch_array: np.ndarray
    ) -> list[Explanation]:
        ops, flax, before = self.forward.ops(call), {"": flax_array}, relative_error(flax_array, torch_array)
        watch = partial(layer_output, self.forward, call)
        flow = Dataflow(self.forward.trace, call.last, layer_call=call)
        quick = partial(recomputed, self.forward, flow, call, 0, "outputs")
        return (
            self.search.first(known_mistakes(ops), watch, flax, quick, before)
            or self.search.first(fitted(ops, quick, flax), watch, flax, quick, before)
            or self.search.first(
                exchanges(self.forward, call, layer_differs=True), watch, flax, quick, before
            )
            or [Explanation(cause) for cause in array_changes(flax_array, torch_array)]
            or self.search.first(any_mistakes(ops), watch, flax, quick, before)
        )

    def _states(self, departure: Departure) -> Named:
        results, _ = rerun(self.forward, departure)
        return results.state if results else {}

    # --------------------------------------------------------------------------------- between the layers

    def _between(self, previous: LayerCall | None, call: LayerCall, index: int) -> DivergenceSite:
        forward, flax = self.forward, self.forward.flax(call)
        flax_array, _ = forward.arriving(call)[index]
        torch_array = input_of(forward, call, self._again(call), index).get("", flax_array)
        relative = relative_error(flax_array, torch_array)

        def watch(departure: Departure) -> Named:
            return layer_input(forward, call, index, self.departure | departure)

        flow = Dataflow(self.expected, self._again(call).first)
        quick = partial(recomputed, forward, flow, call, index, "inputs")
        explanations = self._causes_between(previous, call, watch, quick, flax_array, torch_array)
        instead = with_flax_input(forward, call, index)
        self._depart(explanations, instead)
        after = forward.flax(previous) if previous else "the model's inputs"
        where = between(
            after, flax, relative, self.first, forward.unreplayed_before(forward.trace.calls, call)
        )
        kind = f"between {previous.path if previous else 'inputs'} and {call.path}"
        causes = causes_of(explanations)
        return DivergenceSite(
            Divergence(call.path, flax, kind, where, causes), output_change(self.forward, instead)
        )

    def _after_all(self, previous: LayerCall | None, name: str) -> DivergenceSite:
        forward = self.forward
        flax_array, torch_array = forward.replay.outputs.get(name), self.outputs.get(name)
        error = self._output_error(name)
        parting = value_place(forward) if self.first and not forward.layers else None
        explanations: list[Explanation] = []
        if flax_array is not None and torch_array is not None:
            agreeing = {
                other: x
                for other in self.outputs
                if self._output_error(other) <= EQUAL and (x := forward.replay.outputs.get(other)) is not None
            }

            def watch(departure: Departure) -> Named:
                results, _ = rerun(forward, self.departure | departure)
                if not results:
                    return {}
                return {"": results.outputs[name], **{other: results.outputs[other] for other in agreeing}}

            flow = Dataflow(self.expected, self.expected.model_ops)

            def quick(departure: Departure) -> Named:
                tensor = flow.after(departure, self.expected.outputs[name])
                return {} if tensor is None else {"": forward.reference.task.layout.outputs(to_numpy(tensor))}

            if parting is not None:
                explanations = self._causes_at(parting, watch, quick, flax_array, torch_array, agreeing)
            explanations = explanations or self._causes_between(
                previous, None, watch, quick, flax_array, torch_array, agreeing
            )
            self._depart(explanations, None)
        last = forward.flax(previous) if previous else INPUTS
        where, causes = after_all(last, name, self.first), causes_of(explanations)
        if parting is not None:
            last = parting.line or last
            where = without_layers(parting.op.name, parting.op.line, parting.line)
        path = previous.path if previous else ""
        return DivergenceSite(Divergence(path, last, "after the last layer", where, causes), error)

    def _causes_at(
        self,
        parting: ValuePlace,
        watch: Watch,
        quick: Quick,
        flax_array: np.ndarray,
        torch_array: np.ndarray,
        agreeing: Named,
    ) -> list[Explanation]:
        """Search the nearest calls: first in all layers that a function computes, then in one."""
        flax, before = {"": flax_array, **agreeing}, relative_error(flax_array, torch_array)
        repeated = parting.repeated(self.expected.ops[: self.expected.model_ops])
        for stages in (
            repeated_mistakes(repeated),
            fitted(parting.near, quick, flax, repeated),
            known_mistakes(parting.near),
            fitted(parting.near, quick, flax),
        ):
            if explanations := self.search.first(stages, watch, flax, quick, before):
                return explanations
        return []

    def _causes_between(
        self,
        previous: LayerCall | None,
        call: LayerCall | None,
        watch: Watch,
        quick: Quick,
        flax_array: np.ndarray,
        torch_array: np.ndarray,
        agreeing: Named = MappingProxyType({}),  # type: ignore[assignment]
    ) -> list[Explanation]:
        """Search the ops since the previous layer, then all earlier ops outside layers.

        A cause leaves the outputs in `agreeing` as they are.
        """
        # Earlier ones too: a residual connection brings arrays from before the previous layer.
        trace, flax = self.expected, {"": flax_array, **agreeing}
        end = self._again(call).first if call else trace.model_ops
        near = trace.ops[self._again(previous).last if previous else 0 : end]
        far = [op for op in trace.ops[:end] if op.index not in trace.inside]

        def first(stages: Iterator[list[Hypothesis]]) -> list[Explanation]:
            return self.search.first(stages, watch, flax, quick, relative_error(flax_array, torch_array))

        # Cheap and likely hypotheses first: each run of the model counts against the budget.
        return (
            first(known_mistakes(near))
            or first(fitted(near, quick, flax))
            or first(known_mistakes(far[-CLOSE:]))
            or [Explanation(c) for c in self.forward.norm_position(trace.calls, call, flax_array)]
            or first(exchanges(self.forward, call))
            or first(known_mistakes(far[:-CLOSE]))
            or [Explanation(cause) for cause in array_changes(flax_array, torch_array)]
            or first(exchanged_arrays(near, [op for op in trace.ops if op.index not in trace.inside]))
            or first(any_mistakes(near))
            or first(any_mistakes(far))
        )

    def _again(self, call: LayerCall) -> LayerCall:
        return self.expected.call(call.key) or call

    def _depart(self, explanations: list[Explanation], instead: Departure | None) -> None:
        """Continue with the departure that leaves the fewest sites: one of the causes, or Flax's array."""
        candidates = [explanation.departure for explanation in explanations]
        runs = []
        for candidate in (*candidates, instead):
            if candidate is None or candidate == Departure():
                continue
            departure = self.departure | candidate
            try:
                results, trace = rerun(self.forward, departure, keep=True)
            except Exception:
                continue  # torch cannot run on, for example with an index past the end of a table
            if results is not None:
                runs.append((departure, trace, results.outputs))
        # A wrong explanation can hide one site and create another; fewer sites is the simpler account.
        if runs:
            best = min(runs, key=lambda run: self._sites_left(run[1], run[2]))
            self.departure, self.expected, self.outputs = best

    def _sites_left(self, trace: Trace, outputs: Named) -> int:
        before = self.expected, self.outputs
        self.expected, self.outputs = trace, outputs
        try:
            layers = sum(bool(self._input_errors(call)) for call in self.forward.trace.calls)
            return layers + sum(self._output_error(name) > EQUAL for name in outputs)
        finally:
            self.expected, self.outputs = before

    def _input_errors(self, call: LayerCall) -> dict[int, float]:
        again = self.expected.call(call.key)
        errors = {}
        for index, (flax_array, _) in self.forward.arriving(call).items():
            torch_array = input_of(self.forward, call, again, index).get("") if again else None
            error = math.inf if torch_array is None else relative_error(flax_array, torch_array)
            if error > EQUAL:
                errors[index] = error
        return errors

    def _output_error(self, name: str) -> float:
        if name not in self.outputs:
            return math.inf
        return relative_error(self.forward.replay.outputs.get(name, np.empty(0)), self.outputs[name])
