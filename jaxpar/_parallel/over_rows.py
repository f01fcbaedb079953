"""over_rows: `jax.vmap` around a DataParallel, whose module is called once for each row, as Equinox's are.

vmap maps over the rows of all devices, so these are shared out first, and each device maps over its own. The
axis of `jax.vmap(net, axis_name="batch")` has the rows of all devices, too: a mean over it, such as a
BatchNorm's of Equinox, is one over the whole batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.custom_batching import custom_vmap

from .._devices.context import refuse_own_mesh
from .._tree import has_shape, paths
from .._typing import PyTree, Static
from .._upstream import is_mapped, mapped_axis
from .._upstream.mesh_context import context_mesh
from .placement import Placement
from .replicated import Replicated, unmarked
from .shards import combine, separate
from .whole_axis import RowsAxis

Run = Callable[[Any, tuple, dict[str, Any], Placement], PyTree]


def over_rows(run: Run, module: Any, args: tuple, kwargs: dict[str, Any], placement: Placement) -> PyTree:
    """Return `run(module, args, kwargs, placement)`, under vmap for all rows at once."""
    arrays, statics, form = separate((module, args, kwargs))
    modules = len(separate(module)[0])
    # Mapped modules are several ones, each with a batch of its own: not rows.
    maps_rows = any(map(is_mapped, arrays[modules:])) and not any(map(is_mapped, arrays[:modules]))
    if not maps_rows:
        return run(module, args, kwargs, placement)
    refuse_own_mesh(context_mesh(), arrays[:modules], placement.mesh, "DataParallel")
    axis_name = mapped_axis()

    # Only under vmap, because JAX cannot differentiate it anywhere else.
    @custom_vmap
    def one_row(arrays: list) -> PyTree:
        module, args, kwargs = unmarked(combine(arrays, statics, form))
        return module(*args, **kwargs)

    @one_row.def_vmap
    def all_rows(size: int, flags: list, arrays: list) -> tuple[PyTree, PyTree]:
        (mapped,) = flags
        rows = [x for x, flag in zip(arrays, mapped, strict=True) if flag]
        others = [x for x, flag in zip(arrays, mapped, strict=True) if not flag]
        names = [name for name, flag in zip(_names(module, args, kwargs), mapped, strict=True) if not flag]
        axis = None if axis_name is None else RowsAxis(axis_name, size, placement.N > 1)
        each_row = _EachRow(others, tuple(names), tuple(mapped), statics, Static(form), axis)
        outputs = run(each_row, tuple(rows), {}, dataclasses.replace(placement, dim=0))
        return _together(outputs)

    return one_row(arrays)


def _names(module: Any, args: tuple, kwargs: dict[str, Any]) -> list[str]:
    """Return the arrays' paths, which follow the name `module` in errors."""
    names = paths(module, "") + paths((args, kwargs), " with argument ")
    leaves = jax.tree.leaves((module, args, kwargs))
    return [name for name, leaf in zip(names, leaves, strict=True) if has_shape(leaf)]


class _Name(str):
    """A step of a path that is shown as it is."""

    __slots__ = ()


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Common:
    """The place of an output that all rows share, among the outputs of one row."""


class _RowOutputs(NamedTuple):
    rows: PyTree
    common: list[Any]  # marked as replicated


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class _EachRow:
    """A module with its unmapped arguments, as a callable pytree of the mapped ones."""

    arrays: list[Any]
    names: tuple[str, ...]
    mapped: tuple[bool, ...]
    statics: tuple[Static | None, ...]
    form: Static
    axis: RowsAxis | None

    def tree_flatten_with_keys(self) -> Any:
        aux = self.names, self.mapped, self.statics, self.form, self.axis
        return tuple(zip(map(_Name, self.names), self.arrays, strict=True)), aux

    @classmethod
    def tree_unflatten(cls, aux: Any, arrays: Any) -> _EachRow:
        return cls(list(arrays), *aux)

    def __call__(self, *rows: Any) -> _RowOutputs:
        mapped: list[bool] = []
        form: Any = None

        def one(*arrays: Any) -> PyTree:
            module, args, kwargs = unmarked(combine(arrays, self.statics, self.form.value))
            return module(*args, **kwargs)

        def watched(*row: Any) -> list[Any]:
            nonlocal form
            remaining, others = iter(row), iter(self.arrays)
            arrays = [next(remaining) if flag else next(others) for flag in self.mapped]
            result = one(*arrays) if self.axis is None else self.axis.run(one, arrays)
            outputs, form = jax.tree.flatten(result)
            mapped[:] = map(is_mapped, outputs)
            return outputs

        outputs = jax.vmap(watched, axis_name=self.axis and self.axis.name)(*rows)
        tree = [x if flag else _Common() for x, flag in zip(outputs, mapped, strict=True)]
        # vmap has copied these for every row.
        common = [Replicated(x[0]) for x, flag in zip(outputs, mapped, strict=True) if not flag]
        return _RowOutputs(jax.tree.unflatten(form, tree), common)


def _together(outputs: _RowOutputs) -> tuple[PyTree, PyTree]:
    """Return a call's outputs and whether each has rows."""
    leaves, form = jax.tree.flatten(outputs.rows, is_leaf=lambda x: isinstance(x, _Common))
    has_rows = [not isinstance(x, _Common) for x in leaves]
    common = iter(unmarked(outputs.common))
    arrays = [x if flag else next(common) for x, flag in zip(leaves, has_rows, strict=True)]
    return jax.tree.unflatten(form, arrays), jax.tree.unflatten(form, has_rows)
