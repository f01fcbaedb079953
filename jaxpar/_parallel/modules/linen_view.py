"""Linen modules that hold their variables: bound by hand, or a submodule while its parent runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import linen, traverse_util

from ..._statistics.linen_batch_norm import over_replicas
from ..._tree import check_alive, is_staged, same
from ..._typing import REPLICA, PyTree, Static
from ...errors import UninitializedError
from ..placement import Placement
from ..spread import spread
from .definition import Definition
from .streams import fold


@dataclasses.dataclass(frozen=True)
class LinenDefinition(Definition):
    module: Static
    mutable: Static

    def apply(
        self,
        function: Callable[..., Any],
        values: dict,
        replica: jax.Array | None,
        args: tuple,
        kwargs: dict,
    ) -> tuple[PyTree, dict[tuple[str, ...], PyTree]]:
        variables, rngs = values["variables"], values["rngs"]
        # Each replica's stream is its own, as torch's generators on several devices are once they have run.
        if replica is not None:
            rngs = {name: rng.replace(rng=fold(rng.rng, replica)) for name, rng in rngs.items()}
        with over_replicas(REPLICA):
            outputs, updates = self.module.value.apply(
                variables, *args, rngs=rngs, mutable=self.mutable.value or [], method=function, **kwargs
            )
        # By identity: a collection that is mutable and untouched costs no all-reduce.
        before = traverse_util.flatten_dict(dict(variables))
        after = traverse_util.flatten_dict(dict(updates))
        return outputs, {path: x for path, x in after.items() if not same(x, before.get(path))}


class LinenView:
    def __init__(self, module: linen.Module):
        if module.scope is None:
            raise UninitializedError(
                f"{type(module).__name__} has no variables. Bind them, module.bind(variables), or wrap it, "
                "jaxpar.DataParallel(module), and use .init and .apply."
            )
        self.scope = module.scope
        inner, variables = module.unbind()
        self._values = {
            "variables": variables,
            "rngs": {name: self._next_rng(name) for name in self.scope.rngs},
        }
        self.definition = LinenDefinition(Static(inner), Static(self.scope.mutable))

    def _next_rng(self, name: str) -> Any:
        calls, stream = self.scope.rng_counters[name], self.scope.rngs[name]
        return stream.create(stream, calls) if calls else stream

    def values(self, placement: Placement, function: str = "DataParallel") -> dict:
        leaves = jax.tree.leaves_with_path(self._values)
        names = ["".join(jax.tree_util.keystr((k,)) for k in path) for path, _ in leaves]
        arrays = [leaf for _, leaf in leaves]
        check_alive(arrays, names, function)
        if is_staged():
            return self._values
        placed = spread(arrays, names, placement, function)
        return jax.tree.unflatten(jax.tree.structure(self._values), placed)

    def commit(self, changes: dict[tuple[str, ...], PyTree]) -> None:
        for name in self.scope.rngs:
            self.scope.rng_counters[name] += 1
        for (collection, *path), value in changes.items():
            name, *deeper = path
            if deeper:
                value = _put(self.scope.get_variable(collection, name) or {}, deeper, value)
            self.scope.put_variable(collection, name, value)


def _put(tree: dict, path: list[str], value: PyTree) -> dict:
    name, *deeper = path
    return {**tree, name: _put(tree.get(name, {}), deeper, value) if deeper else value}
