"""A compiled program as numbers: what it returns, where, what it needs meanwhile, and its text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..._devices.topology import compiler_options
from ..._typing import PyTree
from ...errors import BackendError


class Program:
    """What was traced, compiled for its devices.

    Attributes:
      results: what it returns, as shapes with the shardings that the compiler chose.
      arguments: bytes on each device of what it is given.
      temporary: bytes on each device that are neither arguments nor results.
      everything: bytes on each device for arguments, results and temporaries together.
      text: what the compiler made of it, in HLO.
    """

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
        returned = int(analysis.output_size_in_bytes - analysis.alias_size_in_bytes)
        self.everything = self.arguments + returned + self.temporary


def size(tree: PyTree) -> int:
    """Bytes of all arrays of a tree."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def state_sizes(net: nnx.Module, optimizer: nnx.Optimizer) -> dict[str, int]:
    """Bytes of what is there between two steps."""
    _, parameters, buffers = nnx.split(net, nnx.Param, ..., graph=True)
    parts = {"parameters": parameters, "buffers": buffers, "optimizer": optimizer.opt_state}
    return {name: size(tree) for name, tree in parts.items()}


def bytes_on(tree: PyTree, device: jax.Device) -> int:
    """Bytes of the parts of placed arrays that are on a device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if device in x.sharding.device_set
    )


def is_float(x: Any) -> bool:
    """Whether there are gradients with respect to it."""
    return jnp.issubdtype(x.dtype, jnp.inexact)
