"""The first place and its cause from a trace: Flax's layers are replayed, and the probes are looked up.

The search has the order of `_divergence/sites`, whose runs of torch are sketches here. A later
difference is a consequence if the probe that explains an earlier one predicts it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .._comparison_data import Cause, ComparisonData, Divergence, LayerResult
from .._divergence import wording
from .._divergence.array_changes import EQUAL, array_changes, relative_error, tolerance
from .._divergence.flax_replay import STATE, Key, Replay, ReplayedPass, replay, unfit
from .._levels import Batches
from .._weights import Link
from ..measuring import Kind, Outcome
from .reading import RecordedCall, Site
from .recorded_pair import TracePair
from .sketch import apart, sketch

CLOSE = 40  # functions before a place whose known mistakes come before exchanges of layers
Predicted = dict[Site, list[np.ndarray]]


def find(pair: TracePair, batches: Batches, compared: ComparisonData) -> Divergence | None:
    """Return the first divergence, which holds the others."""
    search = TraceSearch(pair, batches)
    step = min((row.difference.step for row in compared.different), default=1)
    different = [row.difference for row in compared.different if row.difference.step == step]
    kinds = {d.kind for d in different}
    sites = [*search.sites()]
    moving = [divergence for divergence, moves in sites if moves]
    divergences = [*moving, *(divergence for divergence, moves in sites if not moves)]
    later: Divergence | None = None
    if not moving:
        noise = {row.difference.name for row in compared.rows if row.outcome is Outcome.NOISE}
        if Kind.LOSS in kinds:
            later = search.loss()
        elif kinds & {Kind.GRADIENT, Kind.INPUT_GRADIENT}:
            later = search.backward(different)
        elif kinds & {Kind.UPDATE, Kind.WEIGHT} and pair.task.optimizer:
            later = search.optimizer(noise)
    divergences = [later, *divergences] if later else divergences
    if not divergences:
        return None
    return dataclasses.replace(divergences[0], layers=search.layers, others=tuple(divergences[1:]))


class WrongArray(NamedTuple):
    """An array of Flax that is not torch's at a site; `back` is Flax's array in torch's layout."""

    site: Site
    back: np.ndarray
    flax: np.ndarray
    torch: np.ndarray

    @property
    def relative(self) -> float:
        return relative_error(self.flax, self.torch)


class TraceSearch(ReplayedPass):
    """Flax's layers replayed on a trace's first step, and the probes of torch by site."""

    def __init__(self, pair: TracePair, batches: Batches):
        self.pair, self.recorded, self.batches = pair, pair.recorded, batches
        self.links: dict[str, Link] = pair.links.outermost()
        every = self.recorded.calls()
        self.calls = [call for call in every if call.path in self.links]
        self.inside = {i for call in every if call.forced for i in range(call.first, call.last)}
        self.asked, self.by_site = self.recorded.probes()
        reference = pair.reference("float64")
        self.candidate = pair.candidate(reference)
        self.batch, self.observed = batches(1), reference.step(batches(1))
        self.channels_last: frozenset[Key] = frozenset()
        self.replay = self._replayed()
        # Once a layer's layout is right, the following layers get arrays that show their own layout.
        while turned := self.turned(self.calls):
            self.channels_last |= turned
            self.replay = self._replayed()
        self.layers = tuple(map(self.result, self.calls))

    def kind(self, call: RecordedCall) -> str:
        return self.recorded.module(call.path)["kinds"][0]

    def may_be_turned(self, call: RecordedCall) -> bool:
        is_custom = not self.recorded.module(call.path)["torchs"]
        return is_custom and not self.pair.task.layout.in_torchs_axes

    def _replayed(self) -> Replay:
        layouts: Any = {self.key(call): (call, self.has_channels_last(call)) for call in self.calls}
        return replay(self.candidate, self.batch, self.observed.masks, layouts)

    # ---------------------------------------------------------------------------------- the forward pass

    def sites(self) -> Iterator[tuple[Divergence, bool]]:
        """Yield the places of the forward pass in order, and whether each changes the outputs."""
        previous: RecordedCall | None = None
        predicted: list[Predicted] = []
        unexplained, is_first = False, True
        for call, result in zip(self.calls, self.layers, strict=True):
            wrong = self._wrong_input(call)
            if wrong and not unexplained and not self._is_predicted(predicted, wrong):
                divergence, prediction = self._between(previous, call, wrong, is_first)
                predicted.append(prediction)
                unexplained |= not divergence.causes
                is_first = False
                yield divergence, True
            if self.key(call) in self.replay.results and not result.same:
                yield self._inside(call, result)
                is_first = False
            elif wrong is None:
                for divergence in self._of_another_shape(call):
                    unexplained, is_first = True, False
                    yield divergence, True
            previous = call if self.key(call) in self.replay.inputs else previous
        for name, torch_array in self.observed.outputs.items():
            flax_array = self.replay.outputs.get(name, np.empty(0))
            back = self.pair.task.layout.outputs_back(flax_array)
            output = WrongArray(("output", name, 0, 0), back, flax_array, torch_array)
            if output.relative > EQUAL and not unexplained and not self._is_predicted(predicted, output):
                yield self._after_all(previous, output, is_first), True
                is_first = False

    def _is_predicted(self, predicted: list[Predicted], wrong: WrongArray) -> bool:
        sketches = (s for prediction in predicted for s in prediction.get(wrong.site, ()))
        return any(apart(sketch(wrong.back), s) <= EQUAL for s in sketches)

    def _wrong_input(self, call: RecordedCall) -> WrongArray | None:
        """Return the input that is farthest off."""
        pairs = self.arriving(call)
        errors = {index: relative_error(*both) for index, both in pairs.items()}
        index = max(errors, key=lambda i: errors[i], default=None)
        if index is None or errors[index] <= EQUAL:
            return None
        flax_array, torch_array = pairs[index]
        back = unfit(flax_array, call.inputs[index].shape, self.has_channels_last(call))
        site: Site = ("inputs", call.path, call.nth, index)
        return WrongArray(site, flax_array if back is None else back, flax_array, torch_array)

    def _between(
        self, previous: RecordedCall | None, call: RecordedCall, wrong: WrongArray, is_first: bool
    ) -> tuple[Divergence, Predicted]:
        flax, unreplayed = self.flax(call), self.unreplayed_before(self.calls, call)
        after = self.flax(previous) if previous else "the model's inputs"
        where = wording.between(after, flax, wrong.relative, is_first, unreplayed)
        kind = f"between {previous.path if previous else 'inputs'} and {call.path}"
        causes, prediction = self._causes(wrong, previous, call)
        return Divergence(call.path, flax, kind, where, causes), prediction

    def _after_all(self, previous: RecordedCall | None, wrong: WrongArray, is_first: bool) -> Divergence:
        last = self.flax(previous) if previous else "the inputs"
        causes, _ = self._causes(wrong, previous, None)
        where = wording.after_all(last, wrong.site[1], is_first)
        return Divergence(previous.path if previous else "", last, "after the last layer", where, causes)

    def _inside(self, call: RecordedCall, result: LayerResult) -> tuple[Divergence, bool]:
        flax, kind = self.flax(call), self.kind(call)
        if result.note == STATE:
            errors = [name for name in self.states(call) if self.state_error(name) > EQUAL]
            where = wording.inside(flax, kind, result.relative, [name.rpartition(".")[2] for name in errors])
            causes = self._matching_leaves("state", self.replay.state, errors, "known")
            return Divergence(call.path, flax, kind, where, causes), False
        flax_array, torch_array = self.replay.results[self.key(call)]
        where = wording.inside(flax, kind, result.relative)
        back = unfit(flax_array, call.outputs[0].shape, self.has_channels_last(call))
        site: Site = ("outputs", call.path, call.nth, 0)
        matching = self._matching(site, back, tolerance(result.relative))
        causes = _first(
            lambda: self._named(
                matching, lambda stage, op: stage == "known" and call.first <= op < call.last
            ),
            lambda: self._named(matching, lambda stage, op: stage == "exchange"),
            lambda: tuple(array_changes(flax_array, torch_array)),
            lambda: self._named(matching, lambda stage, op: stage == "any" and call.first <= op < call.last),
        )
        return Divergence(call.path, flax, kind, where, causes), True

    def _of_another_shape(self, call: RecordedCall) -> Iterator[Divergence]:
        flax_array = self.replay.misfits.get(self.key(call))
        if flax_array is None or self.key(call) not in self.replay.inputs:
            return
        back = (
            np.moveaxis(flax_array, -1, 1)
            if self.has_channels_last(call) and flax_array.ndim > 2
            else flax_array
        )
        matching = self._matching(("outputs", call.path, call.nth, 0), back, EQUAL)
        if causes := self._named(matching, lambda stage, op: stage == "known"):
            flax, kind = self.flax(call), self.kind(call)
            last = self.in_flax_layout(call, call.outputs[0]).shape
            where = wording.of_another_shape(flax, kind, flax_array.shape, last)
            yield Divergence(call.path, flax, kind, where, causes)

    def _causes(
        self, wrong: WrongArray, previous: RecordedCall | None, call: RecordedCall | None
    ) -> tuple[tuple[Cause, ...], Predicted]:
        """Look the place up: the code since the previous layer, then all earlier code outside of layers."""
        matching = self._matching(wrong.site, wrong.back, tolerance(wrong.relative))
        start = previous.last if previous else 0
        end = call.first if call else max((op for _, _, op in self.asked), default=0) + 1
        outside = [op for op in range(end) if op not in self.inside]
        close = set(outside[-CLOSE:])

        def known(where: Callable[[int], bool], stage: str = "known") -> Callable[[], tuple[Cause, ...]]:
            return lambda: self._named(matching, lambda probe_stage, op: probe_stage == stage and where(op))

        causes = _first(
            known(lambda op: op >= start),
            known(lambda op: op in close),
            lambda: tuple(self.norm_position(self.calls, call, wrong.flax)),
            known(lambda op: True, "exchange"),
            known(lambda op: True),
            lambda: tuple(array_changes(wrong.flax, wrong.torch)),
            known(lambda op: op >= start, "any"),
            known(lambda op: True, "any"),
        )
        texts = {cause.text for cause in causes}
        best = [probe for probe, _ in matching if self._text(probe) in texts]
        return causes, {
            other: [s for probe, s in rows if probe in best] for other, rows in self.by_site.items() if best
        }

    def _matching(self, site: Site, array: np.ndarray | None, within: float) -> list[tuple[int, float]]:
        if array is None:
            return []
        flax_sketch = sketch(array)
        errors = ((probe, apart(flax_sketch, s)) for probe, s in self.by_site.get(site, ()))
        return [(probe, error) for probe, error in errors if error <= within]

    def _named(
        self, matching: list[tuple[int, float]], allows: Callable[[str, int], bool]
    ) -> tuple[Cause, ...]:
        causes = [Cause(self._text(p), e) for p, e in matching if allows(*self.asked[p][1:])]
        if any(cause.relative <= EQUAL for cause in causes):
            causes = [cause for cause in causes if cause.relative <= EQUAL]
        best = {c.text: c for c in sorted(causes, key=lambda c: -c.relative)}
        return tuple(sorted(best.values(), key=lambda c: c.relative))

    def _text(self, probe: int) -> str:
        """Return a probe's text, with Flax's paths in place of torch's."""

        def flax(match: re.Match) -> str:
            link = self.links.get(match[1])
            return link.flax if link else match[1]

        return re.sub("⟦(.*?)⟧", flax, self.asked[probe][0])

    # ------------------------------------------------------------------------ the rest of a training step

    def loss(self) -> Divergence:
        flax_loss = self.candidate.step(self.batch, self.observed.masks, keep=False).loss[""]
        before = relative_error(flax_loss, self.observed.loss[""])
        matching = self._matching(("loss", "", 0, 0), flax_loss, tolerance(before))
        return dataclasses.replace(wording.LOSS, causes=self._named(matching, lambda stage, op: True))

    def backward(self, different: list[Any]) -> Divergence:
        divergence = wording.backward(self.layers, different)
        gradients = self.candidate.step(self.batch, self.observed.masks, keep=False).gradients
        names = [name for name in gradients if name.startswith(f"{divergence.candidate}.")]
        causes = (
            self._matching_leaves("gradient", gradients, names, "gradient") if divergence.candidate else ()
        )
        return dataclasses.replace(divergence, causes=causes)

    def optimizer(self, noise: set[str]) -> Divergence:
        reference = self.pair.reference("float64")
        candidate = self.pair.candidate(reference)
        for step in range(1, self.recorded.steps + 1):
            batch = self.batches(step)
            candidate.step(batch, reference.step(batch).masks)
        weights = candidate.weights()
        names = [name for name in weights if name not in noise]
        causes = self._matching_leaves("weight", weights, names, "optimizer")
        kind = str((self.recorded.manifest["optimizer"] or {}).get("kind", ""))
        return Divergence("optimizer", "optimizer", kind, wording.UPDATES, causes)

    def _matching_leaves(
        self, kind: str, leaves: dict[str, np.ndarray], names: list[str], stage: str
    ) -> tuple[Cause, ...]:
        """Return the probes that yield all of these leaves."""
        arrays = self.pair.links.to_torch({name: leaves[name] for name in names}, gradient=kind == "gradient")
        errors: dict[int, float] = {}
        sites = [(kind, name, 0, 0) for name in arrays]
        matching = {
            site: dict(self._matching(site, arrays[site[1]], EQUAL)) for site in sites if site in self.by_site
        }
        for probe in set.intersection(*map(set, matching.values())) if matching else ():
            errors[probe] = max(matching[site][probe] for site in matching)
        return self._named([*errors.items()], lambda probe_stage, op: probe_stage == stage)


def _first(*stages: Callable[[], tuple[Cause, ...]]) -> tuple[Cause, ...]:
    return next((causes for stage in stages if (causes := stage())), ())
