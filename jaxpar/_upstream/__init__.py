"""upstream: every private or experimental name of other libraries that jaxpar touches.

What has to do with compiling for GPUs that are not there is in `gpu_compiler`, with the start of JAX in
`start`, everything else in this file.
Whoever raises a version reads this file, and runs tests/test_upstream.py, which holds that each name is there
and does what is relied on, and that no other file uses a name of this kind. Differences between versions are
handled here.

Each says why it is needed and what would replace it. A few names cannot be wrapped, because another file
subclasses or replaces them; those stand in `ELSEWHERE`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
from jax._src import cloud_tpu_init, clusters, core, xla_bridge
from jax._src.distributed import global_state
from jax.extend.backend import clear_backends
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    get_opaque_trace_state,
    jaxpr_as_fun,
)
from jax.extend.linear_util import WrappedFun, wrap_init
from jax.interpreters import ad, batching, mlir

from . import start

P = TypeVar("P", ClosedJaxpr, Jaxpr)
Before = Callable[[Primitive, Sequence[Any], dict], tuple[Sequence[Any], dict]]

start.watch()  # before anything of the library can start JAX

__all__ = [
    "CALLS",
    "ELSEWHERE",
    "NEXT_CALLS",
    "PROGRAMS",
    "STEPS_COMPETE",
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "Var",
    "ad",
    "address",
    "backends_are_initialized",
    "batching",
    "before_thread_pools_close",
    "bound",
    "called",
    "clear_backends",
    "concrete",
    "coordination_client",
    "detect_cluster",
    "get_opaque_trace_state",
    "has_own_jvp",
    "has_own_vjp",
    "in_cloud_tpu_vm",
    "inside",
    "intercepted",
    "jaxpr_as_fun",
    "kubernetes_job",
    "mlir",
    "opened",
    "part",
    "promote_dtype",
    "reached_preemption_sync_point",
    "rewritten",
    "rule_of_jvp",
    "set_past_trace",
]

ELSEWHERE = {
    "orbax.checkpoint.type_handlers.NumpyHandler._open_and_write": (
        "_checkpointer/writing.py overrides it, to try every leaf before a full disk is an error; "
        "a public handler that reports every failed leaf would do"
    ),
    "torch._C._scatter": "torch_ref replaces it: a CPU build of torch lacks copies to several devices",
    "torch._C._gather": "torch_ref replaces it: a CPU build of torch lacks copies from several devices",
    "torch._C._broadcast_coalesced": "torch_ref replaces it: a CPU build of torch lacks broadcasts",
    "torch.nn.parallel.comm": "torch_ref replaces reduce_add, which refuses CPU tensors",
    "torch.nn.parallel._functions": "torch_ref recompiles four autograd functions, so that CPU tensors pass",
    "torch._utils._get_current_device_index": "torch_ref replaces it: CPU tensors have no device index",
    "torch.nn.parallel.data_parallel._get_available_device_type": (
        "torch_ref replaces it: without a GPU, DataParallel would run the module alone"
    ),
    "torch.nn.parallel.data_parallel._get_all_device_indices": "torch_ref replaces it: torch counts GPUs",
    "torch.nn.parallel.data_parallel._get_devices_properties": "torch_ref replaces it: torch asks GPUs",
    "torch._assert": "parity/_port translates it: models call it, so that torch.fx can trace them",
    "torch.utils._python_dispatch.TorchDispatchMode": (
        "parity computes in float64 below torch's own functions; torch documents the mode and keeps it there"
    ),
    "torch.nn.modules.dropout._DropoutNd": (
        "parity finds torch's dropout layers by their common class; a list of the public ones would do"
    ),
}
"""Names that other files subclass or replace: why, and what would do instead.

torch's can go once torch's DataParallel runs on CPU tensors.
"""

# --------------------------------------------------------------------------------------- JAX's programs
#
# jax.extend.core is what JAX offers to those who read and write jaxprs, without a promise. There is no other
# way to take a collective out of a branch (`_parallel/lift.py`).

PROGRAMS = (ClosedJaxpr, Jaxpr)
"""Up to JAX 0.10 a program with its constants and one without are two classes; since 0.11 they are one."""

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "jaxpr",  # since JAX 0.11
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
}
"""Primitives that run another program once, and the parameter that holds it."""

NEXT_CALLS = ("RematTraced", "CustomJVPTraced")
"""The same among JAX's next transformations, which are objects; see `inside`."""


def opened(program: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, list[Any]]:
    """The program's equations and variables, and its constants."""
    jaxpr: Any = getattr(program, "jaxpr", program)
    return jaxpr, list(getattr(program, "consts", ()))


def called(eqn: JaxprEqn) -> ClosedJaxpr | Jaxpr | None:
    """The program that an equation runs once; None if it runs none, or as often as it likes."""
    parameter = eqn.params.get(CALLS.get(eqn.primitive.name, "_prim"))
    if isinstance(parameter, PROGRAMS):
        return parameter
    return inside(parameter) if type(parameter).__name__ in NEXT_CALLS else None


def has_own_jvp(eqn: JaxprEqn) -> bool:
    """Whether the equation is a function of `jax.custom_jvp`."""
    primitive = eqn.params.get("_prim")
    return eqn.primitive.name == "custom_jvp_call" or type(primitive).__name__ == "CustomJVPTraced"


def has_own_vjp(eqn: JaxprEqn) -> bool:
    """Whether the equation is a function of `jax.custom_vjp`."""
    primitive = eqn.params.get("_prim")
    return eqn.primitive.name == "custom_vjp_call" or type(primitive).__name__ == "CustomVJPTraced"


def bound(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """Runs one equation on other operands; its results."""
    with eqn.ctx.manager:
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return results if eqn.primitive.multiple_results else [results]


def inside(value: Any) -> ClosedJaxpr | Jaxpr | None:
    """The program that a parameter of an equation is or holds.

    JAX's next transformations (`jax_remat3`, `jax_custom_jvp3`, `jax_custom_vjp3`, `jax_scan3`) are one
    primitive, `call_hi_primitive`, whose only parameter is an object that holds the program.
    """
    if isinstance(value, PROGRAMS):
        return value
    if not hasattr(value, "in_avals_flat"):
        return None
    program = getattr(value, "jaxpr", None) or getattr(getattr(value, "traced", None), "jaxpr", None)
    return program if isinstance(program, PROGRAMS) else None


def part(
    jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], invars: Sequence[Var], outvars: Sequence[Var]
) -> ClosedJaxpr:
    """Some equations of a program as a program without constants."""
    return ClosedJaxpr(
        jaxpr.replace(constvars=[], invars=list(invars), outvars=list(outvars), eqns=list(eqns)), ()
    )


def rewritten(program: P, consts: Sequence[Any] | None = None, **fields: Any) -> P:
    """The same program with other equations or variables, and other constants if there are any."""
    jaxpr, _ = opened(program)
    if jaxpr is program:
        return jaxpr.replace(**fields, consts=consts) if consts else jaxpr.replace(**fields)
    changed = jaxpr.replace(**fields)
    return program.replace(jaxpr=changed) if consts is None else program.replace(jaxpr=changed, consts=consts)


def rule_of_jvp(rule: WrappedFun, change: Callable[[Jaxpr], Jaxpr]) -> WrappedFun:
    """The `jvp_jaxpr_fun` of a custom_jvp_call, with the program that it returns changed."""

    def changed(*zeros: bool) -> tuple[Jaxpr, Any, Any]:
        jaxpr, consts, out_zeros = rule.call_wrapped(*zeros)
        return change(jaxpr), consts, out_zeros

    return wrap_init(changed, debug_info=rule.debug_info)


def rule_of_vjp(rule: WrappedFun, change: Callable[[ClosedJaxpr], ClosedJaxpr]) -> WrappedFun:
    """The `fwd_jaxpr_thunk` of a custom_vjp_call, with the program that it returns changed."""

    def changed(*zeros: bool) -> tuple[Jaxpr, Any]:
        program = change(ClosedJaxpr(*rule.call_wrapped(*zeros)))
        return opened(program)

    return wrap_init(changed, debug_info=rule.debug_info)


def backward_rule(rule: WrappedFun, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> WrappedFun:
    """The `bwd` of a custom_vjp_call, changed as a function from arrays to arrays.

    Among its results are zeros that are no arrays, and later versions of JAX return more than cotangents.
    """

    def changed(*args: Any) -> Any:
        captured: list[Any] = []

        def arrays(*args: Any) -> list[Any]:
            leaves, structure = jax.tree.flatten(rule.call_wrapped(*args))
            are_arrays = [isinstance(leaf, jax.Array) for leaf in leaves]
            captured[:] = (
                structure,
                [None if is_array else leaf for leaf, is_array in zip(leaves, are_arrays, strict=True)],
            )
            return [leaf for leaf, is_array in zip(leaves, are_arrays, strict=True) if is_array]

        new_leaves = iter(change(arrays)(*args))
        structure, others = captured
        return structure.unflatten([next(new_leaves) if other is None else other for other in others])

    return wrap_init(changed, debug_info=rule.debug_info)


class _Intercepting(core.Trace):
    """Passes everything on to the trace around it, changed on the way there and back."""

    def __init__(self, outer: core.Trace, before: Before, after: Callable[[Any], Any]):
        super().__init__()
        self.outer, self.before, self.after = outer, before, after
        self.requires_low = outer.requires_low

    def process_primitive(self, primitive: Primitive, args: Any, params: dict, /) -> Any:
        with core.set_current_trace(self.outer):
            args, params = self.before(primitive, args, params)
            return self.after(primitive.bind(*args, **params))

    def stage_value(self, val: Any) -> Any:
        return self._passed_on("stage_value", val)

    def process_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._passed_on("process_call", *args, **kwargs)

    def process_custom_jvp_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._passed_on("process_custom_jvp_call", *args, **kwargs)

    def process_custom_vjp_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._passed_on("process_custom_vjp_call", *args, **kwargs)

    def process_shard_map(self, *args: Any, **kwargs: Any) -> Any:
        return self._passed_on("process_shard_map", *args, **kwargs)

    def _passed_on(self, method: str, *args: Any, **kwargs: Any) -> Any:
        outputs = getattr(self.outer, method)(*args, **kwargs)
        with core.set_current_trace(self.outer):
            return self.after(outputs)


@contextmanager
def intercepted(before: Before, after: Callable[[Any], Any]) -> Iterator[None]:
    """While a function is traced, each operation passes through here, in this thread alone.

    JAX's own transformations are such traces; there is no public way to make one, and a rewritten program
    comes too late: its constants have been rounded by then. The bodies of jit, scan and cond are traced by
    themselves and do not pass.

    Args:
      before: called with an operation's primitive, arguments and parameters; returns the last two.
      after: called with its result.
    """
    with core.set_current_trace(_Intercepting(core.trace_ctx.trace, before, after)):
        yield


# ------------------------------------------------------------------------------------ JAX's run time

STEPS_COMPETE = jax.__version_info__ < (0, 12)
"""Whether steps that were started slow each other down on virtual devices: `_training/throttle.py`."""


def backends_are_initialized() -> bool:
    """Whether JAX has started. `jax.extend.backend.backends()` would start it in order to answer."""
    return xla_bridge.backends_are_initialized()


def coordination_client() -> Any:
    """The client of JAX's coordination service; None outside of a group.

    Its keys and values are how ranks talk on the host. JAX has no public way to them, and another service
    beside it would be a second port, a second heartbeat and a second way to fail.
    """
    return global_state.client


def detect_cluster(timeout: float) -> tuple[str | None, int | None, int | None, Sequence[int] | None]:
    """JAX's own detection of a cluster: coordinator, size, rank, local devices; None for what it lacks.

    `jax.distributed.initialize()` does the same, and joins the group before anyone can look at the answer.
    """
    return clusters.ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, int(timeout)
    )


def kubernetes_job() -> str | None:
    """The uid of this process's Kubernetes Job, if `detect_cluster` found the ranks there; else None."""
    attributes = vars(clusters.K8sCluster)
    # JAX keeps its client of Kubernetes there, and what it has asked. Nothing is asked a second time.
    return str(clusters.K8sCluster._job().metadata.uid) if "_core_api" in attributes else None


def in_cloud_tpu_vm() -> bool:
    """Whether this host is part of a TPU pod, whose ranks JAX finds by itself."""
    return cloud_tpu_init.running_in_cloud_tpu_vm


def reached_preemption_sync_point(step: int) -> bool:
    """JAX's way to let all ranks stop at one step after a SIGTERM; it is documented, and experimental."""
    from jax.experimental import multihost_utils

    return multihost_utils.reached_preemption_sync_point(step)


def concrete(x: Any) -> Any:
    """The array that an eager derivative watches; `x` itself if nothing does; None where there is none.

    `Tracer.to_concrete_value` is what JAX's own `bool(x)` uses. It alone tells where a traced value lies.
    """
    return x.to_concrete_value() if isinstance(x, jax.core.Tracer) else x


def address(x: jax.Array) -> int:
    """Where an array on one device begins in its memory: equal for two arrays that share a buffer."""
    return x.unsafe_buffer_pointer()


# --------------------------------------------------------------------------------- Flax, and Python


def promote_dtype(arrays: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    """Arrays in `dtype`, or in the type they promote to: what every layer of Flax does with its inputs."""
    from flax.nnx.nn import dtypes  # a process that only joins a group need not load Flax

    return dtypes.promote_dtype(arrays, dtype=dtype)


def set_past_trace(variable: Any, value: Any) -> None:
    """Sets an NNX variable's value past `Variable.__setattr__`, which looks at the trace each time.

    For all variables of a small model that takes longer than its step. `Variable.set_raw_value` is the slow
    way; the caller answers for standing outside of any trace.
    """
    object.__setattr__(variable, "_raw_value", value)


def before_thread_pools_close(f: Callable[[], None]) -> None:
    """Calls `f` at exit, while pools of threads still work.

    atexit would be too late: concurrent.futures closes all pools before it runs. This is what
    concurrent.futures itself uses; the last one to register is the first one to be called.
    """
    threading._register_atexit(f)  # type: ignore[attr-defined]
