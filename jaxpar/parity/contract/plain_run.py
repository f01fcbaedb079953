"""Run the plain code of a port alone: each layer returns torch's recorded arrays, and no layer is computed.

What reaches a layer then depends on the code between the layers only, so an edit of that code is tried in a
fraction of the time of a comparison. The comparison decides; this run only discards what cannot agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._typing import PyTree
from .._comparison_data import Divergence
from .._divergence.array_changes import EQUAL, relative_error
from .._divergence.flax_replay import Key, together
from .._levels import Batches
from .._sides.flax_side import FlaxSide
from .._trace.places import TraceSearch
from .._trace.recorded_pair import TracePair
from .._weights.tree import FlaxModule

Wrong = dict[tuple[str, int], float]  # errors by layer call or output, in the order of computation
LINES, CALL = "line", "call"


def is_forward(divergence: Divergence) -> bool:
    return divergence.kind.startswith("between ") or divergence.kind == "after the last layer"


class Arrived(NamedTuple):
    """What reached a layer or an output: Flax's array, torch's, and its position among the arrays."""

    flax: np.ndarray
    torch: np.ndarray
    position: int


class PlainRun:
    """torch's arrays by Flax's layer calls, and runs of a port's code on them."""

    def __init__(self, pair: TracePair, batches: Batches):
        search = TraceSearch(pair, batches)
        self.batch, self.outputs = search.batch, search.observed.outputs
        self.task, self.loss = pair.task, search.observed.loss.get("")
        self.inputs = {
            key: [np.asarray(both[1]) for _, both in sorted(pairs.items())]
            for key, pairs in search.replay.inputs.items()
        }
        self.returned = {key: both[1] for key, both in search.replay.results.items()}
        self.calls = {search.key(call): call for call in search.calls}
        self.channels_last = {key: search.has_channels_last(call) for key, call in self.calls.items()}
        side = _flax_side(pair)
        self.weights = {**side.weights(), **side.state()}
        self.call = side.call(self.batch)
        self.arrived: dict[tuple[str, int], Arrived] = {}  # what was wrong in the last run

    def wrong(self, pair: TracePair, events: list[tuple[str, Any]] | None = None) -> Wrong:
        """Return the errors of what reaches the layers and of the outputs; `events` gets the calls' keys."""
        side = _flax_side(pair)
        self.arrived = {}
        stand_ins = _StandIns(self, [] if events is None else events)
        call = side.call(self.batch)
        outputs, _ = side.net.apply(side.parameters, side.extra_state, call, (), stand_ins)
        for i, (name, x) in enumerate(side.leaves(outputs).items()):
            if name in self.outputs:
                self.arrive((name, -1), np.asarray(x), self.outputs[name], i)
        return {key: relative_error(*both[:2]) for key, both in self.arrived.items()}

    def arrive(self, key: tuple[str, int], flax_array: Any, torch_array: Any, position: int) -> None:
        both = np.asarray(flax_array), np.asarray(torch_array)
        if key not in self.arrived and not relative_error(*both) <= EQUAL:
            self.arrived[key] = Arrived(*both, position)


def _flax_side(pair: TracePair) -> FlaxSide:
    side = pair.candidate(pair.reference("float64"))
    if not isinstance(side, FlaxSide):
        raise NotImplementedError("a port in torch is run as a whole")
    return side


class _StandIns:
    """A call handler that returns the recorded arrays in place of the layers' own."""

    def __init__(self, run: PlainRun, events: list[tuple[str, Any]]):
        self.run, self.events = run, events
        self.counts: dict[str, int] = {}

    def __call__(
        self, path: str, layer: FlaxModule, call: Callable[..., PyTree], args: tuple, kwargs: dict
    ) -> PyTree:
        nth = self.counts[path] = self.counts.get(path, -1) + 1
        key: Key = path, nth
        recorded = self.run.calls.get(key)
        if recorded is None:
            return call(*args, **kwargs)
        self.events.append((CALL, key))
        arrays = [x for x in (*args, *kwargs.values()) if hasattr(x, "shape")]
        for i, (flax_array, torch_array) in enumerate(zip(arrays, recorded.inputs, strict=False)):
            is_floating = jnp.issubdtype(flax_array.dtype, jnp.floating)
            if i == 0 or is_floating:
                rows = i == 0 and not is_floating
                both = together(flax_array, torch_array, self.run.channels_last[key], rows)
                in_flax, in_torch = both or (flax_array, torch_array)
                self.run.arrive(key, in_flax, in_torch, i)
        if key not in self.run.returned:
            return call(*args, **kwargs)
        result = jnp.asarray(self.run.returned[key])
        if len(recorded.outputs) == 1:
            return result
        leaves, structure = jax.tree.flatten(call(*args, **kwargs))
        return jax.tree.unflatten(structure, [result, *leaves[1:]])


class LineEvents:
    """Notes the lines of one file that run inside of a `with`, among the events of a run."""

    def __init__(self, file: str, events: list[tuple[str, Any]]):
        self.file, self.events = file, events

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._called)

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != self.file:
            return None

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == LINES:
                self.events.append((LINES, frame.f_lineno))
            return line

        return line


def lines_before(events: list[tuple[str, Any]], key: tuple[str, int]) -> list[int]:
    """Return the lines that ran before a layer's call, or before the end, the latest first."""
    end = events.index((CALL, key)) if (CALL, key) in events else len(events)
    return [*dict.fromkeys(line for kind, line in reversed(events[:end]) if kind == LINES)]
