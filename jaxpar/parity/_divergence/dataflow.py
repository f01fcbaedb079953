"""Recompute only the torch functions that a departure affects, from the trace of a run.

This rejects most hypotheses at the cost of a few calls; for those that pass, a run of the model decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .._tensors import tensor_of
from .torch_trace import Departure, LayerCall, Op, Trace, storage, tensors


class NotRecomputable(Exception):
    """The result needs a run: a function works in place or draws random numbers, or is outside the trace."""


class Dataflow:
    """The functions between the layers up to op `end`, or inside `layer_call`; the layers are not called."""

    def __init__(self, trace: Trace, end: int, layer_call: LayerCall | None = None):
        self.trace, self.end = trace, end
        skipped = trace.inside
        within = range(layer_call.first, layer_call.last) if layer_call else ()
        self.ops = [
            op for op in trace.ops[:end] if (op.index in within if layer_call else op.index not in skipped)
        ]
        self._reads = [[id(x) for x in tensors((op.args, op.kwargs))] for op in self.ops]
        self._last_written = {address: op.index for op in trace.ops for address in op.written}

    def after(self, departure: Departure, target: torch.Tensor) -> torch.Tensor | None:
        """Return the value of `target` under the departure; None if the departure does not affect it."""
        if departure.inputs:
            raise NotRecomputable
        instead = dict(self._returned(departure))
        # Only ops downstream of a changed tensor are called again; all others keep their recorded results.
        for op, reads in zip(self.ops, self._reads, strict=True):
            change = departure.changes.get(op.index)
            if change is None and not any(tensor_id in instead for tensor_id in reads):
                continue
            if self._is_lost(op):
                raise NotRecomputable
            args, kwargs = with_tensors((op.args, op.kwargs), instead)
            before = torch.random.get_rng_state()
            result = change(op.function, args, kwargs) if change else op.function(*args, **kwargs)
            if not torch.equal(before, torch.random.get_rng_state()):
                raise NotRecomputable  # it would draw different numbers than in the model's order of calls
            old, new = tensors(op.result), tensors(result)
            instead |= {id(x): y for x, y in zip(old, new, strict=False)}
        return instead.get(id(target))

    def _is_lost(self, op: Op) -> bool:
        """Whether the function's arguments have been overwritten, so that it cannot be called again."""
        # The kernel that updates running averages does not increment the tensors' versions.
        counts = any(x is True for x in (*op.args, *op.kwargs.values()))
        if op.written or (op.name in ("batch_norm", "instance_norm") and counts):
            return True
        read = (storage(x) for x in tensors((op.args, op.kwargs)))
        return any(self._last_written.get(address, -1) > op.index for address in read)

    def _returned(self, departure: Departure) -> Iterator[tuple[int, torch.Tensor]]:
        for call in self.trace.calls:
            other = departure.exchanged.get(call.path)
            partner = self.trace.call((other, call.nth)) if other else None
            arrays = partner.outputs if partner else departure.outputs.get(call.key, ())
            for tensor, array in zip(call.output_tensors, arrays, strict=False):
                yield id(tensor), tensor_of(array.copy()).to(tensor.dtype)


def with_tensors(tree: Any, instead: dict[int, torch.Tensor]) -> Any:
    """Return the tree with tensors replaced by id; other leaves and unknown containers are kept."""
    if isinstance(tree, dict):
        return {name: with_tensors(x, instead) for name, x in tree.items()}
    # A namedtuple or torch.Size cannot be rebuilt from a generator, so only plain tuples and lists are
    # entered.
    if isinstance(tree, tuple | list) and type(tree) in (tuple, list):
        return type(tree)(with_tensors(x, instead) for x in tree)
    return instead.get(id(tree), tree) if isinstance(tree, torch.Tensor) else tree


def quick(
    flow: Dataflow, call: LayerCall, index: int, which: str, departure: Departure
) -> Sequence[torch.Tensor]:
    """Return one tensor of a layer's call under the departure, without a run; [] if it is unaffected."""
    path = departure.exchanged.get(call.path, call.path)
    same = flow.trace.call((path, call.nth))
    if same is None:
        return []
    if same.first > flow.end:
        raise NotRecomputable
    target = (same.input_tensors if which == "inputs" else same.output_tensors)[index]
    recomputed = flow.after(departure, target)
    # An exchanged layer gets its partner's inputs, whether or not these have changed.
    return [recomputed] if recomputed is not None else [target] if path != call.path else []
