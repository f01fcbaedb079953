"""A trace that changes every operation of a function while it is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jax._src import core
from jax.extend.core import Primitive

Before = Callable[[Primitive, Sequence[Any], dict], tuple[Sequence[Any], dict]]


def _passed_on(method: str) -> Any:
    """Return a method that calls the outer trace's, and changes the outputs."""

    def call(self: _Intercepting, *args: Any, **kwargs: Any) -> Any:
        outputs = getattr(self.outer, method)(*args, **kwargs)
        with core.set_current_trace(self.outer):
            return self.after(outputs)

    return call


class _Intercepting(core.Trace):
    """A trace that forwards everything to an outer trace, with changes before and after."""

    def __init__(self, outer: core.Trace, before: Before, after: Callable[[Any], Any]):
        super().__init__()
        self.outer, self.before, self.after = outer, before, after
        self.requires_low = outer.requires_low

    def process_primitive(self, primitive: Primitive, args: Any, params: dict, /) -> Any:
        # Under the outer trace, or the operations of `before` and `after` would be intercepted as well.
        with core.set_current_trace(self.outer):
            args, params = self.before(primitive, args, params)
            return self.after(primitive.bind(*args, **params))

    stage_value = _passed_on("stage_value")
    process_call = _passed_on("process_call")
    process_custom_jvp_call = _passed_on("process_custom_jvp_call")
    process_custom_vjp_call = _passed_on("process_custom_vjp_call")
    process_shard_map = _passed_on("process_shard_map")


@contextmanager
def intercepted(before: Before, after: Callable[[Any], Any]) -> Iterator[None]:
    """Intercept each operation while a function is traced, in this thread only.

    `before` returns new arguments and parameters of an operation, `after` a new result. JAX's own
    transformations are such traces, but JAX offers no public way to make one. Rewriting the finished program
    would be too late, because its constants are rounded by then. The bodies of jit, scan and cond are traced
    separately and are not intercepted.
    """
    with core.set_current_trace(_Intercepting(core.trace_ctx.trace, before, after)):
        yield
