"""Trace torch's layers and functions, and run the model with departures from its own behaviour.

"What if torch's layer_norm had eps=1e-6?" is answered by such a run. Hooks are registered only on the
compared copy, and the mode that intercepts functions is local to this thread.
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
from .._sides.constants import users_line
from .._sides.torch_side import named_leaves, to_numpy
from .._tensors import tensor_of

Function = Callable[..., PyTree]
Change = Callable[[Function, tuple, dict], PyTree]  # change(function, args, kwargs) replaces the call
Nth = tuple[str, int]  # a call of a torch layer: its path, and the number of earlier calls


@dataclasses.dataclass(eq=False)
class Op:
    """One call of a torch function."""

    index: int  # in the run's order of calls
    function: Function
    args: tuple
    kwargs: dict
    result: PyTree = None
    written: frozenset[int] = frozenset()  # the addresses of the storages that it modified in place
    line: str = ""  # the user's, as net.py:12

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", str(self.function))


@dataclasses.dataclass(eq=False)
class LayerCall:
    """One call of a layer. Arrays are in torch's layout; its ops are range(first, last)."""

    path: str
    nth: int  # the number of earlier calls of the layer
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]  # before a departure
    first: int
    last: int = -1
    # Filled only in a run that keeps its ops: the tensors, and (args, kwargs).
    input_tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    output_tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    computed: list[torch.Tensor] = dataclasses.field(default_factory=list)  # the outputs before a departure
    arguments: tuple[tuple, dict] = ((), {})
    # Whether Flax's layer gets the same inputs in the replay. Otherwise its ops count as code between layers.
    replayed: bool = True

    @property
    def key(self) -> Nth:
        return self.path, self.nth


@dataclasses.dataclass
class Trace:
    """One forward pass and loss. The first `model_ops` ops belong to the model, the others to the loss."""

    model_ops: int = 0
    outputs: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    calls: list[LayerCall] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)

    @property
    def inside(self) -> set[int]:
        return {i for call in self.calls if call.replayed for i in range(call.first, call.last)}

    def call(self, key: Nth) -> LayerCall | None:
        return next((call for call in self.calls if call.key == key), None)


@dataclasses.dataclass(frozen=True)
class Departure:
    """The changes of a run of torch relative to its own behaviour."""

    changes: Mapping[int, Change] = dataclasses.field(default_factory=dict)  # by op index
    exchanged: Mapping[str, str] = dataclasses.field(default_factory=dict)  # layers called for one another
    inputs: Mapping[Nth, Mapping[int, np.ndarray]] = dataclasses.field(default_factory=dict)  # by position
    outputs: Mapping[Nth, list[np.ndarray]] = dataclasses.field(default_factory=dict)  # the first ones

    def __or__(self, other: Departure) -> Departure:
        fields, other_fields = (vars(departure) for departure in (self, other))
        return Departure(**{name: {**fields[name], **other_fields[name]} for name in fields})


class Enough(Exception):
    """Raised to end a run once the requested arrays are known."""


class _Ops(TorchFunctionMode):
    """Numbers, records and changes calls of torch functions."""

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
        # A tensor's version counts writes in place, which torch does not report otherwise.
        versions = [(x, x._version) for x in tensors((args, kwargs))] if self.keep else []
        result = change(function, args, kwargs) if change else function(*args, **kwargs)
        if self.keep:
            written = frozenset(storage(x) for x, version in versions if x._version != version)
            self.trace.ops.append(Op(index, function, args, kwargs, result, written, users_line()))
        return result

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count functions that the tracing itself calls."""
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
    """Fill a trace while the module runs; raise Enough once the inputs or outputs in `until` are known."""
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
    """Hooks that record the calls of layers and replace arrays as the departure specifies."""

    def __init__(self, trace: Trace, departure: Departure, until: tuple[Nth, str] | None, ops: _Ops):
        self.trace, self.departure, self.until, self.ops = trace, departure, until, ops
        self.counts: dict[str, int] = {}
        self.open: list[LayerCall] = []

    def enter(self, path: str, layer: torch.nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        # An exchanged layer is recorded under its partner's path, so that calls keep the names of the trace
        # that they are compared with.
        path = self.departure.exchanged.get(path, path)
        nth = self.counts[path] = self.counts.get(path, -1) + 1
        with self.ops.pause():
            # to_numpy copies, because a layer's inputs may be modified in place later.
            input_tensors = _in_order(layer, args, kwargs)
            call = LayerCall(path, nth, [to_numpy(x) for x in input_tensors], [], self.ops.count)
            if self.ops.keep:
                call.input_tensors, call.arguments = input_tensors, (args, kwargs)
            self.open.append(call)
            self.trace.calls.append(call)
            if self.until == ((path, nth), "inputs"):
                raise Enough
            instead = self.departure.inputs.get((path, nth))
            if instead is None:
                return None
            arguments = args, kwargs
            for i, array in instead.items():
                arguments = _given(arguments, input_tensors[i], array)
            return arguments

    def leave(self, path: str, layer: torch.nn.Module, args: tuple, output: PyTree) -> PyTree | None:
        call = self.open.pop()
        with self.ops.pause():
            returned = list(named_leaves(output).values())
            call.outputs, call.last = [to_numpy(x) for x in returned], self.ops.count
            call.output_tensors = call.computed = returned if self.ops.keep else []
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
    return x.untyped_storage().data_ptr()


def _in_order(layer: torch.nn.Module, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """Return a layer's input tensors in the order of its signature, regardless of the order of keywords."""
    order = list(inspect.signature(layer.forward).parameters)
    ordered = sorted(kwargs, key=lambda name: order.index(name) if name in order else len(order))
    return list(named_leaves((args, {name: kwargs[name] for name in ordered})).values())


def _given(call: tuple, old: torch.Tensor, array: np.ndarray) -> tuple:
    """Return the arguments with one tensor replaced by the values of an array."""
    leaves, structure = jax.tree.flatten(call, is_leaf=_is_tensor)
    index = next(i for i, leaf in enumerate(leaves) if leaf is old)
    new = tensor_of(np.array(array, order="C")).to(old.dtype).reshape(old.shape)
    if old.grad_fn is not None:
        try:
            # In place, so that a residual connection around the layer sees the new values too.
            old.detach().copy_(new)
            return call
        except RuntimeError:
            pass  # an expanded tensor, whose elements share memory, cannot be written to
    leaves[index] = new
    return jax.tree.unflatten(structure, leaves)


def _returned(output: PyTree, current_arrays: list[np.ndarray], arrays: list[np.ndarray]) -> PyTree:
    """Return the output with its first tensors replaced by arrays; None if all are equal already."""
    leaves, structure = jax.tree.flatten(output, is_leaf=_is_tensor)
    tensor_indices = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
    different = False
    for i, current, array in zip(tensor_indices, current_arrays, arrays, strict=False):
        if current.shape == array.shape and not np.array_equal(
            current, array, equal_nan=current.dtype.kind == "f"
        ):
            leaves[i], different = tensor_of(np.array(array, order="C")).to(leaves[i].dtype), True
    return jax.tree.unflatten(structure, leaves) if different else None
