"""start: find the line of the program that started JAX, for errors about starting too early.

JAX starts when something first makes an array, possibly a default value: `def __init__(self,
rngs=nnx.Rngs(0))` makes one at import. This wraps the one function that starts the CPU backend, which
`xla_bridge._backend_factories` holds; JAX has no public notification of its start.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
from jax._src import xla_bridge
from jax._src.interpreters import partial_eval

_LIBRARIES = {"chex", "contextlib", "flax", "functools", "importlib", "jax", "jaxlib", "jaxpar", "optax"}
_line: str | None = None


def watch() -> None:
    """Record the line that starts JAX from here on. Does nothing if JAX has started already."""
    registration = xla_bridge._backend_factories.get("cpu")
    if (
        registration is None
        or xla_bridge.backends_are_initialized()
        or isinstance(registration.factory, _Watched)
    ):
        return
    xla_bridge._backend_factories["cpu"] = dataclasses.replace(
        registration, factory=_Watched(registration.factory)
    )


class _Watched:
    """The factory of the CPU backend, which first records the calling line."""

    def __init__(self, factory: Any):
        self._factory = factory
        functools.update_wrapper(self, factory)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        global _line
        _line = innermost(sys._getframe(1))
        return self._factory(*args, **kwargs)


def around_start(decorate: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Decorate the function that starts a backend, which JAX does not report; return how to undo it."""
    start_backend = xla_bridge._init_backend
    xla_bridge._init_backend = decorate(start_backend)
    return lambda: setattr(xla_bridge, "_init_backend", start_backend)


def traces() -> int:
    """Return how many functions JAX has traced so far. Its reports also count those that its cache held."""
    return partial_eval.trace_to_jaxpr.cache_info().misses


def innermost(frame: types.FrameType | None) -> str | None:
    """Return `file.py:12`, the innermost line outside of JAX, Flax, optax and jaxpar, or None."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module not in _LIBRARIES and not frame.f_code.co_filename.startswith("<frozen"):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def started_by() -> str:
    if _line is not None:
        return f"JAX was started at {_line}"
    location = _default()
    if location is not None:
        return f"JAX was started before jaxpar was in use, most likely by the default value at {location}"
    return "What started JAX is unknown: it was before jaxpar was in use"


def _default() -> str | None:
    for f in gc.get_objects():
        # Not isinstance, which reads __class__: one of torch's objects warns when that is read.
        if type(f) is not types.FunctionType or (f.__module__ or "").partition(".")[0] in _LIBRARIES:
            continue
        defaults = [*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
        if any(isinstance(x, jax.Array) for x in jax.tree.leaves(defaults)):  # an nnx.Rngs is a tree of two
            return f"{f.__code__.co_filename}:{f.__code__.co_firstlineno}"
    return None
