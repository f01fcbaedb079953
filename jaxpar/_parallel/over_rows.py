"""over_rows: `jax.vmap` around a DataParallel, whose module is called once for each row, as Equinox's are.

vmap maps over the rows of all devices, so these are shared out first, and each device maps over its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.custom_batching import custom_vmap

from .._tree import has_shape, paths
from .._typing import PyTree, Static
from .._upstream import is_mapped
from .placement import Placement
from .replicated import unmarked
from .shards import combine, separate

Run = Callable[[Any, tuple, dict[str, Any], Placement], PyTree]


def over_rows(run: Run, module: Any, args: tuple, kwargs: dict[str, Any], placement: Placement) -> PyTree:
    """Return `run(module, args, kwargs, placement)`, under vmap for all rows at once."""
    arrays, statics, form = separate((module, args, kwargs))
    modules = len(separate(module)[0])
    # Mapped modules are several ones, each with a batch of its own: not rows.
    maps_rows = any(map(is_mapped, arrays[modules:])) and not any(map(is_mapped, arrays[:modules]))
    if not maps_rows:
        return run(module, args, kwargs, placement)

    # Only under vmap, because JAX cannot differentiate it anywhere else.
    @custom_vmap
    def one_row(arrays: list) -> PyTree:
        module, args, kwargs = unmarked(combine(arrays, statics, form))
        return module(*args, **kwargs)

    @one_row.def_vmap
    def all_rows(size: int, flags: list, arrays: list) -> tuple[PyTree, PyTree]:
        del size
        (mapped,) = flags
        rows = [x for x, flag in zip(arrays, mapped, strict=True) if flag]
        others = [x for x, flag in zip(arrays, mapped, strict=True) if not flag]
        names = [name for name, flag in zip(_names(module, args, kwargs), mapped, strict=True) if not flag]
        each_row = _EachRow(others, tuple(names), tuple(mapped), statics, Static(form))
        outputs = run(each_row, tuple(rows), {}, dataclasses.replace(placement, dim=0))
        return outputs, jax.tree.map(lambda _: True, outputs)

    return one_row(arrays)


def _names(module: Any, args: tuple, kwargs: dict[str, Any]) -> list[str]:
    """Return the arrays' paths, which follow the name `module` in errors."""
    names = paths(module, "") + paths((args, kwargs), " with argument ")
    leaves = jax.tree.leaves((module, args, kwargs))
    return [name for name, leaf in zip(names, leaves, strict=True) if has_shape(leaf)]


class _Name(str):
    """A step of a path that is shown as it is."""

    __slots__ = ()


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class _EachRow:
    """A module with its unmapped arguments, as a callable pytree of the mapped ones."""

    arrays: list[Any]
    names: tuple[str, ...]
    mapped: tuple[bool, ...]
    statics: tuple[Static | None, ...]
    form: Static

    def tree_flatten_with_keys(self) -> Any:
        aux = self.names, self.mapped, self.statics, self.form
        return tuple(zip(map(_Name, self.names), self.arrays, strict=True)), aux

    @classmethod
    def tree_unflatten(cls, aux: Any, arrays: Any) -> _EachRow:
        return cls(list(arrays), *aux)

    def __call__(self, *rows: Any) -> PyTree:
        def one(*row: Any) -> PyTree:
            remaining, others = iter(row), iter(self.arrays)
            arrays = [next(remaining) if flag else next(others) for flag in self.mapped]
            module, args, kwargs = unmarked(combine(arrays, self.statics, self.form.value))
            return module(*args, **kwargs)

        return jax.vmap(one)(*rows)
