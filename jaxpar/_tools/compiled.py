"""A compiled program as numbers: what it returns, where, what it needs meanwhile, what it does.

Nothing runs and no array is made: arguments are shapes, and XLA's own analyses are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from .._typing import PyTree
from ..errors import BackendError


class Program:
    """`f` compiled for arguments that are `jax.ShapeDtypeStruct`s with shardings.

    Attributes:
      results: what it returns, as shapes with the shardings that the compiler chose.
      arguments: bytes on each device of what it is given.
      temporary: bytes on each device that are neither arguments nor results.
      everything: bytes on each device for arguments, results and temporaries together.
      flops, accessed: floating-point operations of each device, and bytes it reads and writes; a
        loop's body counts once. 0 from a compiler that does not tell.
      jaxpr: what was compiled, before the compiler saw it.
      text: what the compiler made of it, in HLO.
    """

    def __init__(
        self, f: Callable[..., Any], *args: PyTree, donate: tuple[int, ...] = (), function: str
    ) -> None:
        traced = jax.jit(f, donate_argnums=donate).trace(*args)
        lowered = traced.lower()
        compiled = lowered.compile()
        told: Any = compiled.memory_analysis()
        if told is None:
            raise BackendError(
                f"{function}: the compiler of backend {jax.default_backend()!r} does not analyse memory; "
                "use another backend (JAX_PLATFORMS=cpu)."
            )
        cost = compiled.cost_analysis() or {}
        self.jaxpr = traced.jaxpr.jaxpr
        self.flops = float(cost.get("flops", 0))
        self.accessed = float(cost.get("bytes accessed", 0))
        self.text = compiled.as_text() or ""
        self.results = jax.tree.map(_with_sharding, lowered.out_info, compiled.output_shardings)
        self.arguments = int(told.argument_size_in_bytes)
        self.temporary = int(told.temp_size_in_bytes)
        self.everything = int(
            told.argument_size_in_bytes
            + told.output_size_in_bytes
            + told.temp_size_in_bytes
            - told.alias_size_in_bytes
        )


def shapes(tree: PyTree) -> PyTree:
    """Arrays as shapes, of the type that JAX would give them."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)
        ),
        tree,
    )


def placed(tree: PyTree, sharding: Sharding) -> PyTree:
    """The same shapes, there."""
    return jax.tree.map(lambda x: _with_sharding(x, sharding), tree)


def size(tree: PyTree) -> int:
    """Bytes of all arrays of a tree."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def held(tree: PyTree, device: jax.Device) -> int:
    """Bytes of the parts of placed arrays that are on a device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if device in x.sharding.device_set
    )


def is_float(x: Any) -> bool:
    """Whether there are gradients with respect to it."""
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _with_sharding(x: Any, sharding: Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
