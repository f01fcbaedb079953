"""Replay Flax's layers on the reference's inputs, in one compiled run of the whole model.

A layer's inputs and outputs are recorded and then replaced by the reference's. So errors do not propagate:
the outputs depend on the layer alone, and the recorded inputs only on the code between the layers.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._typing import PyTree, Shape
from ..._upstream import get_opaque_trace_state
from .._comparison_data import Cause, LayerResult
from .._sides.candidate import Candidate
from .._sides.flax_side import FlaxSide
from .._sides.step_data import Batch, Named, Observation
from .._weights import Link
from .._weights.pytree_model import is_of_torch
from .._weights.tree import FlaxModule
from .array_changes import EQUAL, relative_error
from .over_rows import over_rows
from .wording import norm_position

if TYPE_CHECKING:
    from .torch_trace import LayerCall

Array = np.ndarray | jax.Array
Key = tuple[str, int]  # a call of a Flax layer: its path, and the number of earlier calls
Both = tuple[np.ndarray, np.ndarray]  # Flax's array, and the reference's in the same layout
STATE = "its state differs"


@dataclasses.dataclass(frozen=True)
class Replay:
    # Original inputs by position: the first array, and later ones if floating. A single row of integers may
    # represent a batch of equal rows.
    inputs: dict[Key, dict[int, Both]]
    results: dict[Key, Both]  # each call's first output, computed from the reference's inputs
    outputs: Named
    state: Named  # after the call
    misfits: dict[Key, np.ndarray]  # the first output of calls whose shapes differ from the reference's
    unreplayed: dict[Key, str]  # why: Flax did not make the call, or its shapes do not fit


class ReplayedPass(abc.ABC):
    """A pass of torch, run or recorded, and its replay in Flax; a call is torch's call of a layer."""

    links: dict[str, Link]  # by torch path: the outermost layers with a rule in the rulebook
    candidate: Candidate
    observed: Observation
    replay: Replay
    channels_last: frozenset[Key]  # user-defined layers that torch calls with channels first

    @abc.abstractmethod
    def kind(self, call: Any) -> str: ...

    @abc.abstractmethod
    def may_be_turned(self, call: Any) -> bool:
        """Whether the layer is user-defined, and Flax's model has other axes than torch's."""

    def flax(self, call: Any) -> str:
        return self.links[call.path].flax

    def key(self, call: Any) -> Key:
        return self.flax(call), call.nth

    def has_channels_last(self, call: Any) -> bool:
        rule = self.links[call.path].rule
        return bool(rule and rule.channels == "last") or self.key(call) in self.channels_last

    def in_flax_layout(self, call: Any, array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, 1, -1) if self.has_channels_last(call) and array.ndim > 2 else array

    def arriving(self, call: Any) -> dict[int, Both]:
        """The layer's original inputs in Flax, and torch's, by position."""
        return self.replay.inputs.get(self.key(call), {})

    def states(self, call: Any) -> Named:
        """Flax's state of the layer after the pass."""
        prefix = f"{self.flax(call)}." if self.flax(call) else ""
        names = (name for name in self.observed.state if name.startswith(prefix))
        return {name: self.replay.state[name] for name in names if name in self.replay.state}

    def state_error(self, name: str) -> float:
        return relative_error(self.replay.state[name], self.observed.state[name])

    def turned(self, calls: Iterable[Any]) -> set[Key]:
        """Return user-defined layers that have their channels last in Flax and first in torch."""
        unknown = [
            call
            for call in calls
            if (self.may_be_turned(call) or self._is_rewritten(call)) and not self.has_channels_last(call)
        ]
        arriving = [(call, self.arriving(call).get(0)) for call in unknown]
        return {self.key(call) for call, both in arriving if both and is_turned(both[0], call.inputs[0])}

    def _is_rewritten(self, call: Any) -> bool:
        """Whether two torch models have layers of different classes there, as a Linear for a Conv2d."""
        rule = self.links[call.path].rule
        in_torch = not isinstance(self.candidate, FlaxSide)
        return in_torch and rule is not None and self.kind(call) not in rule.kinds

    def result(self, call: Any) -> LayerResult:
        key, names = self.key(call), (call.path, self.flax(call), self.kind(call))
        if key not in self.replay.results:
            # An unknown result must not count as equal.
            why = self.replay.unreplayed.get(key, "")
            return LayerResult(*names, math.inf, False, f"not replayed: {why}")
        relative = relative_error(*self.replay.results[key])
        state = max(map(self.state_error, self.states(call)), default=0.0)
        if relative <= EQUAL < state:
            return LayerResult(*names, state, False, STATE)
        return LayerResult(*names, relative, relative <= EQUAL, f"call {call.nth + 1}" if call.nth else "")

    def unreplayed_before(self, calls: Sequence[Any], call: Any) -> str:
        unknown: list[str] = []
        for earlier in reversed(calls[: calls.index(call)]):
            note = self.replay.unreplayed.get(self.key(earlier))
            if note is None:
                break
            unknown.insert(0, f" {self.flax(earlier)} is on the way and was not replayed: {note}.")
        return "".join(unknown)

    def norm_position(self, calls: Iterable[Any], call: Any, flax_array: np.ndarray) -> list[Cause]:
        """Recognize pre-norm in place of post-norm, or the reverse, from the layer's input in Flax."""
        for other in calls if call is not None else ():
            if ("Norm" in self.kind(call)) == ("Norm" in self.kind(other)):
                continue
            for arrays, verb in ((other.outputs, "returns"), (other.inputs, "is given")):
                for x in arrays[:1]:
                    relative = relative_error(flax_array, self.in_flax_layout(other, x))
                    if relative <= EQUAL:
                        return [Cause(norm_position(self.flax(call), self.flax(other), verb), relative)]
        return []


def innermost(links: Mapping[str, Link], calls: Iterable[Any]) -> dict[str, Link]:
    """Leave out layers without a row in the rulebook that torch does not call, or that have others inside."""
    called = {call.path for call in calls}
    layers = {path: link for path, link in links.items() if link.rule or path in called}

    def is_within(one: str, other: str) -> bool:
        return one != other and (not other or one.startswith(f"{other}."))

    return {
        path: link
        for path, link in layers.items()
        if link.rule
        or not any(is_within(inner, path) or is_within(x.flax, link.flax) for inner, x in layers.items())
    }


def replay(
    side: Candidate, batch: Batch, masks: tuple[np.ndarray, ...], calls: Mapping[Key, tuple[LayerCall, bool]]
) -> Replay:
    """Run the model forward once; `calls` has the reference's calls, and whether Flax has channels last."""
    references = {key: (call.inputs, call.outputs) for key, (call, _) in calls.items()}
    channels_last = {key: last for key, (_, last) in calls.items()}
    unreplayed = dict.fromkeys(calls, "not called in Flax")

    def forcing(arrays: PyTree) -> _Forcing:
        return _Forcing(arrays, channels_last, unreplayed)

    (inputs, returned, misfits), outputs, state = side.intercepted(batch, masks, references, forcing)
    return Replay(inputs, returned, outputs, state, misfits, unreplayed)


class _Forcing:
    """A call handler that records each layer's arrays and replaces them by the reference's."""

    def __init__(self, references: Mapping, channels_last: Mapping[Key, bool], unreplayed: dict[Key, str]):
        self.references, self.channels_last, self.unreplayed = references, channels_last, unreplayed
        self.trace = get_opaque_trace_state(convention="nnx")
        self.counts: dict[str, int] = {}
        self.inputs: dict[Key, dict[int, tuple]] = {}
        self.results: dict[Key, tuple] = {}
        self.misfits: dict[Key, jax.Array] = {}

    @property
    def records(self) -> tuple:
        return self.inputs, self.results, self.misfits

    def __call__(
        self, path: str, layer: FlaxModule, call: Callable[..., PyTree], args: tuple, kwargs: dict
    ) -> PyTree:
        nth = self.counts[path] = self.counts.get(path, -1) + 1
        key = path, nth
        if key not in self.references:
            return call(*args, **kwargs)
        self.unreplayed[key] = "called inside of scan, remat or another transformation"
        names = by_keyword(layer, kwargs)
        arrays = (*args, *(kwargs[name] for name in names))
        forced = self._over_rows(partial(self._force_inputs, key), arrays)
        if forced is None:
            return call(*args, **kwargs)
        named = dict(zip(names, forced[len(args) :], strict=True))
        outputs = call(*forced[: len(args)], **{**kwargs, **named})
        leaves, structure = jax.tree.flatten(outputs)
        replaced = self._over_rows(partial(self._replace_outputs, key, _is_whole(arrays[0])), leaves)
        return outputs if replaced is None else jax.tree.unflatten(structure, replaced)

    def _over_rows(
        self, function: Callable[[list[Any]], list[Any] | None], leaves: Sequence[Any]
    ) -> list[Any] | None:
        """Call a function with leaves of which the arrays have all rows, and return leaves as they were."""
        positions = [i for i, x in enumerate(leaves) if _is_array(x)]

        def with_others(arrays: list[Any]) -> list[Any]:
            placed = list(leaves)
            for i, x in zip(positions, arrays, strict=True):
                placed[i] = x
            return placed

        def of_arrays(arrays: list[Any]) -> list[Any] | None:
            results = function(with_others(arrays))
            return None if results is None else [results[i] for i in positions]

        arrays = over_rows(of_arrays, [leaves[i] for i in positions], self.trace)
        return None if arrays is None else with_others(arrays)

    def _force_inputs(self, key: Key, arrays: list[Any]) -> list[Any] | None:
        references, last = self.references[key][0], self.channels_last[key]
        forced = _replaced(arrays, references, last)
        if forced is None:
            self.unreplayed[key] = misfit("is given", arrays, references)
        else:
            self.unreplayed.pop(key, None)
            self.inputs[key] = _pairs(arrays, references, last)
        return forced

    def _replace_outputs(self, key: Key, rows: bool, leaves: list[Any]) -> list[Any] | None:
        references, last = self.references[key][1], self.channels_last[key]
        replaced = _replaced(leaves, references, last, rows)
        if replaced is None:
            self.unreplayed[key] = misfit("returns", leaves, references)
            if leaves and hasattr(leaves[0], "shape"):
                self.misfits[key] = leaves[0]
            return None
        both = together(leaves[0], references[0], last, rows)
        assert both, "what was replaced fits"
        self.results[key] = both
        return replaced


def _is_array(x: Any) -> bool:
    """Whether a leaf has numbers: keys of random streams have none."""
    return hasattr(x, "shape") and not jnp.issubdtype(x.dtype, jax.dtypes.extended)


def by_keyword(layer: FlaxModule, kwargs: Mapping[str, Any]) -> list[str]:
    """Return the names of numeric keyword arguments (not masks), in the signature's order, as torch's."""
    order = inspect.signature(type(layer).forward if is_of_torch(layer) else type(layer).__call__).parameters
    names = [*(name for name in order if name in kwargs), *(name for name in kwargs if name not in order)]
    return [name for name in names if _is_array(kwargs[name]) and kwargs[name].dtype != bool]


def _replaced(
    flax_arrays: Sequence[Any], torch_arrays: Sequence[Any], channels_last: bool, rows: bool = False
) -> list[Any] | None:
    """Replace Flax's arrays by torch's; None if the first one does not fit."""
    placed = list(flax_arrays)  # arguments that torch lacks, such as a flag, stay Flax's
    for i, (flax_array, torch_array) in enumerate(zip(flax_arrays, torch_arrays, strict=False)):
        if hasattr(flax_array, "shape"):
            fitting = fit(torch_array, flax_array.shape, channels_last, rows or _is_whole(flax_array))
            if fitting is not None:
                placed[i] = jnp.asarray(fitting, flax_array.dtype)
            elif i == 0:
                return None
    return placed if torch_arrays and flax_arrays and hasattr(flax_arrays[0], "shape") else None


def _pairs(flax_arrays: Sequence[Any], torch_arrays: Sequence[Any], channels_last: bool) -> dict[int, tuple]:
    """Pair Flax's arrays with torch's by position: the first, and later ones if floating."""
    # Later bools and integers are masks, which mean different things in the two frameworks.
    pairs = {}
    for i, (flax_array, torch_array) in enumerate(zip(flax_arrays, torch_arrays, strict=False)):
        if hasattr(flax_array, "shape") and (i == 0 or jnp.issubdtype(flax_array.dtype, jnp.floating)):
            both = together(flax_array, torch_array, channels_last, rows=i == 0 and _is_whole(flax_array))
            if both is not None:
                pairs[i] = both
    return pairs


def _is_whole(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.integer)


def together(
    flax_array: Array, torch_array: Array, channels_last: bool, rows: bool
) -> tuple[Array, Array] | None:
    """Return both arrays in the same layout, with `rows` a single row as a batch; None if they do not fit."""
    exactly = fit(torch_array, flax_array.shape, channels_last)
    if exactly is not None:
        return flax_array, exactly
    if not rows or fit(torch_array, flax_array.shape, channels_last, rows) is None:
        return None
    flax_array, torch_array = jnp.broadcast_arrays(flax_array, torch_array)
    return flax_array, torch_array


def fit(array: Array, shape: Shape, channels_last: bool, rows: bool = False) -> Array | None:
    """Return torch's array in the layout of Flax's shape; with `rows`, one row may represent a batch."""
    if channels_last and array.ndim > 2:
        array = jnp.moveaxis(array, 1, -1)
        return array if array.shape == shape else None
    if array.shape == shape:
        return array
    # torch's recurrent layers have time first, unless batch_first=True.
    if array.ndim > 2 and jnp.swapaxes(array, 0, 1).shape == shape:
        return jnp.swapaxes(array, 0, 1)
    # A user-defined layer, about whose channels the rulebook has no information.
    if array.ndim > 2 and jnp.issubdtype(array.dtype, jnp.floating):
        last = jnp.moveaxis(array, 1, -1)
        if last.shape == shape:
            return last
    return with_rows(array, shape) if rows else None


def with_rows(array: Array, shape: Shape) -> Array | None:
    """Convert between [S, ...], [1, S, ...] and [B, S, ...]; of several rows, take the first."""
    if array.ndim == len(shape) + 1:
        return array[0] if array.shape[1:] == shape else None
    if array.ndim + 1 == len(shape):
        array = array[None]
    if array.ndim != len(shape) or array.shape[1:] != shape[1:] or 1 not in (len(array), shape[0]):
        return None
    return array[:1] if shape[0] == 1 else jnp.broadcast_to(array, shape)


def unfit(flax_array: np.ndarray, shape: Shape, channels_last: bool) -> np.ndarray | None:
    """Return Flax's array in torch's layout and shape, or None: the inverse of `fit`."""
    if channels_last and flax_array.ndim > 2:
        flax_array = np.moveaxis(flax_array, -1, 1)
    for array in (flax_array, flax_array.swapaxes(0, 1) if flax_array.ndim > 2 else flax_array):
        if array.shape == shape:
            return array
    if flax_array.ndim == len(shape) + 1 and flax_array.shape[1:] == shape:
        return flax_array[0]
    return flax_array[:1] if flax_array.ndim == len(shape) and (1, *flax_array.shape[1:]) == shape else None


def is_turned(flax_array: np.ndarray, torch_array: np.ndarray) -> bool:
    """Whether an array has its channels last in Flax and first in torch, by shapes or else by values."""
    last = np.moveaxis(torch_array, 1, -1) if torch_array.ndim > 2 else torch_array
    if flax_array.shape != last.shape or flax_array.shape != torch_array.shape:
        return flax_array.shape == last.shape and torch_array.ndim > 2
    # Only the values distinguish axes of equal length.
    return relative_error(flax_array, torch_array) > EQUAL and relative_error(flax_array, last) <= EQUAL


def misfit(what: str, flax_arrays: Sequence[Any], torch_arrays: Sequence[Any]) -> str:
    shapes = [tuple(getattr(x, "shape", ())) for x in flax_arrays]
    return f"{what} {shapes} in Flax, {[tuple(x.shape) for x in torch_arrays]} in torch"
