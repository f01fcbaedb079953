"""CompiledStep: a function in float64, compiled with as few optimizations as its computations are worth."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp

LONG = 1e9
"""The floating-point operations of a program that is worth optimizations. Without them, compilation takes two
thirds of the time, and convolutions five times as long, in each of a few steps."""
Options = dict[str, Any]
FEW: Options = {"xla_backend_optimization_level": 0}
MORE: Options = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}


class CompiledStep:
    """A function of trees of arrays, compiled once for their shapes and types."""

    def __init__(self, function: Callable[..., Any]):
        self._jitted = jax.jit(function)
        self._compiled: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        key = structure, *((jnp.shape(x), jnp.result_type(x)) for x in leaves)
        if key not in self._compiled:
            lowered = self._jitted.lower(*arguments)
            self._compiled[key] = lowered.compile(compiler_options=_options(lowered))
        return self._compiled[key](*arguments)


def _options(lowered: Any) -> Options | None:
    # Only XLA's compiler for CPUs has been measured; that for TPUs refuses the options.
    if jax.default_backend() != "cpu":
        return None
    return FEW if lowered.cost_analysis().get("flops", 0.0) < LONG else MORE
