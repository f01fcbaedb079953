"""FlaxNet: a Flax model as pure functions over named leaves, the same for NNX and Linen.

`parameters` and `rest` are the model's own trees, which optax and jit know; `named_parameters`, `named_rest`
and `filled` translate between them and the flat dicts by path in which models are compared.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx, traverse_util

import jaxpar

from ..._typing import PyTree
from ...errors import MaskError
from .._weights.tree import FlaxModule, Variables
from .flax_calls import Handler, watch
from .flax_dropout import Injection, is_active_dropout
from .task import Task

Arrays = dict[str, jax.Array]
Trees = tuple[PyTree, PyTree]


class FlaxNet(abc.ABC):
    """A copy of a model in one element type.

    Attributes:
      parameters, rest: the leaves that are differentiated, and all others.
      notes: what had to be changed in the copy.
    """

    parameters: PyTree
    rest: PyTree

    def __init__(self, task: Task):
        self.task = task
        self.notes: list[str] = []

    def apply(
        self, parameters: PyTree, rest: PyTree, inputs: tuple, masks: tuple, handler: Handler | None = None
    ) -> Trees:
        """The outputs, and `rest` after the call. Dropout multiplies by `masks`."""
        injection = Injection(masks, handler)
        after = self._call(parameters, rest, inputs, injection)
        injection.finish()
        return after

    def _watching(self, root: FlaxModule, handler: Handler) -> AbstractContextManager:
        # Inside DataParallel nobody can stand between the layers; dropout is refused there.
        return watch(root, handler) if self.task.replicas == 1 else nullcontext()

    @abc.abstractmethod
    def _call(self, parameters: PyTree, rest: PyTree, inputs: tuple, handler: Handler) -> Trees:
        """The outputs, and `rest` after the call."""

    @abc.abstractmethod
    def named_parameters(self, tree: PyTree) -> Arrays:
        """The leaves of a tree like `parameters` (gradients, too) by path."""

    @abc.abstractmethod
    def named_rest(self, tree: PyTree) -> Arrays:
        """The leaves of a tree like `rest` by path, without random streams."""

    @abc.abstractmethod
    def filled(self, parameters: PyTree, rest: PyTree, named: Mapping[str, np.ndarray]) -> Trees:
        """Both trees with the leaves that are in `named` replaced, in the trees' own element types."""


def flax_net(module: FlaxModule, variables: Variables | None, task: Task, dtype: str) -> FlaxNet:
    """From an nnx.Module, or a Linen module and its variables."""
    if isinstance(module, nnx.Module):
        return _NNXNet(module, task, jnp.dtype(dtype))
    if isinstance(module, linen.Module):
        return _LinenNet(module, variables, task, jnp.dtype(dtype))
    raise TypeError(
        f"parity.compare: the Flax side is an nnx.Module or a linen.Module, not {type(module).__name__}."
    )


def cast(tree: PyTree, dtype: np.dtype) -> PyTree:
    """Real floating leaves in `dtype`, all others as they are."""

    def leaf(x: jax.Array) -> jax.Array:
        return x.astype(dtype) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x

    return jax.tree.map(leaf, tree)


class _NNXNet(FlaxNet):
    def __init__(self, module: nnx.Module, task: Task, dtype: np.dtype):
        super().__init__(task)
        module = nnx.clone(module, graph=True)  # the user's own module keeps its mode, types and statistics
        module.train() if task.training else module.eval()
        self._set_dtype(module, dtype)
        nnx.update(module, cast(nnx.state(module, nnx.Not(nnx.RngState), graph=True), dtype))
        self.prefix = 0
        if task.replicas > 1:
            _refuse_dropout(module)
            module, self.prefix = jaxpar.DataParallel(module, range(task.replicas)), 1
        self.definition, self.parameters, self.rest = nnx.split(module, nnx.Param, ..., graph=True)

    def _set_dtype(self, module: nnx.Module, dtype: np.dtype) -> None:
        """Layers that were told to compute in one type would do so whatever their weights are."""
        for path, layer in nnx.iter_modules(module, graph=True):
            fixed = getattr(layer, "dtype", None)
            if fixed is not None and jnp.issubdtype(fixed, jnp.floating) and fixed != dtype:
                layer.dtype = dtype
                self.notes.append(f"{'.'.join(map(str, path))}: dtype={jnp.dtype(fixed)} was set to {dtype}")

    def _call(self, parameters: PyTree, rest: PyTree, inputs: tuple, handler: Handler) -> Trees:
        net: Callable[..., PyTree] = nnx.merge(self.definition, parameters, rest, copy=True)
        with self._watching(net, handler):
            outputs = net(*inputs, **self.task.flax_kwargs)
        after = nnx.to_flat_state(nnx.state(net, nnx.Not(nnx.Param), graph=True))
        known = {path for path, _ in nnx.to_flat_state(rest)}  # what sow added is not the model's state
        return outputs, nnx.from_flat_state([(path, x) for path, x in after if path in known])

    def named_parameters(self, tree: PyTree) -> Arrays:
        return {
            self._name(path): variable[...]
            for path, variable in nnx.to_flat_state(tree)
            if not issubclass(variable.type, nnx.RngState)
        }

    named_rest = named_parameters

    def filled(self, parameters: PyTree, rest: PyTree, named: Mapping[str, np.ndarray]) -> Trees:
        def leaf(path: tuple, variable: nnx.Variable) -> nnx.Variable:
            value = named.get(self._name(path))
            if value is None:
                return variable
            old = variable[...]
            # Where JAX was free to move the old array it stays free: else the next step compiles again.
            where = old.sharding if old.committed else None
            return variable.replace(jax.device_put(value.astype(old.dtype), where))

        def filled(tree: PyTree) -> PyTree:
            return nnx.from_flat_state([(path, leaf(path, x)) for path, x in nnx.to_flat_state(tree)])

        return filled(parameters), filled(rest)

    def _name(self, path: tuple) -> str:
        return ".".join(map(str, path[self.prefix :]))


def _refuse_dropout(module: nnx.Module) -> None:
    """In DataParallel the masks of a replica are its own."""
    for path, layer in nnx.iter_modules(module, graph=True):
        if is_active_dropout(layer, {}):
            raise MaskError(
                f"parity.compare: {'.'.join(map(str, path))} would drop in every replica. Compare replicas "
                "with rate 0 or in evaluation mode, and dropout with replicas=1."
            )


class _LinenNet(FlaxNet):
    def __init__(self, module: linen.Module, variables: Variables | None, task: Task, dtype: np.dtype):
        super().__init__(task)
        if variables is None:
            raise TypeError(
                "parity.compare: a Linen module has no variables of its own; pass variables=..., or "
                "weights='torch'."
            )
        if getattr(module, "dtype", None) not in (None, dtype):
            self.notes.append(f"dtype={jnp.dtype(module.dtype)} of the module was set to {dtype}")
            module = module.clone(dtype=dtype)
        self.module = module
        self.net = jaxpar.DataParallel(module, range(task.replicas)) if task.replicas > 1 else module
        # Boxes of partitioning metadata have no counterpart in torch.
        self.rest: dict[str, PyTree] = cast(linen.meta.unbox(dict(variables)), dtype)
        self.parameters = self.rest.pop("params", {})

    def _call(self, parameters: PyTree, rest: PyTree, inputs: tuple, handler: Handler) -> Trees:
        # In evaluation a collection that the module writes to is a mistake, and Flax says so.
        mutable = list(rest) if self.task.training else []
        variables = {"params": parameters, **rest}
        if self.net is self.module:
            with self._watching(self.module, handler):
                outputs, changed = self.net.apply(
                    variables, *inputs, mutable=mutable, **self.task.flax_kwargs
                )
        else:
            # In the wrapper the module is a submodule, one level deeper.
            nested = {name: {"module": tree} for name, tree in variables.items() if tree}
            outputs, changed = self.net.apply(nested, *inputs, mutable=mutable, **self.task.flax_kwargs)
            changed = {name: tree["module"] for name, tree in changed.items() if "module" in tree}
        return outputs, {**rest, **changed}

    def named_parameters(self, tree: PyTree) -> Arrays:
        return {".".join(path): x for path, x in traverse_util.flatten_dict(tree).items()}

    def named_rest(self, tree: PyTree) -> Arrays:
        # Paths tell leaves apart without the collection.
        return {".".join(path[1:]): x for path, x in traverse_util.flatten_dict(tree).items()}

    def filled(self, parameters: PyTree, rest: PyTree, named: Mapping[str, np.ndarray]) -> Trees:
        def fill(tree: PyTree, skip: int) -> PyTree:
            flat = traverse_util.flatten_dict(tree)
            return traverse_util.unflatten_dict(
                {path: jnp.asarray(named.get(".".join(path[skip:]), x), x.dtype) for path, x in flat.items()}
            )

        return fill(parameters, 0), fill(rest, 1)
