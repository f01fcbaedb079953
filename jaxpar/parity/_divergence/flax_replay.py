"""Replaying Flax: every layer is given the reference's inputs, in one compiled run of the whole model.

What a layer was about to be given is noted, and then replaced; what it returns is noted, and then
replaced by what the reference's layer returned. So an error stays where it is made: a layer's result
depends on the layer alone, and what arrives at a layer only on the code between the layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._sides.flax_attention import softmax_in_float64
from .._sides.flax_side import FlaxSide, named_leaves
from .._sides.task import Batch, Named
from .torch_trace import LayerCall

Key = tuple[str, int]
"""Flax path, and the how-manyth call."""


@dataclasses.dataclass(frozen=True)
class Replay:
    """What was seen.

    Attributes:
      incoming: the first array that each call was about to be given, in the reference's layout of it.
      expected: the array that the reference's call was given, in the same layout.
      outgoing, wanted: the same of the first array returned, from the reference's inputs.
      outputs: of the model.
      state: after the call.
      loss: with the reference's outputs in the place of Flax's.
      missing: calls that Flax did not make, or whose arrays do not fit.
    """

    incoming: dict[Key, np.ndarray]
    expected: dict[Key, np.ndarray]
    outgoing: dict[Key, np.ndarray]
    wanted: dict[Key, np.ndarray]
    outputs: Named
    state: Named
    missing: dict[Key, str]


def replay(
    side: FlaxSide, batch: Batch, masks: tuple[np.ndarray, ...], calls: Mapping[Key, tuple[LayerCall, bool]]
) -> Replay:
    """Runs the model forward once.

    Args:
      calls: for each call of a Flax layer the reference's, and whether its channels are last in Flax.
    """
    references = {f"{path}#{nth}": (call.inputs, call.outputs) for (path, nth), (call, _) in calls.items()}
    missing: dict[Key, str] = dict.fromkeys(calls, "not called in Flax")
    inputs = tuple(side.array(side.task.layout.inputs(x)) for x in batch.inputs)

    def run(parameters: Any, rest: Any, inputs: tuple, masks: tuple, references: Any) -> Any:
        seen: dict[str, dict[str, Any]] = {"incoming": {}, "expected": {}, "outgoing": {}, "wanted": {}}
        counts: dict[str, int] = {}

        def forced(path: str, layer: Any, call: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
            if not any(path == known for known, _ in calls):
                return call(*args, **kwargs)
            nth = counts[path] = counts.get(path, -1) + 1
            key = f"{path}#{nth}"
            if key not in references:
                return call(*args, **kwargs)
            given, returned = references[key]
            channels_last = calls[path, nth][1]
            forced_args = _replaced(args, given, channels_last)
            if forced_args is None:
                missing[path, nth] = _misfit("is given", args, given)
                return call(*args, **kwargs)
            missing.pop((path, nth), None)
            seen["incoming"][key], seen["expected"][key] = args[0], forced_args[0]
            outputs = call(*forced_args, **kwargs)
            leaves, structure = jax.tree.flatten(outputs)
            replaced = _replaced(tuple(leaves), returned, channels_last)
            if replaced is None:
                missing[path, nth] = _misfit("returns", leaves, returned)
                return outputs
            seen["outgoing"][key], seen["wanted"][key] = leaves[0], replaced[0]
            return jax.tree.unflatten(structure, replaced)

        outputs, after = side.net.apply(parameters, rest, inputs, masks, forced)
        return seen, named_leaves(outputs), side.net.named_rest(after)

    run = jax.jit(softmax_in_float64(run))
    seen, outputs, state = run(side.parameters, side.rest, inputs, masks, references)
    arrays = {
        part: {
            (key.rpartition("#")[0], int(key.rpartition("#")[2])): np.asarray(x) for key, x in found.items()
        }
        for part, found in seen.items()
    }
    return Replay(
        **arrays,
        outputs={name: np.asarray(x) for name, x in outputs.items()},
        state={name: np.asarray(x) for name, x in state.items()},
        missing=missing,
    )


def _replaced(ours: tuple, theirs: list[Any], channels_last: bool) -> tuple | None:
    """Our arrays with theirs in their places; None if the first does not fit."""
    placed = list(ours)
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if not hasattr(mine, "shape"):
            continue
        fitting = fit(other, mine.shape, channels_last)
        if fitting is None:
            if i == 0:
                return None
            continue
        placed[i] = jnp.asarray(fitting, mine.dtype)
    return tuple(placed) if theirs and ours and hasattr(ours[0], "shape") else None


def fit(array: Any, shape: tuple[int, ...], channels_last: bool) -> Any | None:
    """The array in the layout of a shape: as it is, channels at the end, or time and batch swapped."""
    if channels_last and array.ndim > 2:
        array = jnp.moveaxis(array, 1, -1)
        return array if array.shape == shape else None
    if array.shape == shape:
        return array
    if array.ndim > 2 and jnp.swapaxes(array, 0, 1).shape == shape:
        return jnp.swapaxes(array, 0, 1)
    return None


def _misfit(what: str, ours: Any, theirs: list[Any]) -> str:
    shapes = [tuple(getattr(x, "shape", ())) for x in ours]
    return f"{what} {shapes} in Flax, {[tuple(x.shape) for x in theirs]} in torch"
