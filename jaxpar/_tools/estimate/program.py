"""A step's arguments without values, and a compiled program's results, memory and text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ..._devices.topology import compiler_options
from ..._parallel.replicated import leaf_marks
from ..._typing import PyTree
from ...errors import BackendError


class Program:
    """A traced function, compiled for its devices: text, results with shardings, and bytes per device."""

    def __init__(self, traced: jax.stages.Traced, function: str, devices: Sequence[jax.Device]) -> None:
        lowered = traced.lower()
        compiled = lowered.compile(compiler_options=dict(compiler_options(devices)))
        analysis: Any = compiled.memory_analysis()
        if analysis is None:
            raise BackendError(
                f"{function}: the compiler of backend {jax.default_backend()!r} does not analyse memory; "
                "use another backend (JAX_PLATFORMS=cpu)."
            )
        self.text = compiled.as_text() or ""
        self.results = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            lowered.out_info,
            compiled.output_shardings,
        )
        self.arguments = int(analysis.argument_size_in_bytes)
        self.temporary = int(analysis.temp_size_in_bytes)
        # Donated arguments share memory with results, and would be counted twice.
        returned = int(analysis.output_size_in_bytes - analysis.alias_size_in_bytes)
        self.everything = self.arguments + returned + self.temporary


def with_rows(batch: PyTree, rows: int) -> PyTree:
    """Return the batch's shapes with so many rows; what `replicated` marks has none."""
    leaves, form = jax.tree.flatten(batch)
    shapes = [
        x if mark else jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)
        for x, mark in zip(leaves, leaf_marks(batch), strict=True)
    ]
    return jax.tree.unflatten(form, shapes)


def size(tree: PyTree) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def state_sizes(net: nnx.Module, optimizer: nnx.Optimizer) -> dict[str, int]:
    _, parameters, buffers = nnx.split(net, nnx.Param, ..., graph=True)
    parts = {"parameters": parameters, "buffers": buffers, "optimizer": optimizer.opt_state}
    return {name: size(tree) for name, tree in parts.items()}


def bytes_on(tree: PyTree, device: jax.Device) -> int:
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if device in x.sharding.device_set
    )


def is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def as_shapes(net: nnx.Module) -> nnx.Module:
    """Return the module without values, so that none of the user's arrays move."""
    definition, state = nnx.split(net, graph=True)
    # Through eval_shape, because some leaves are keys or numbers that have no shape attribute.
    return nnx.merge(definition, jax.eval_shape(lambda state: state, state))


def transformation(optimizer: Any, function: str) -> optax.GradientTransformation:
    """Return the optax transformation of an optimizer; for None, one without state."""
    if optimizer is None:
        return optax.identity()
    if isinstance(optimizer, nnx.Optimizer):
        return optimizer.tx
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(
            f"{function}: optimizer must be an optax transformation (optax.adam(1e-3)) or an nnx.Optimizer, "
            f"not a {type(optimizer).__name__}."
        )
    return optimizer


def optimizer_of(net: nnx.Module, tx: optax.GradientTransformation) -> nnx.Optimizer:
    return nnx.eval_shape(lambda net: nnx.Optimizer(net, tx, wrt=nnx.Param), net, graph=True)


def scalar(loss_fn: Callable[..., Any], function: str) -> Callable[..., jax.Array]:
    """Return `loss_fn` with a check that raises TypeError if the result is not a scalar."""

    def checked(*args: Any) -> jax.Array:
        loss = loss_fn(*args)
        if jnp.shape(loss) != ():
            raise TypeError(
                f"{function}: loss_fn must return a scalar and returned shape {jnp.shape(loss)}; "
                "take its mean or its sum."
            )
        return jnp.asarray(loss)

    return checked
