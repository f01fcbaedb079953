"""NNX modules: split once, watched for changes, split again only after a change.

`nnx.split` and `nnx.merge` take 40 us for each variable, and a step of a small net a millisecond. A
comparison of the module's attribute dicts shows whether anything has changed.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import errors as flax_errors
from flax import nnx

from ..._devices.context import returned
from ..._tree import check_alive, has_tracers, is_staged, same
from ..._typing import Array, PyTree, Static
from ..._upstream import captured_methods, set_past_trace
from ..placement import Placement
from ..spread import spread, staged
from .definition import Definition, fold
from .function_view import refuse_hidden_module
from .records import (
    CAPTURES,
    NOTHING,
    PERTURBATIONS,
    Records,
    is_sown,
    joined,
    lists_without_captures,
    new_variables,
    nothing_sown,
    perturbations_of,
    put_new,
    records_of,
)


class NNXDefinition(Definition):
    """A module without its arrays: what is compiled. Equal for modules of equal structure."""

    def __init__(
        self, graphdef: nnx.GraphDef, paths: Sequence[tuple], kinds: Sequence[str], captured: tuple = ()
    ):
        self.graphdef, self.paths, self.kinds = Static(graphdef), tuple(paths), tuple(kinds)
        # To a GraphDef 1, 1.0 and True are the same attribute; to a program they are not.
        self.types = tuple(type(getattr(attribute, "value", None)) for _, attribute in graphdef.attributes)
        self._key = self.kinds, self.types, self.paths, self.graphdef, captured
        # Hashing walks through the complete structure, and every step needs the hash.
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, NNXDefinition) and self._hash == other._hash and self._key == other._key
        )

    def cast(self, values: list, dtype: Any) -> list:
        return [
            x.astype(dtype) if kind == "parameter" and jnp.issubdtype(x.dtype, jnp.floating) else x
            for x, kind in zip(values, self.kinds, strict=True)
        ]

    def merge(self, values: Sequence[Any]) -> nnx.Module:
        state = nnx.from_flat_state(zip(self.paths, values, strict=True))
        return nnx.merge(self.graphdef.value, state)

    def read(self, module: nnx.Module) -> list:
        """Return the values of an object that `merge` made, in their order."""
        return [leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf for leaf in _leaves(module)]

    def apply(
        self, function: Callable[..., Any], values: list, replica: jax.Array | None, args: tuple, kwargs: dict
    ) -> tuple[PyTree, dict[int, PyTree]]:
        _, outputs, changes = self._called(function, values, replica, args, kwargs, {})
        return outputs, {i: x for i, x in changes.items() if self.kinds[i] != "sown"}

    def recorded(
        self, values: list, replica: jax.Array | None, args: tuple, kwargs: dict
    ) -> tuple[PyTree, dict[int, PyTree], Records]:
        perturbations = {int(i): x for i, x in kwargs.get(PERTURBATIONS, {}).items()}
        kwargs = {name: x for name, x in kwargs.items() if name != PERTURBATIONS}
        module, outputs, changes = self._called(operator.call, values, replica, args, kwargs, perturbations)
        sown = {i: changes.pop(i) for i in list(changes) if self.kinds[i] == "sown"}
        return outputs, changes, records_of(sown | new_variables(module, set(self.paths)))

    def _called(
        self,
        function: Callable[..., Any],
        values: list,
        replica: jax.Array | None,
        args: tuple,
        kwargs: dict,
        perturbations: dict[int, PyTree],
    ) -> tuple[nnx.Module, PyTree, dict[int, PyTree]]:
        """Return the module after a call, its outputs, and its values that changed, by number."""
        started = [
            fold(value, replica) if kind == "key" and replica is not None else value
            for value, kind in zip(values, self.kinds, strict=True)
        ]
        module = self.merge(started)
        # Variables are found before the call: a forward may rebind attributes, and what it rebinds is lost,
        # as in torch (docs/semantics.md row 37).
        leaves = _leaves(module)
        for i, kind in enumerate(self.kinds):
            if kind == "sown":
                leaves[i].set_raw_value(perturbations.get(i) or nothing_sown(self.paths[i]))
        outputs = function(module, *args, **kwargs)
        return (
            module,
            outputs,
            {
                i: leaves[i].get_raw_value()
                for i, kind in enumerate(self.kinds)
                if (kind in ("buffer", "key") and not same(leaves[i].get_raw_value(), started[i]))
                or (kind == "sown" and leaves[i].get_raw_value())
            },
        )


class NNXView:
    def __init__(self, module: nnx.Module):
        # As a graph, whatever Flax does by default: an array may occur twice, as tied weights do.
        with lists_without_captures(module):
            graphdef, state = nnx.split(module, graph=True)
            flat = list(nnx.to_flat_state(state))
            self.leaves = _leaves(module)
        # Computed once: isinstance of a Variable takes longer than everything else done for a leaf.
        self.are_variables = [isinstance(leaf, nnx.Variable) for leaf in self.leaves]
        self.names = ["module." + ".".join(map(str, path)) for path, _ in flat]
        paths = [path for path, _ in flat]
        kinds = [_kind(path, leaf) for path, leaf in zip(paths, self.leaves, strict=True)]
        captured: tuple = ()
        if any(CAPTURES in path for path in paths):
            classes = {type(node): None for _, node in nnx.iter_modules(module)}
            captured = tuple(method for kind in classes for method in captured_methods(kind))
        self.definition = NNXDefinition(graphdef, paths, kinds, captured)
        # What a forward pass has sown is not sent to the next one.
        self._settable = [isinstance(leaf, nnx.Variable) for leaf in self.leaves]
        self._sown = [i for i, kind in enumerate(kinds) if kind == "sown"]
        for i in self._sown:
            self._settable[i] = False
        self._placed: list[Any] = []  # the values on all devices, as a program takes them
        self._returned: list[Any] = []  # the same in the variables, for use under the caller's mesh
        self._placement: Placement | None = None

    def current_values(self) -> list:
        pairs = zip(self.leaves, self.are_variables, strict=True)
        values = [leaf.get_raw_value() if is_variable else leaf for leaf, is_variable in pairs]
        for i in self._sown:
            values[i] = NOTHING
        return values

    def values(self, placement: Placement, function: str = "DataParallel") -> list:
        values = self.current_values()
        check_alive(values, self.names, function)
        if placement is self._placement and all(map(operator.is_, values, self._returned)):
            return self._placed
        if is_staged():
            return staged(values, placement)
        placed = spread(values, self.names, placement, function)
        if not has_tracers(values):
            self._remember(placed, placement)
        return placed

    def parameters(self, wrt: nnx.filterlib.Filter) -> tuple[int, ...]:
        selects = nnx.filterlib.to_predicate(wrt)
        pairs = enumerate(zip(self.definition.paths, self.leaves, strict=True))
        return tuple(
            i for i, (path, leaf) in pairs if i not in self._sown and selects(path, leaf) and _is_float(leaf)
        )

    def _remember(self, placed: list, placement: Placement) -> None:
        usable = returned(placed)
        try:
            for leaf, settable, value in zip(self.leaves, self._settable, usable, strict=True):
                if settable:
                    leaf.set_raw_value(value)
        except flax_errors.TraceContextError:
            return  # inside a gradient with respect to something else; the next eager call stores them
        self._placed, self._returned, self._placement = placed, usable, placement

    def put(self, values: list) -> list:
        """Set all values at once, outside of any trace; return what the object holds now."""
        usable = list(returned(values))
        for leaf, settable, value in zip(self.leaves, self._settable, usable, strict=True):
            if settable:
                set_past_trace(leaf, value)
        self._placed, self._returned = list(values), usable  # commit writes into them
        # An array that is no Variable cannot be put back, so the object keeps its own.
        triples = zip(self.leaves, self.are_variables, usable, strict=True)
        return [x if is_variable else leaf for leaf, is_variable, x in triples]

    def commit(self, changes: dict[int, PyTree]) -> None:
        """Set values that changed. Like torch's plain attributes, bare arrays are not state and left out."""
        try:
            for (i, value), usable in zip(changes.items(), returned(list(changes.values())), strict=True):
                if not self.are_variables[i]:
                    continue
                self.leaves[i].set_raw_value(usable)
                if self._placed:
                    self._placed[i], self._returned[i] = value, usable
        except flax_errors.TraceContextError as error:
            error.add_note(
                f"jaxpar: {self.names[i]} comes back from replica 0 and the module was made outside of "
                "the function being traced; pass the module to that function as an argument (nnx.jit, "
                "nnx.grad), or call module.eval()."
            )
            raise

    def perturbations(self) -> dict[str, PyTree]:
        return perturbations_of(self.leaves, self.definition.paths) if self._sown else {}

    def record(self, module: nnx.Module, records: Records) -> None:
        """Put what a forward pass recorded into the module, after what is there."""
        for key, value in records.items():
            if not isinstance(key, int):
                path, kind = key
                put_new(module, path, kind, value)
            elif isinstance(leaf := self.leaves[key], nnx.Perturbation):
                leaf.set_raw_value(value)
            else:
                leaf.set_raw_value(joined(leaf.get_raw_value(), value, self.names[key]))


class _Snapshot(NamedTuple):
    content: Any  # a dict, a list or a tuple
    keys: tuple
    values: tuple


_views: weakref.WeakKeyDictionary[nnx.Module, tuple[list[_Snapshot], NNXView]] = weakref.WeakKeyDictionary()


def view_nnx(module: nnx.Module) -> NNXView:
    # Half a microsecond for each variable, instead of the 40 of nnx.split.
    if module in _views:
        snapshots, cached = _views[module]
        if all(map(_unchanged, snapshots)):
            return cached
    snapshots = _snapshots(module)
    view = NNXView(module)
    _views[module] = (snapshots, view)
    return view


def _unchanged(then: _Snapshot) -> bool:
    now, values = then.content, then.content
    if isinstance(now, dict):
        values = now.values()
        if tuple(now) != then.keys:
            return False
    # By identity: 1, 1.0 and True are equal, and make different programs.
    return len(now) == len(then.values) and all(map(operator.is_, values, then.values))


def _snapshots(module: nnx.Module) -> list[_Snapshot]:
    # The dicts, and not the modules: _views must not keep the module alive that is its key.
    snapshots: list[_Snapshot] = []
    visited: set[int] = set()
    todo: list[Any] = [module]
    while todo:
        node = todo.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        content = vars(node) if isinstance(node, nnx.Pytree) else node
        keys = tuple(content) if isinstance(content, dict) else ()
        children = tuple(content.values()) if isinstance(content, dict) else tuple(content)
        snapshots.append(_Snapshot(content, keys, children))
        for child in children:
            refuse_hidden_module(child)
        todo += [c for c in children if isinstance(c, nnx.Pytree) or type(c) in (list, tuple, dict)]
    return snapshots


def _leaves(module: nnx.Module) -> list[Any]:
    return [leaf for _, leaf in nnx.to_flat_state(nnx.state(module, graph=True))]


def _is_float(leaf: nnx.Variable | Array) -> bool:
    value = leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf
    return jnp.issubdtype(value.dtype, jnp.inexact)


def _kind(path: tuple, leaf: nnx.Variable | Array) -> str:
    if not isinstance(leaf, nnx.Variable):
        return "array"
    if is_sown(path, leaf):
        return "sown"
    if isinstance(leaf, nnx.Param):
        return "parameter"
    return "key" if isinstance(leaf, nnx.RngKey) else "buffer"
