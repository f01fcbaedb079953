"""Run the plain code of a port alone: each layer returns torch's recorded arrays, and no layer is computed.

What reaches a layer then depends on the code between the layers only, so an edit of that code is tried in a
fraction of the time of a comparison. The comparison decides; this run only discards what cannot agree.
"""

from __future__ import annotations

import math
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
UNTRACEABLE = (  # the code looks at numbers
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
LINES, CALL, RETURN = "line", "call", "return"
LOSS = "the loss", -2  # its key among the layers' and outputs'


def is_forward(divergence: Divergence) -> bool:
    return divergence.kind.startswith("between ") or divergence.kind == "after the last layer"


class Arrived(NamedTuple):
    """What reached a layer or an output: Flax's array, torch's, and its position among the arrays."""

    flax: np.ndarray
    torch: np.ndarray
    position: int


class Rejected(Exception):
    """The edited code does not agree: the first place is still wrong, or a right one is not."""


class Reached(Exception):
    """The first place got an array of torch's shape."""


class PlainRun:
    """torch's arrays by Flax's layer calls, and runs of a port's code on them.

    Layers return torch's arrays. Those whose paths are in `computed` are called as well, on torch's inputs.
    """

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
        side = flax_side(pair)
        self.weights = {**side.weights(), **side.state()}
        self.call = side.call(self.batch)
        self.targets = tuple(map(side.array, self.batch.targets))
        self.computed: frozenset[str] = frozenset()
        self.bounds: Wrong | None = None  # in a search, the errors that are let through
        self.only_shapes = False
        self.arrived: dict[tuple[str, int], Arrived] = {}  # what was wrong in the last run

    def fits(self, side: FlaxSide) -> bool:
        """Whether the first place gets torch's shape, by tracing, which compiles nothing."""
        self.only_shapes = True
        try:
            jax.eval_shape(lambda: self.wrong(side) and None)
        except (Reached, *UNTRACEABLE):
            return True
        except Exception:
            return False
        finally:
            self.only_shapes = False
        return True

    def wrong(self, side: FlaxSide, events: list[tuple[str, Any]] | None = None) -> Wrong:
        """Return the errors of what reaches the layers and of the outputs; `events` gets the calls' keys."""
        self.arrived = {}
        stand_ins = _StandIns(self, [] if events is None else events)
        call = side.call(self.batch)
        outputs, _ = side.net.apply(side.parameters, side.extra_state, call, (), stand_ins)
        leaves = side.leaves(outputs)
        for i, (name, x) in enumerate(leaves.items()):
            if name in self.outputs:
                self.arrive((name, -1), x, self.outputs[name], i)
        if self.loss is not None and self.task.loss:
            self._arrive_at_the_loss(side, outputs, leaves, [] if events is None else events)
        return {key: relative_error(*both[:2]) for key, both in self.arrived.items()}

    def _arrive_at_the_loss(
        self, side: FlaxSide, outputs: PyTree, leaves: dict[str, Any], events: list[tuple[str, Any]]
    ) -> None:
        arrays, structure = jax.tree.flatten(outputs)
        if len(arrays) != len(leaves) or not all(name in self.outputs for name in leaves):
            return
        torchs = [jnp.asarray(self.outputs[name], x.dtype) for name, x in zip(leaves, arrays, strict=True)]
        events.append((CALL, LOSS))
        assert side.task.loss
        assert self.loss is not None
        value = side.task.loss[1](jax.tree.unflatten(structure, torchs), *self.targets)
        events.append((RETURN, LOSS))
        self.arrive(LOSS, value, self.loss, 0)

    def arrive(self, key: tuple[str, int], flax_array: Any, torch_array: Any, position: int) -> None:
        """Note a wrong array; in a search, reject the run if the search does not let it through."""
        if self.only_shapes:
            if np.shape(flax_array) != np.shape(torch_array):
                raise Rejected
            if self.bounds and self.bounds.get(key, EQUAL) < math.inf and key in self.bounds:
                raise Reached
            return
        both = np.asarray(flax_array), np.asarray(torch_array)
        error = relative_error(*both)
        bound = EQUAL if self.bounds is None else self.bounds.get(key, EQUAL)
        if key in self.arrived or error <= EQUAL or error <= bound < math.inf:
            return
        self.arrived[key] = Arrived(*both, position)
        if self.bounds is not None and bound < math.inf:
            raise Rejected

    def result(self, path: str) -> tuple[str, int]:
        """Return the key of a layer's result; its path alone is the key of its input."""
        return f"{path}()", 0


def flax_side(pair: TracePair) -> FlaxSide:
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
        if self.run.bounds is not None and recorded.inputs and not arrays:
            raise Rejected  # nothing to compare
        for i, (flax_array, torch_array) in enumerate(zip(arrays, recorded.inputs, strict=False)):
            is_floating = jnp.issubdtype(flax_array.dtype, jnp.floating)
            if i == 0 or is_floating:
                rows = i == 0 and not is_floating
                both = together(flax_array, torch_array, self.run.channels_last[key], rows)
                in_flax, in_torch = both or (flax_array, torch_array)
                self.run.arrive(key, in_flax, in_torch, i)
        if path in self.run.computed and nth == 0 and key in self.run.inputs:
            self._compute(path, call, args, kwargs)
        if key not in self.run.returned:
            return call(*args, **kwargs)
        result = jnp.asarray(self.run.returned[key])
        if len(recorded.outputs) == 1:
            return result
        leaves, structure = jax.tree.flatten(call(*args, **kwargs))
        return jax.tree.unflatten(structure, [result, *leaves[1:]])

    def _compute(self, path: str, call: Callable[..., PyTree], args: tuple, kwargs: dict) -> None:
        """Call a layer on torch's first input, and compare what it returns."""
        run, key = self.run, (path, 0)
        first = jnp.asarray(run.inputs[key][0], args[0].dtype)
        outputs = jax.tree.leaves(call(first, *args[1:], **kwargs))
        result = run.result(path)
        self.events.append((RETURN, result))
        torchs = run.returned.get(key, run.calls[key].outputs[0])
        run.arrive(result, outputs[0], torchs, 0)


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
    """Return the lines that ran before a layer's call or its end, or the model's, the latest first."""
    end = _end(events, key)
    return [*dict.fromkeys(line for kind, line in reversed(events[:end]) if kind == LINES)]


def lines_near(events: list[tuple[str, Any]], key: tuple[str, int]) -> frozenset[int]:
    """Return the lines that ran after the previous layer was called, up to a place."""
    end, call = _end(events, key), (CALL, (key[0].removesuffix("()"), key[1]))
    starts = [i for i, event in enumerate(events[:end]) if event[0] == CALL and event != call]
    # The line that calls the earlier layer may do more.
    start = starts[-1] if starts else 0
    before = [line for kind, line in events[:start] if kind == LINES][-1:]
    return frozenset([*before, *(line for kind, line in events[start:end] if kind == LINES)])


def _end(events: list[tuple[str, Any]], key: tuple[str, int]) -> int:
    ends = [i for i, (kind, at) in enumerate(events) if kind != LINES and at == key]
    return ends[-1] if ends else next((i for i, x in enumerate(events) if x == (CALL, LOSS)), len(events))
