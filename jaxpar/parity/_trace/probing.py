"""Probes: torch asked in advance what each known mistake would make of every layer's arrays.

A probe is a departure from torch's behaviour; where it changes an array that the judge sees in Flax, a
sketch of the changed array is kept. Layers with weights return what they returned, as they do when the
judge replays Flax's layers, so a probe is a few calls of functions and rarely a run.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from .._divergence.interventions import intervened, interventions
from .._divergence.layer_exchanges import exchanges
from .._divergence.optimizers import variations
from .._divergence.search import Dataflow, Hypothesis, NotRecomputable, any_mistakes, known_mistakes
from .._divergence.torch_trace import Departure, LayerCall, Op, Trace, tensors, watched
from .._sides.call_arguments import Call
from .._sides.constants import Constants
from .._sides.step_data import Batch, Observation, Task
from .._sides.torch_side import TorchLinks, TorchSide, to_numpy
from .sketch import sketch


@dataclasses.dataclass
class TorchHalf:
    """The torch half of a comparison: the model, its task and its batches."""

    module: torch.nn.Module
    task: Task
    batches: Callable[[int], Batch]
    inputs: Callable[[int], Call]  # without keyword arguments that only torch's call has
    steps: int

    def recorded_perturbations(self, keeps_ties: bool) -> None:
        return None

    def reference(self, dtype: str, constants: Constants | None = None) -> TorchSide:
        return TorchSide(self.module, TorchLinks(self.module), self.task, dtype, constants)


Site = tuple[str, str, int, int]  # "inputs", "outputs" of a layer's call; the others have a name only
MOST_ROWS = 400_000
PADDED = 12  # rows of an embedding that may be taken for its padding


@dataclasses.dataclass(frozen=True)
class Name:
    """A layer in a probe's text, which the judge replaces by Flax's path."""

    flax: str


class Probes:
    def __init__(
        self,
        side: TorchSide,
        batch: Batch,
        trace: Trace,
        observed: Observation,
        before: dict[str, torch.Tensor],
        paths: list[str],
        deadline: float,
    ):
        self.side, self.batch, self.trace, self.observed = side, batch, trace, observed
        self.before, self.paths, self.deadline = before, paths, deadline
        self.asked: list[tuple[str, str, int]] = []  # text, stage, op
        self.rows: list[tuple[int, int]] = []  # probe, site
        self.sketches: list[np.ndarray] = []
        self.sites: dict[Site, int] = {}
        self.left_out = 0
        self.links = {call.path: Name(named(call.path)) for call in trace.calls if call.replayed}
        self._forced = {call.key: call.outputs for call in trace.calls if call.replayed}
        self._owner = {i: call for call in trace.calls if call.replayed for i in range(call.first, call.last)}
        self._between = Dataflow(trace, trace.model_ops)
        self._after = Dataflow(trace, len(trace.ops))
        self._inside: dict[int, Dataflow] = {}
        self._targets = self._tensors()

    # What `layer_exchanges` asks of a forward pass.
    @property
    def module(self) -> torch.nn.Module:
        return self.side.module

    def flax(self, call: LayerCall) -> str:
        return named(call.path)

    def ops(self, call: LayerCall) -> list[Op]:
        return self.trace.ops[call.first : call.last]

    def manifest(self) -> dict[str, Any]:
        return {"asked": self.asked, "sites": [*self.sites], "left_out": self.left_out}

    def ask(self, source: TorchHalf) -> None:
        """Ask everything, the likeliest first, until the time is over."""
        restored(self)
        ops, losses = self.trace.ops[: self.trace.model_ops], self.trace.ops[self.trace.model_ops :]
        self._gradients()
        if source.task.optimizer:
            self._optimizers(source)
        for stage, lists in (
            ("known", known_mistakes(ops)),
            ("loss", itertools.chain(known_mistakes(losses), any_mistakes(losses))),
            ("exchange", self._exchanges()),
            ("any", any_mistakes(ops)),
        ):
            tried: set[str] = set()
            for hypothesis in itertools.chain.from_iterable(lists):
                changes = hypothesis.departure.changes
                # A change of one call is another probe than the same change of another call.
                key = f"{hypothesis.text} {sorted(changes)}" if changes else hypothesis.text
                if stage == "exchange" and key in tried:
                    continue
                tried.add(key)
                if time.monotonic() > self.deadline or len(self.rows) > MOST_ROWS:
                    self.left_out += 1
                    continue
                self._add(hypothesis.text, stage, max(changes, default=-1), self._effects(hypothesis))

    def _add(self, text: str, stage: str, op: int, effects: Iterable[tuple[Site, np.ndarray]]) -> None:
        by_site: dict[int, np.ndarray] = {}
        try:
            # A warning about a deliberately wrong call would confuse the user.
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
                for site, array in effects:
                    by_site[self.sites.setdefault(site, len(self.sites))] = sketch(array)
        except Exception:
            return  # torch rejects the change, so Flax did not do the same
        if by_site:
            self.rows += [(len(self.asked), site) for site in by_site]
            self.sketches += by_site.values()
            self.asked.append((text, stage, op))

    # ----------------------------------------------------------------------------------- the forward pass

    def _tensors(self) -> dict[int, list[tuple[Site, torch.Tensor]]]:
        targets: dict[int, list[tuple[Site, torch.Tensor]]] = {}
        for call in self.trace.calls:
            for which, of_call in (("inputs", call.input_tensors), ("outputs", call.output_tensors)):
                for i, x in enumerate(of_call):
                    targets.setdefault(id(x), []).append(((which, call.path, call.nth, i), x))
        for name, x in self.trace.outputs.items():
            targets.setdefault(id(x), []).append((("output", name, 0, 0), x))
        scalars = [x for op in self.trace.ops[self.trace.model_ops :] for x in tensors(op.result)]
        if scalars:
            targets.setdefault(id(scalars[-1]), []).append((("loss", "", 0, 0), scalars[-1]))
        return targets

    def _effects(self, hypothesis: Hypothesis) -> Iterator[tuple[Site, np.ndarray]]:
        departure = hypothesis.departure
        try:
            changed = self._recomputed(departure)
        except NotRecomputable:
            yield from self._run(departure)
            return
        for tensor_id, value in changed.items():
            for site, _ in self._targets.get(tensor_id, ()):
                yield site, to_numpy(value)
        yield from self._exchanged(departure, changed)

    def _recomputed(self, departure: Departure) -> dict[int, torch.Tensor]:
        """Return the changed tensors: inside of each layer, and between the layers."""
        parts: dict[int, dict] = {}
        for index, change in departure.changes.items():
            owner = self._owner.get(index)
            parts.setdefault(-1 if owner is None else owner.first, {})[index] = change
        changed: dict[int, torch.Tensor] = {}
        for first, changes in parts.items():
            if first >= 0:
                changed |= self._flow(self._owner[first]).all_after(Departure(changes))
        between = dataclasses.replace(departure, changes=parts.get(-1, {}))
        if between != Departure():
            after_all = any(index >= self.trace.model_ops for index in between.changes)
            changed |= (self._after if after_all else self._between).all_after(between)
        return changed

    def _flow(self, call: LayerCall) -> Dataflow:
        if call.first not in self._inside:
            self._inside[call.first] = Dataflow(self.trace, call.last, layer_call=call)
        return self._inside[call.first]

    def _exchanged(
        self, departure: Departure, changed: dict[int, torch.Tensor]
    ) -> Iterator[tuple[Site, np.ndarray]]:
        """An exchanged layer gets its partner's inputs, whether or not these have changed."""
        for call in self.trace.calls:
            partner = self.trace.call((departure.exchanged.get(call.path, ""), call.nth))
            for i, x in enumerate(partner.input_tensors if partner else ()):
                yield ("inputs", call.path, call.nth, i), to_numpy(changed.get(id(x), x))

    def _run(self, departure: Departure) -> Iterator[tuple[Site, np.ndarray]]:
        """Run the model, for functions that work in place or draw; yields the buffers, too."""
        restored(self)
        trace, both = Trace(), Departure(outputs=self._forced) | departure
        watching = watched(self.module, self.paths, trace, both, outputs=self.side.leaves)
        results = self.side.step(self.batch, watching, forward_only=True)
        restored(self)
        for call in trace.calls:
            original = self.trace.call(call.key)
            for which in ("inputs", "outputs") if original else ():
                pairs = zip(getattr(call, which), getattr(original, which), strict=False)
                for i, (x, y) in enumerate(pairs):
                    if x.shape != y.shape or not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
                        yield (which, call.path, call.nth, i), x
        for kind, part in (("output", "outputs"), ("state", "state"), ("loss", "loss")):
            base = getattr(self.observed, part)
            for name, x in getattr(results, part).items():
                if x.shape != base[name].shape or x.tobytes() != base[name].tobytes():
                    yield (kind, name, 0, 0), x

    def _exchanges(self) -> Iterator[list[Hypothesis]]:
        forced = [call for call in self.trace.calls if call.replayed]
        shown = _Outermost(self, forced)
        stages = [[*exchanges(shown, call)] for call in (*forced, None)]  # type: ignore[arg-type]
        stages += [[*exchanges(shown, call, layer_differs=True)] for call in forced]  # type: ignore[arg-type]
        # By stage, so that the likeliest of all sites come first.
        for lists in itertools.zip_longest(*stages, fillvalue=[]):
            yield [hypothesis for one in lists for hypothesis in one]

    # ----------------------------------------------------------------------------- backward, and training

    def _gradients(self) -> None:
        for path in dict.fromkeys(call.path for call in self.trace.calls if call.replayed):
            layer = self.module.get_submodule(path)
            names = [name for name, _ in layer.named_parameters(prefix=path)]
            for text, settings in interventions(layer, self._padded(names)):
                if time.monotonic() > self.deadline:
                    self.left_out += 1
                    continue
                with intervened(settings):
                    restored(self)
                    after = self.side.step(self.batch).gradients
                restored(self)
                effects = ((("gradient", name, 0, 0), after[name]) for name in names)
                self._add(f"{text}", "gradient", -1, effects)

    def _padded(self, names: Sequence[str]) -> Iterator[int | None]:
        yield None
        for name in names:
            gradient = self.observed.gradients[name]
            if gradient.ndim == 2:
                yield from map(int, (gradient != 0).any(1).nonzero()[0][:PADDED])

    def _optimizers(self, source: TorchHalf) -> None:
        build = source.task.optimizer[0] if source.task.optimizer else None
        assert build
        right = build([torch.nn.Parameter(torch.zeros(1))])
        for text, other in variations(build, right):
            if time.monotonic() > self.deadline:
                self.left_out += 1
                continue
            task = dataclasses.replace(source.task, optimizer=(other, None))
            self._add(text, "optimizer", -1, _weights(dataclasses.replace(source, task=task)))


class _Outermost:
    """The probes' forward pass with the outermost layers alone, as `exchanges` sees one."""

    def __init__(self, probes: Probes, calls: list[LayerCall]):
        self.trace = dataclasses.replace(probes.trace, calls=calls)
        self.module, self.links, self.flax, self.ops = probes.module, probes.links, probes.flax, probes.ops


def _weights(source: TorchHalf) -> Iterator[tuple[Site, np.ndarray]]:
    side = source.reference("float64")
    for step in range(1, source.steps + 1):
        side.step(source.batches(step))
    for name, x in side.weights().items():
        yield ("weight", name, 0, 0), x


def named(path: str) -> str:
    return f"⟦{path}⟧"


def restored(probes: Probes) -> None:
    """Put the traced pass's first weights and buffers back, in place: the trace holds the tensors."""
    probes.side.steps = 0
    for name, x in probes.module.state_dict().items():
        if not torch.equal(probes.before[name], x):
            x.copy_(probes.before[name])
