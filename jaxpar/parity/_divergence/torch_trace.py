"""Watching torch: what went into each layer and came out, which functions were called, and a run with one
of these calls changed.

The changed call is how causes are found. "What if torch's layer_norm had eps=1e-6?" is answered by torch
itself, and the answer is held against what Flax computed. Hooks sit on the compared copy alone, and the mode
that sees the functions belongs to this thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ..._typing import PyTree
from .._sides.torch_side import named_leaves, to_numpy

Function = Callable[..., PyTree]
Change = Callable[[Function, tuple, dict], PyTree]
"""What to do instead of function(*args, **kwargs)."""


@dataclasses.dataclass(frozen=True)
class Op:
    """One call of a torch function, by its place in the run."""

    index: int
    function: Function
    args: tuple
    kwargs: dict

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", str(self.function))


@dataclasses.dataclass
class LayerCall:
    """One call of a layer.

    Attributes:
      nth: how many calls of the same layer came before.
      inputs, outputs: its arrays in torch's layout.
      first, last: the ops that it made are range(first, last).
    """

    path: str
    nth: int
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    first: int
    last: int = -1


@dataclasses.dataclass
class Trace:
    """One forward pass and its loss. The first `model_ops` ops belong to the model, the rest to the loss."""

    model_ops: int = 0
    calls: list[LayerCall] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)

    def call(self, path: str, nth: int) -> LayerCall | None:
        return next((call for call in self.calls if (call.path, call.nth) == (path, nth)), None)


class _Ops(TorchFunctionMode):
    """Numbers the calls, keeps them, and changes some of them."""

    def __init__(self, trace: Trace, changes: dict[int, Change], keep: bool):
        super().__init__()
        self.trace, self.changes, self.keep, self.count = trace, changes, keep, 0

    def __torch_function__(
        self, function: Function, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> PyTree:
        kwargs = kwargs or {}
        index, self.count = self.count, self.count + 1
        if self.keep:
            self.trace.ops.append(Op(index, function, args, kwargs))
        change = self.changes.get(index)
        return change(function, args, kwargs) if change else function(*args, **kwargs)


@contextmanager
def watched(
    module: torch.nn.Module,
    paths: Iterable[str],
    trace: Trace,
    changes: dict[int, Change] | None = None,
    keep: bool = False,
) -> Iterator[None]:
    """Fills a trace while the module runs.

    Args:
      paths: of the layers whose arrays are wanted.
      changes: by index of op.
      keep: whether the ops are kept, with references to their tensors.
    """
    ops = _Ops(trace, changes or {}, keep)
    counts: dict[str, int] = {}
    open_calls: list[LayerCall] = []

    def enter(path: str, layer: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        nth = counts[path] = counts.get(path, -1) + 1
        arrays = [to_numpy(x) for x in named_leaves((args, kwargs)).values()]
        # Copies: what a layer is given may be changed in place later.
        open_calls.append(LayerCall(path, nth, arrays, [], ops.count))
        trace.calls.append(open_calls[-1])

    def leave(path: str, layer: torch.nn.Module, args: tuple, output: PyTree) -> None:
        call = open_calls.pop()
        call.outputs, call.last = [to_numpy(x) for x in named_leaves(output).values()], ops.count

    def finish(layer: torch.nn.Module, args: tuple, output: PyTree) -> None:
        trace.model_ops = ops.count

    with ExitStack() as stack:
        for path in paths:
            layer = module.get_submodule(path)
            stack.callback(layer.register_forward_pre_hook(partial(enter, path), with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(partial(leave, path)).remove)
        stack.callback(module.register_forward_hook(finish).remove)
        stack.enter_context(ops)
        yield
