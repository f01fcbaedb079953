"""linen_net: a Linen module with its variables, and a TrainState, as the NNX objects that a step trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import linen, nnx
from flax.core.scope import in_filter, union_filters

from .._parallel.data_parallel import DataParallel
from .._parallel.modules.linen_view import without_absent_axes
from .._statistics.linen_batch_norm import over_replicas
from .._typing import REPLICA, PyTree, Static
from .distributed_data_parallel import DistributedDataParallel
from .state_optimizer import PARAMS, StateOptimizer, TreeFields, is_train_state


class LinenNet(nnx.Module):
    """A Linen module that holds its variables, perhaps one level deeper, as in `DataParallel(module)`."""

    def __init__(self, module: linen.Module, variables: Mapping[str, PyTree]):
        self.linen = Static(module)
        self.deeper = all(list(tree) == ["module"] for tree in _by_collection(variables).values())
        self.mutable = tuple(collection for collection in variables if collection != PARAMS)
        self.fields = TreeFields(self, dict(variables), _kind)

    @property
    def variables(self) -> dict[str, PyTree]:
        return self.fields.read(self)

    def fits(self, variables: Mapping[str, PyTree]) -> bool:
        form: Any = jax.tree.structure(dict(variables))
        return form == self.fields.form.value

    def take(self, variables: Mapping[str, PyTree]) -> None:
        self.fields.write(self, dict(variables))

    def __call__(
        self,
        *args: PyTree,
        rngs: Any = None,
        mutable: Any = False,
        capture_intermediates: Any = False,
        **kwargs: PyTree,
    ) -> PyTree:
        """Apply the module. `rngs` may be an `nnx.Rngs`, whose streams each give their next key.

        With `mutable` or `capture_intermediates` it returns the outputs and the collections that changed, as
        `module.apply` does. Those of the state are kept in any case.
        """
        if isinstance(rngs, nnx.Rngs):
            rngs = {name: stream() for name, stream in rngs.items()}
        variables = _by_collection(self.variables)
        if self.deeper:
            variables = {collection: tree["module"] for collection, tree in variables.items()}
        changing = {"mutable": union_filters(mutable, list(self.mutable))}
        if capture_intermediates:
            changing["capture_intermediates"] = capture_intermediates
        variables = without_absent_axes(variables)
        with over_replicas(REPLICA):
            outputs, updates = self.linen.value.apply(variables, *args, rngs=rngs, **changing, **kwargs)
        updated = {name: tree for name, tree in updates.items() if name in self.mutable}
        if self.deeper:
            updated = {collection: {"module": tree} for collection, tree in updated.items()}
        self.fields.write(self, updated)
        if mutable is False and not capture_intermediates:
            return outputs
        returned = union_filters(mutable, "intermediates") if capture_intermediates else mutable
        return outputs, {name: tree for name, tree in updates.items() if in_filter(returned, name)}


def _by_collection(variables: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Return a module's variables, where a state's `params` may be the dict that `init` returns."""
    # Flax refuses a parameter or submodule of this name, so it is a collection's.
    return {**variables, **(variables[PARAMS] if PARAMS in variables.get(PARAMS, ()) else {})}


def _kind(name: str, leaf: Any) -> type[nnx.Variable]:
    del leaf
    return nnx.Param if name.partition(".")[0] == PARAMS else nnx.BatchStat


def is_linen(net: Any) -> bool:
    return isinstance(net, linen.Module) or (
        isinstance(net, DistributedDataParallel) and isinstance(net.module, linen.Module)
    )


def collections_of(state: Any) -> dict[str, PyTree]:
    """Return the variables in a TrainState: parameters, and collections with a field; other trees stay."""
    if not hasattr(state, PARAMS):
        return state
    # A field with the parameters' own structure is an average of them, not a collection.
    form: Any = jax.tree.structure(state.params)
    collections = {name: x for name, x in vars(state).items() if isinstance(x, Mapping) and name != PARAMS}
    return {PARAMS: state.params} | {
        name: x for name, x in collections.items() if name != "opt_state" and jax.tree.structure(x) != form
    }


def from_linen(net: Any, state: Any) -> tuple[Any, StateOptimizer]:
    """Return the module with its variables, wrapped as before, and its optimizer."""
    if not is_train_state(state):
        raise TypeError(
            f"train_step: a Linen module comes with a flax.training.train_state.TrainState, not "
            f"{type(state).__name__}: TrainState.create(apply_fn=net.apply, params=variables['params'], "
            "tx=tx), with a field for every other collection."
        )
    variables = collections_of(state)
    return wrapped(net, variables), StateOptimizer(state, tuple(variables))


def wrapped(net: Any, variables: Mapping[str, PyTree]) -> Any:
    """Return a Linen module as an NNX module that holds the variables, wrapped the same way."""
    if isinstance(net, DistributedDataParallel):
        return net.holding(LinenNet(net.module, variables))  # type: ignore[attr-defined]
    if isinstance(net, DataParallel):
        return DataParallel(LinenNet(net.module, variables), net.placement, backend=net.backend)  # type: ignore[attr-defined]
    return LinenNet(net, variables)
