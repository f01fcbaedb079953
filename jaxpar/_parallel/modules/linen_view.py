"""Linen modules that hold their variables: bound by hand, or a submodule while its parent runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen, nnx, traverse_util

from ..._devices.context import returned
from ..._statistics.linen_batch_norm import over_replicas
from ..._tree import check_alive, is_staged, same
from ..._typing import REPLICA, PyTree, Static
from ..._upstream import linen_capture_filter
from ...errors import UninitializedError
from ..placement import Placement
from ..spread import spread, staged
from .definition import Definition, fold
from .records import Records, joined, records_of

Changed = dict[tuple[str, ...], PyTree]
"""Variables by collection and path."""


@dataclasses.dataclass(frozen=True)
class LinenDefinition(Definition):
    module: Static
    mutable: Static
    capture: Static  # the filter of `capture_intermediates`, or False

    def apply(
        self, function: Callable[..., Any], values: dict, replica: jax.Array | None, args: tuple, kwargs: dict
    ) -> tuple[PyTree, Changed]:
        variables, rngs = values["variables"], values["rngs"]
        # Each replica's stream is its own, as torch's generators on several devices are once they have run.
        if replica is not None:
            rngs = {name: rng.replace(rng=fold(rng.rng, replica)) for name, rng in rngs.items()}
        run = linen.apply(
            lambda module: function(module, *args, **kwargs),
            self.module.value,
            mutable=self.mutable.value or [],
            capture_intermediates=self.capture.value,
        )
        with over_replicas(REPLICA):
            outputs, updates = run(without_absent_axes(variables), rngs=rngs)
        # By identity: a collection that is mutable and untouched costs no all-reduce.
        before = traverse_util.flatten_dict(dict(variables))
        after = traverse_util.flatten_dict(dict(updates))
        return outputs, {path: x for path, x in after.items() if not same(x, before.get(path))}

    def recorded(
        self, values: dict, replica: jax.Array | None, args: tuple, kwargs: dict
    ) -> tuple[PyTree, Changed, Records]:
        outputs, changes = self(values, replica, args, kwargs)
        sown = {path: changes.pop(path) for path, x in list(changes.items()) if _is_sown(path, x)}
        return outputs, changes, records_of(sown)


def _is_sown(path: tuple[str, ...], value: PyTree) -> bool:
    """Whether `sow` has made a variable; by default it collects tuples."""
    return path[0] == "intermediates" or isinstance(value, tuple)


class LinenView:
    def __init__(self, module: linen.Module):
        if module.scope is None:
            raise UninitializedError(
                f"{type(module).__name__} has no variables. Bind them, module.bind(variables), or wrap it, "
                "jaxpar.DataParallel(module), and use .init and .apply."
            )
        self.scope = module.scope
        inner, variables = module.unbind()
        flat = traverse_util.flatten_dict(dict(variables), keep_empty_nodes=True)
        self._sown = {
            path: x
            for path, x in flat.items()
            if self.scope.is_mutable_collection(path[0]) and _is_sown(path, x)
        }
        if self._sown:  # from an earlier call: this one adds to them
            variables = traverse_util.unflatten_dict({p: x for p, x in flat.items() if p not in self._sown})
        self._values = {
            "variables": variables,
            "rngs": {name: self._next_rng(name) for name in self.scope.rngs},
        }
        capture = Static(linen_capture_filter())
        self.definition = LinenDefinition(Static(inner), Static(self.scope.mutable), capture)

    def _next_rng(self, name: str) -> Any:
        calls, stream = self.scope.rng_counters[name], self.scope.rngs[name]
        return stream.create(stream, calls) if calls else stream

    def values(self, placement: Placement, function: str = "DataParallel") -> dict:
        leaves = jax.tree.leaves_with_path(self._values)
        names = ["".join(jax.tree_util.keystr((k,)) for k in path) for path, _ in leaves]
        arrays = [leaf for _, leaf in leaves]
        check_alive(arrays, names, function)
        if is_staged():
            return staged(self._values, placement)
        placed = spread(arrays, names, placement, function)
        return jax.tree.unflatten(jax.tree.structure(self._values), placed)

    def commit(self, changes: dict[tuple[str, ...], PyTree]) -> None:
        for name in self.scope.rngs:
            self.scope.rng_counters[name] += 1
        self._put(returned(changes))

    def record(self, module: linen.Module, records: Records) -> None:
        """Put what a forward pass recorded into the scope, after what is there."""
        del module
        self._put(dict(records.items()))

    def _put(self, changes: Changed) -> None:
        for (collection, *path), value in changes.items():
            if (at := (collection, *path)) in self._sown:
                value = joined(self._sown[at], value, ".".join(at))
            name, *deeper = path
            if deeper:
                value = _put(self.scope.get_variable(collection, name) or {}, deeper, value)
            self.scope.put_variable(collection, name, value)


def _put(tree: dict, path: list[str], value: PyTree) -> dict:
    name, *deeper = path
    return {**tree, name: _put(tree.get(name, {}), deeper, value) if deeper else value}


# Flax turns the names of `nn.with_partitioning` into a sharding constraint wherever there is a mesh, so a
# name that the replicas' mesh does not have would be an error. There is nothing to partition over it.
PARAMS = "params"


def without_absent_axes(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables with parameters taken out of boxes whose axes this program's mesh lacks."""
    axes = set(jax.sharding.get_abstract_mesh().axis_names)

    def opened(box: Any) -> Any:
        if not isinstance(box, linen.Partitioned) or box.mesh is not None or _axes(box) <= axes:
            return box
        return box.unbox(apply_constraint=False)

    if not axes or PARAMS not in variables:
        return dict(variables)
    is_box = lambda x: isinstance(x, linen.Partitioned)  # noqa: E731
    return {**variables, PARAMS: jax.tree.map(opened, variables[PARAMS], is_leaf=is_box)}


def _axes(box: linen.Partitioned) -> set[str]:
    names: Any = box.names
    if isinstance(box, linen.LogicallyPartitioned):
        names = linen.logical_to_mesh_axes(box.names, box.rules) or ()
    return {
        axis
        for name in names
        for axis in (name if isinstance(name, tuple) else (name,))
        if isinstance(axis, str)
    }


def nested(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The wrapped module is a submodule: torch's state_dict has `module.` in front of every name, too."""
    return {collection: {"module": tree} for collection, tree in variables.items()}


def are_bare(variables: Mapping[str, Any]) -> bool:
    """Whether variables are the wrapped module's own. Raises TypeError: one is the net of a loss function."""
    for name, collection in variables.items():
        if isinstance(collection, nnx.Module):
            raise TypeError(
                f"apply: variables[{name!r}] is the net that a loss function is given, which has its "
                "variables: write net(x) there; the variables are net.variables."
            )
    names = {name for collection in variables.values() for name in collection}
    return bool(names) and "module" not in names
