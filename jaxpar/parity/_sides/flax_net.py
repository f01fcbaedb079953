"""A Flax model as pure functions over named leaves, the same for NNX and Linen.

`parameters` and `rest` are the model's own trees, which optax and jit know; `named` and `fill`
translate between them and flat dicts by path, which the parity kit compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx, traverse_util

import jaxpar

from ...errors import MaskError
from .flax_masks import Injection, is_active_dropout
from .flax_watch import Handler, watch
from .task import Task

Tree = Any


class FlaxNet(Protocol):
    """A model in one element type."""

    parameters: Tree
    rest: Tree
    notes: list[str]

    def apply(
        self, parameters: Tree, rest: Tree, inputs: tuple, masks: tuple, handler: Handler | None = None
    ) -> tuple[Any, Tree]:
        """The outputs, and `rest` after the call. Dropout multiplies by `masks`."""

    def named_parameters(self, tree: Tree) -> dict[str, jax.Array]:
        """The leaves of a tree like `parameters` (gradients, too) by path."""

    def named_rest(self, tree: Tree) -> dict[str, jax.Array]:
        """The leaves of a tree like `rest` by path, without random streams."""

    def filled(self, parameters: Tree, rest: Tree, named: Mapping[str, np.ndarray]) -> tuple[Tree, Tree]:
        """Both trees with the leaves that are in `named` replaced, in the trees' own element types."""


def flax_net(module: Any, variables: Any, task: Task, dtype: str) -> FlaxNet:
    """From an nnx.Module, or a Linen module and its variables."""
    if isinstance(module, nnx.Module):
        return _NNXNet(module, task, jnp.dtype(dtype))
    if isinstance(module, linen.Module):
        return _LinenNet(module, variables, task, jnp.dtype(dtype))
    raise TypeError(
        f"parity.compare: the Flax side is an nnx.Module or a linen.Module, not {type(module).__name__}."
    )


def cast(tree: Tree, dtype: Any) -> Tree:
    """Real floating leaves in `dtype`, all others as they are."""

    def leaf(x: Any) -> Any:
        return x.astype(dtype) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x

    return jax.tree.map(leaf, tree)


def _set_dtype(module: nnx.Module, dtype: Any) -> list[str]:
    """Layers that were told to compute in one type would do so whatever their weights are."""
    notes = []
    for path, layer in nnx.iter_modules(module):
        fixed = getattr(layer, "dtype", None)
        if fixed is not None and jnp.issubdtype(fixed, jnp.floating) and fixed != dtype:
            layer.dtype = dtype
            notes.append(f"{'.'.join(map(str, path))}: dtype={jnp.dtype(fixed)} was set to {dtype}")
    return notes


def _refuse_dropout(module: nnx.Module) -> None:
    """In DataParallel a replica's masks are its own, and nobody can stand between its layers."""
    for path, layer in nnx.iter_modules(module):
        if is_active_dropout(layer, {}):
            raise MaskError(
                f"parity.compare: {'.'.join(map(str, path))} would drop in every replica. Compare replicas "
                "with rate 0 or in evaluation mode, and dropout with replicas=1."
            )


class _NNXNet:
    def __init__(self, module: nnx.Module, task: Task, dtype: Any):
        module = nnx.clone(module)
        module.train() if task.training else module.eval()
        self.notes = _set_dtype(module, dtype)
        nnx.update(module, cast(nnx.state(module, nnx.Not(nnx.RngState)), dtype))
        self.task = task
        self.prefix = 0
        if task.replicas > 1:
            _refuse_dropout(module)
            module, self.prefix = jaxpar.DataParallel(module, range(task.replicas)), 1
        self.definition, self.parameters, self.rest = nnx.split(module, nnx.Param, ...)

    def apply(
        self, parameters: Tree, rest: Tree, inputs: tuple, masks: tuple, handler: Handler | None = None
    ) -> tuple[Any, Tree]:
        net: Any = nnx.merge(self.definition, parameters, rest, copy=True)
        injection = Injection(masks, handler)
        with watch(net, injection) if self.task.replicas == 1 else nullcontext():
            outputs = net(*inputs, **self.task.flax_kwargs)
        injection.finish()
        after = nnx.to_flat_state(nnx.state(net, nnx.Not(nnx.Param)))
        known = {path for path, _ in nnx.to_flat_state(rest)}  # what sow added is not the model's state
        return outputs, nnx.from_flat_state([(path, x) for path, x in after if path in known])

    def named_parameters(self, tree: Tree) -> dict[str, jax.Array]:
        return {
            self._name(path): variable[...]
            for path, variable in nnx.to_flat_state(tree)
            if not issubclass(variable.type, nnx.RngState)
        }

    named_rest = named_parameters

    def filled(self, parameters: Tree, rest: Tree, named: Mapping[str, np.ndarray]) -> tuple[Tree, Tree]:
        def leaf(path: tuple, variable: Any) -> Any:
            value = named.get(self._name(path))
            if value is None:
                return variable
            old = variable[...]
            # Where JAX was free to move the old array it stays free: else the next step compiles again.
            where = old.sharding if old.committed else None
            return variable.replace(jax.device_put(value.astype(old.dtype), where))

        parameters, rest = (
            nnx.from_flat_state([(path, leaf(path, x)) for path, x in nnx.to_flat_state(tree)])
            for tree in (parameters, rest)
        )
        return parameters, rest

    def _name(self, path: tuple) -> str:
        return ".".join(map(str, path[self.prefix :]))


class _LinenNet:
    def __init__(self, module: linen.Module, variables: Any, task: Task, dtype: Any):
        if variables is None:
            raise TypeError(
                "parity.compare: a Linen module has no variables of its own; pass variables=..., or "
                "weights='torch'."
            )
        self.task, self.notes = task, []
        if getattr(module, "dtype", None) not in (None, dtype):
            self.notes.append(f"dtype={jnp.dtype(module.dtype)} of the module was set to {dtype}")
            module = module.clone(dtype=dtype)
        self.module = module
        self.net = jaxpar.DataParallel(module, range(task.replicas)) if task.replicas > 1 else module
        variables = cast(linen.meta.unbox(dict(variables)), dtype)
        self.parameters = variables.pop("params", {})
        self.rest = variables

    def apply(
        self, parameters: Tree, rest: Tree, inputs: tuple, masks: tuple, handler: Handler | None = None
    ) -> tuple[Any, Tree]:
        injection = Injection(masks, handler)
        mutable = list(rest) if self.task.training else []
        with watch(self.module, injection) if self.task.replicas == 1 else nullcontext():
            outputs, changed = self.net.apply(
                {"params": parameters, **rest}, *inputs, mutable=mutable, **self.task.flax_kwargs
            )
        injection.finish()
        return outputs, {**rest, **changed}

    def named_parameters(self, tree: Tree) -> dict[str, jax.Array]:
        return {".".join(path): x for path, x in traverse_util.flatten_dict(tree).items()}

    def named_rest(self, tree: Tree) -> dict[str, jax.Array]:
        # Paths tell leaves apart without the collection.
        return {".".join(path[1:]): x for path, x in traverse_util.flatten_dict(tree).items()}

    def filled(self, parameters: Tree, rest: Tree, named: Mapping[str, np.ndarray]) -> tuple[Tree, Tree]:
        def fill(tree: Tree, skip: int) -> Tree:
            flat = traverse_util.flatten_dict(tree)
            return traverse_util.unflatten_dict(
                {path: jnp.asarray(named.get(".".join(path[skip:]), x), x.dtype) for path, x in flat.items()}
            )

        return fill(parameters, 0), fill(rest, 1)
