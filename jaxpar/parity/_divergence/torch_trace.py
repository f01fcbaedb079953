"""Watching torch: what went into each layer and came out, which functions were called, and runs that depart
from it.

A departure is how causes are found. "What if torch's layer_norm had eps=1e-6?" is answered by torch itself,
and the answer is held against what Flax computed. Hooks sit on the compared copy alone, and the mode that
sees the functions belongs to this thread.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import jax
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ..._typing import PyTree
from .._sides.torch_side import named_leaves, to_numpy
from .._tensors import tensor_of

Function = Callable[..., PyTree]
Change = Callable[[Function, tuple, dict], PyTree]
"""What to do instead of function(*args, **kwargs)."""
Nth = tuple[str, int]
"""A call of a layer: its torch path, and how many calls of it came before."""


@dataclasses.dataclass(eq=False)
class Op:
    """One call of a torch function, by its place in the run.

    Attributes:
      written: the storages, by address, that it wrote to in place.
    """

    index: int
    function: Function
    args: tuple
    kwargs: dict
    result: PyTree = None
    written: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", str(self.function))


@dataclasses.dataclass(eq=False)
class LayerCall:
    """One call of a layer.

    Attributes:
      nth: how many calls of the same layer came before.
      inputs, outputs: its arrays in torch's layout; the outputs are the layer's own.
      first, last: the ops that it made are range(first, last).
      input_tensors, output_tensors: the tensors themselves, in a run that keeps its ops.
      arguments: what it was called with, in such a run.
      replayed: whether Flax's layer is given the same inputs in the replay. What a layer that is not calls
        is code like that between the layers.
    """

    path: str
    nth: int
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    first: int
    last: int = -1
    input_tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    output_tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    arguments: tuple[tuple, dict] = ((), {})
    replayed: bool = True

    @property
    def key(self) -> Nth:
        return self.path, self.nth


@dataclasses.dataclass
class Trace:
    """One forward pass and its loss. The first `model_ops` ops belong to the model, the rest to the loss."""

    model_ops: int = 0
    outputs: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    calls: list[LayerCall] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)

    @property
    def inside(self) -> set[int]:
        """The ops that replayed layers made."""
        return {i for call in self.calls if call.replayed for i in range(call.first, call.last)}

    def call(self, key: Nth) -> LayerCall | None:
        return next((call for call in self.calls if call.key == key), None)


@dataclasses.dataclass(frozen=True)
class Departure:
    """In what a run departs from torch's own.

    Attributes:
      changes: what is done instead of a call, by index of op.
      exchanged: layers by path, each called in the place of the other.
      inputs: what a layer's call is given instead, by the number of its input.
      outputs: what it returns instead, or rather its first arrays.
    """

    changes: Mapping[int, Change] = dataclasses.field(default_factory=dict)
    exchanged: Mapping[str, str] = dataclasses.field(default_factory=dict)
    inputs: Mapping[Nth, tuple[int, np.ndarray]] = dataclasses.field(default_factory=dict)
    outputs: Mapping[Nth, list[np.ndarray]] = dataclasses.field(default_factory=dict)

    def __or__(self, other: Departure) -> Departure:
        fields, other_fields = (vars(departure) for departure in (self, other))
        return Departure(**{name: {**fields[name], **other_fields[name]} for name in fields})


class Enough(Exception):
    """What was asked for has been seen; the rest of the run is not needed."""


class _Ops(TorchFunctionMode):
    """Numbers the calls, keeps them, and changes some of them."""

    def __init__(self, trace: Trace, changes: Mapping[int, Change], keep: bool):
        super().__init__()
        self.trace, self.changes, self.keep, self.count = trace, changes, keep, 0
        self.paused = False

    def __torch_function__(
        self, function: Function, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> PyTree:
        kwargs = kwargs or {}
        if self.paused:
            return function(*args, **kwargs)
        index, self.count = self.count, self.count + 1
        change = self.changes.get(index)
        versions = [(x, x._version) for x in tensors((args, kwargs))] if self.keep else []
        result = change(function, args, kwargs) if change else function(*args, **kwargs)
        if self.keep:
            written = frozenset(storage(x) for x, version in versions if x._version != version)
            self.trace.ops.append(Op(index, function, args, kwargs, result, written))
        return result

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What watching itself calls is none of the model's."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False


@contextmanager
def watched(
    module: torch.nn.Module,
    paths: Iterable[str],
    trace: Trace,
    departure: Departure | None = None,
    until: tuple[Nth, str] | None = None,
    keep: bool = False,
    outputs: Callable[[PyTree], dict[str, torch.Tensor]] = named_leaves,
) -> Iterator[None]:
    """Fills a trace while the module runs.

    Args:
      outputs: names the tensors that the module returns.
      paths: of the layers whose arrays are wanted.
      until: a layer's call and "inputs" or "outputs": Enough is raised when they are known.
      keep: whether the ops are kept, with references to their tensors.
    """
    departure = departure or Departure()
    ops = _Ops(trace, departure.changes, keep)
    layers = _Layers(trace, departure, until, ops)

    def finish(layer: torch.nn.Module, args: tuple, output: PyTree) -> None:
        trace.model_ops = ops.count
        with ops.pause():
            trace.outputs = outputs(output) if keep else {}

    with ExitStack() as stack:
        for path in paths:
            layer = module.get_submodule(path)
            stack.callback(
                layer.register_forward_pre_hook(partial(layers.enter, path), with_kwargs=True).remove
            )
            stack.callback(layer.register_forward_hook(partial(layers.leave, path)).remove)
        stack.callback(module.register_forward_hook(finish).remove)
        stack.enter_context(ops)
        yield


class _Layers:
    """Notes the calls of layers, and gives and returns what the departure says."""

    def __init__(self, trace: Trace, departure: Departure, until: tuple[Nth, str] | None, ops: _Ops):
        self.trace, self.departure, self.until, self.ops = trace, departure, until, ops
        self.counts: dict[str, int] = {}
        self.open: list[LayerCall] = []

    def enter(self, path: str, layer: torch.nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        path = self.departure.exchanged.get(path, path)
        nth = self.counts[path] = self.counts.get(path, -1) + 1
        with self.ops.pause():
            # Copies: what a layer is given may be changed in place later.
            input_tensors = _in_order(layer, args, kwargs)
            call = LayerCall(path, nth, [to_numpy(x) for x in input_tensors], [], self.ops.count)
            if self.ops.keep:
                call.input_tensors, call.arguments = input_tensors, (args, kwargs)
            self.open.append(call)
            self.trace.calls.append(call)
            if self.until == ((path, nth), "inputs"):
                raise Enough
            instead = self.departure.inputs.get((path, nth))
            return None if instead is None else _given((args, kwargs), input_tensors[instead[0]], instead[1])

    def leave(self, path: str, layer: torch.nn.Module, args: tuple, output: PyTree) -> PyTree | None:
        call = self.open.pop()
        with self.ops.pause():
            returned = list(named_leaves(output).values())
            call.outputs, call.last = [to_numpy(x) for x in returned], self.ops.count
            call.output_tensors = returned if self.ops.keep else []
            if self.until == (call.key, "outputs"):
                raise Enough
            arrays = self.departure.outputs.get(call.key)
            instead = None if arrays is None else _returned(output, call.outputs, arrays)
            if instead is not None and self.ops.keep:
                call.output_tensors = list(named_leaves(instead).values())
            return instead


def _is_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor)


def tensors(tree: PyTree) -> list[torch.Tensor]:
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=_is_tensor) if _is_tensor(leaf)]


def storage(x: torch.Tensor) -> int:
    """The address of its elements, which its views share."""
    return x.untyped_storage().data_ptr()


def _in_order(layer: torch.nn.Module, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """The tensors that a layer is given, in the order of its signature: keywords may come in any."""
    order = list(inspect.signature(layer.forward).parameters)
    ordered = sorted(kwargs, key=lambda name: order.index(name) if name in order else len(order))
    return list(named_leaves((args, {name: kwargs[name] for name in ordered})).values())


def _given(call: tuple, old: torch.Tensor, array: np.ndarray) -> tuple:
    """The arguments with another array in the place of one of their tensors."""
    leaves, structure = jax.tree.flatten(call, is_leaf=_is_tensor)
    index = next(i for i, leaf in enumerate(leaves) if leaf is old)
    new = tensor_of(np.array(array, order="C")).to(old.dtype).reshape(old.shape)
    if old.grad_fn is not None:
        try:
            # In place, so that a residual that goes around the layer takes it too.
            old.detach().copy_(new)
            return call
        except RuntimeError:
            pass  # of an expanded tensor, whose elements share their memory
    leaves[index] = new
    return jax.tree.unflatten(structure, leaves)


def _returned(output: PyTree, current_arrays: list[np.ndarray], arrays: list[np.ndarray]) -> PyTree:
    """The output with these arrays in its tensors; None where that changes nothing."""
    leaves, structure = jax.tree.flatten(output, is_leaf=_is_tensor)
    tensor_indices = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
    different = False
    for i, current, array in zip(tensor_indices, current_arrays, arrays, strict=False):
        if current.shape == array.shape and not np.array_equal(
            current, array, equal_nan=current.dtype.kind == "f"
        ):
            leaves[i], different = tensor_of(np.array(array, order="C")).to(leaves[i].dtype), True
    return jax.tree.unflatten(structure, leaves) if different else None
