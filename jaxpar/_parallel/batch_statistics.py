"""A warning for a loop of the user's own, in which a wrapper makes Flax's BatchNorm one for each replica."""

from __future__ import annotations

import contextlib
from typing import Any

from flax import linen, nnx

from .._arguments import warn
from .._tree import is_staged
from .compiling import in_own_program

_warned: set[str] = set()
"""Wrappers that have warned: once in a process is enough, whatever Python's filters are."""


def warn_of_replica_statistics(module: Any, wrapper: str, N: int) -> contextlib.AbstractContextManager[Any]:
    """Return a context for a call; warn once if a BatchNorm there takes its statistics on each replica.

    Only for Flax's own BatchNorm, and only where the call is traced by `jax.jit` or `nnx.jit` of the user:
    under jit with a sharded batch it normalises over all rows. Who calls outside of jit or with
    `jaxpar.train_step`, or has layers of `jaxpar.nn`, writes torch's program, where replicas differ.
    """
    if N == 1 or wrapper in _warned or not is_staged() or in_own_program():
        return contextlib.nullcontext()
    if isinstance(module, nnx.Module):
        if any(_nnx_is_local(layer) for _, layer in nnx.iter_modules(module)):
            _warn(wrapper, N)
        return contextlib.nullcontext()
    if hasattr(module, "_converted_from"):  # by convert_sync_batchnorm, whose layers look like Flax's
        return contextlib.nullcontext()

    def intercept(call: Any, args: tuple, kwargs: dict[str, Any], context: Any) -> Any:
        if _linen_is_local(context.module, args, kwargs):
            _warn(wrapper, N)
        return call(*args, **kwargs)

    return linen.intercept_methods(intercept)


def _nnx_is_local(layer: Any) -> bool:
    return type(layer) is nnx.BatchNorm and layer.axis_name is None and not layer.use_running_average


def _linen_is_local(layer: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    if type(layer) is not linen.BatchNorm:
        return False
    of_call = args[1] if len(args) > 1 else kwargs.get("use_running_average")
    running = layer.use_running_average if of_call is None else of_call
    return layer.axis_name is None and not running


def _warn(wrapper: str, N: int) -> None:
    if wrapper in _warned:
        return
    _warned.add(wrapper)
    warn(
        f"{wrapper}: BatchNorm takes the statistics of each of {N} replicas' own rows, as in torch. Under "
        f"jax.jit with a sharded batch and without {wrapper} they would be those of the whole batch. "
        "Call jaxpar.convert_sync_batchnorm(module) before you wrap it to have these. This warning comes "
        "once."
    )
