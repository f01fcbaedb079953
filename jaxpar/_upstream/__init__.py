"""upstream: every private or experimental name of other libraries that jaxpar uses.

Names for compiling for absent GPUs are in `gpu_compiler`, names around JAX's start in `start`, its end in a
forked child in `fork`, the context of a mesh in `mesh_context`, a trace that changes operations in
`interception`, names of torch's workers in `torch_workers`, members of Keras's layers in `keras_layers`, all
others in this file. Read this package before you raise a version, and run tests/test_upstream.py: it checks
that each name exists and behaves as required, and that no other file uses such a name. Differences between
versions are handled here.

Each docstring gives the reason for the name and a possible replacement. A few names cannot be wrapped,
because a different file subclasses or replaces them; `ELSEWHERE` lists those.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
from jax._src import cloud_tpu_init, clusters, compiler, core, xla_bridge
from jax._src.distributed import global_state
from jax._src.interpreters.ad import LinearizeTracer
from jax._src.interpreters.batching import BatchTrace, BatchTracer
from jax.extend.backend import clear_backends as clear_backends
from jax.extend.core import ClosedJaxpr as ClosedJaxpr
from jax.extend.core import Jaxpr as Jaxpr
from jax.extend.core import JaxprEqn as JaxprEqn
from jax.extend.core import Literal as Literal
from jax.extend.core import Primitive as Primitive
from jax.extend.core import Var as Var
from jax.extend.core import get_opaque_trace_state as get_opaque_trace_state
from jax.extend.core import jaxpr_as_fun as jaxpr_as_fun
from jax.extend.linear_util import WrappedFun, wrap_init
from jax.interpreters import ad as ad
from jax.interpreters import batching as batching
from jax.interpreters import mlir as mlir

from . import start

P = TypeVar("P", ClosedJaxpr, Jaxpr)

start.watch()  # before anything of the library can start JAX

ELSEWHERE = {
    "orbax.checkpoint.type_handlers.NumpyHandler._open_and_write": (
        "_checkpointer/writing.py overrides it, to try every leaf before a full disk is an error; "
        "a public handler that reports every failed leaf would do"
    ),
    "flax.nnx.nn.normalization._compute_stats": (
        "jaxpar invariance replaces it in its own processes, to try a training without batch statistics; "
        "an option of Flax's norms to take given statistics would do"
    ),
    "flax.linen.normalization._compute_stats": "replaced for the same reason",
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
    "torch._assert_async": "parity/_port leaves it out: it checks arrays while the model runs",
    "torch._assert": "parity/_port translates it: models call it, so that torch.fx can trace them",
    "torch.utils._python_dispatch.TorchDispatchMode": (
        "parity computes in float64 below torch's own functions; torch documents the mode and keeps it there"
    ),
    "torch.nn.modules.batchnorm._BatchNorm.forward": (
        "parity/_port recognizes copies of its text in users' classes; torch has no public base of its norms"
    ),
    "torch.nn.modules.batchnorm._NormBase": (
        "parity/_port reads which of torch's norms keep statistics; a list of the public ones would do"
    ),
    "torch.nn.modules.dropout._DropoutNd": (
        "parity finds torch's dropout layers by their common class; a list of the public ones would do"
    ),
}
"""Names that other files subclass or replace: the reason, and a possible substitute."""

# --------------------------------------------------------------------------------------- JAX's programs
#
# jax.extend.core is JAX's interface for reading and writing jaxprs, without a stability guarantee. Moving a
# collective out of a branch (`_parallel/lift.py`) requires it.

PROGRAMS = (ClosedJaxpr, Jaxpr)
"""Up to JAX 0.10, programs with and without constants are two classes; since 0.11 one class."""

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
"""Primitives that run a nested program once, and the parameter that holds it."""

NEXT_CALLS = ("RematTraced", "CustomJVPTraced")
"""The same for JAX's next transformations, which are objects; see `inside`."""


def opened(program: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, list[Any]]:
    """Return the program's Jaxpr and its constants."""
    jaxpr: Any = getattr(program, "jaxpr", program)
    return jaxpr, list(getattr(program, "consts", ()))


def scan_counts(equation: JaxprEqn) -> tuple[int, int]:
    """Return the numbers of a scan's constants and of its carry, which are lengths of trees in JAX 0.12."""
    params = equation.params
    trees = params["ft_in"].unpack() if "ft_in" in params else None
    return (len(trees[0]), len(trees[1])) if trees else (params["num_consts"], params["num_carry"])


def called(eqn: JaxprEqn) -> ClosedJaxpr | Jaxpr | None:
    """Return the program that an equation runs exactly once, or None."""
    parameter = eqn.params.get(CALLS.get(eqn.primitive.name, "_prim"))
    if isinstance(parameter, PROGRAMS):
        return parameter
    return inside(parameter) if type(parameter).__name__ in NEXT_CALLS else None


def has_own_jvp(eqn: JaxprEqn) -> bool:
    """Return whether the equation calls a function of `jax.custom_jvp`."""
    primitive = eqn.params.get("_prim")
    return eqn.primitive.name == "custom_jvp_call" or type(primitive).__name__ == "CustomJVPTraced"


def has_own_vjp(eqn: JaxprEqn) -> bool:
    """Return whether the equation calls a function of `jax.custom_vjp`."""
    primitive = eqn.params.get("_prim")
    return eqn.primitive.name == "custom_vjp_call" or type(primitive).__name__ == "CustomVJPTraced"


def bound(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """Evaluate one equation on other operands and return its results."""
    # The context restores settings such as `compute_on`, under which the equation was traced.
    with eqn.ctx.manager:
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return results if eqn.primitive.multiple_results else [results]


def inside(value: Any) -> ClosedJaxpr | Jaxpr | None:
    """Return the program that an equation's parameter is or contains, or None.

    JAX's next transformations (`jax_remat3`, `jax_custom_jvp3`, `jax_custom_vjp3`, `jax_scan3`) share one
    primitive, `call_hi_primitive`, whose only parameter is an object that contains the program.
    """
    if isinstance(value, PROGRAMS):
        return value
    # Only the objects of the next transformations have this attribute.
    if not hasattr(value, "in_avals_flat"):
        return None
    program = getattr(value, "jaxpr", None) or getattr(getattr(value, "traced", None), "jaxpr", None)
    return program if isinstance(program, PROGRAMS) else None


def part(
    jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], invars: Sequence[Var], outvars: Sequence[Var]
) -> ClosedJaxpr:
    """Build a program without constants from some equations of a program."""
    return ClosedJaxpr(
        jaxpr.replace(constvars=[], invars=list(invars), outvars=list(outvars), eqns=list(eqns)), ()
    )


def rewritten(program: P, consts: Sequence[Any] | None = None, **fields: Any) -> P:
    """Return the program with other equations or variables, and optionally other constants."""
    jaxpr, _ = opened(program)
    if jaxpr is program:
        return jaxpr.replace(**fields, consts=consts) if consts else jaxpr.replace(**fields)
    # The constants are a field of the closed program here, so they need a second `replace`.
    changed = jaxpr.replace(**fields)
    return program.replace(jaxpr=changed) if consts is None else program.replace(jaxpr=changed, consts=consts)


def rule_of_jvp(rule: WrappedFun, change: Callable[[Jaxpr], Jaxpr]) -> WrappedFun:
    """Wrap the `jvp_jaxpr_fun` of a custom_jvp_call so that `change` is applied to its program."""

    def changed(*zeros: bool) -> tuple[Jaxpr, Any, Any]:
        jaxpr, consts, out_zeros = rule.call_wrapped(*zeros)
        return change(jaxpr), consts, out_zeros

    return wrap_init(changed, debug_info=rule.debug_info)


def rule_of_vjp(rule: WrappedFun, change: Callable[[ClosedJaxpr], ClosedJaxpr]) -> WrappedFun:
    """Wrap the `fwd_jaxpr_thunk` of a custom_vjp_call so that `change` is applied to its program."""

    def changed(*zeros: bool) -> tuple[Jaxpr, Any]:
        program = change(ClosedJaxpr(*rule.call_wrapped(*zeros)))
        return opened(program)

    return wrap_init(changed, debug_info=rule.debug_info)


def backward_rule(rule: WrappedFun, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> WrappedFun:
    """Wrap the `bwd` of a custom_vjp_call with a change of a function from arrays to arrays."""

    def changed(*args: Any) -> Any:
        captured: list[Any] = []

        def arrays(*args: Any) -> list[Any]:
            leaves, structure = jax.tree.flatten(rule.call_wrapped(*args))
            # Symbolic zeros pass through unchanged: `change` may only see arrays.
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


# ------------------------------------------------------------------------------------ JAX's run time

STEPS_COMPETE = jax.__version_info__ < (0, 12)
"""Whether concurrent steps slow each other down on virtual devices: `_training/throttle.py`."""


def backends_are_initialized() -> bool:
    """Return whether JAX has started. `jax.extend.backend.backends()` would start it."""
    return xla_bridge.backends_are_initialized()


def coordination_client() -> Any:
    """Return the client of JAX's coordination service, or None outside a group.

    Ranks communicate on the host through its keys and values. JAX has no public way to access them, and a
    separate service would need a second port, a second heartbeat and more failure handling.
    """
    return global_state.client


def detect_cluster(timeout: float) -> tuple[str | None, int | None, int | None, Sequence[int] | None]:
    """Detect a cluster as `jax.distributed.initialize()` does, without joining the group.

    Returns coordinator, size, rank and local devices; None for unknown values.
    """
    return clusters.ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, int(timeout)
    )


def kubernetes_job() -> str | None:
    """Return the uid of this process's Kubernetes Job if `detect_cluster` used it, else None."""
    attributes = vars(clusters.K8sCluster)
    # JAX caches its Kubernetes client and the answers in these attributes, so this sends no second request.
    return str(clusters.K8sCluster._job().metadata.uid) if "_core_api" in attributes else None


def in_cloud_tpu_vm() -> bool:
    """Return whether this host is part of a TPU pod, whose ranks JAX detects itself."""
    return cloud_tpu_init.running_in_cloud_tpu_vm


def reached_preemption_sync_point(step: int) -> bool:
    """Return whether all ranks should stop at this step after a SIGTERM. JAX documents it as experimental."""
    from jax.experimental import multihost_utils

    return multihost_utils.reached_preemption_sync_point(step)


def concrete(x: Any) -> Any:
    """Return the array below the tracers of eager derivatives and of `vmap`; None if it is abstract.

    Only that array reveals the devices of a traced value. JAX's own `bool(x)` uses `to_concrete_value`, which
    is None under `vmap`, where the array has one more axis. What is not traced is returned as it is.
    """
    while isinstance(x, jax.core.Tracer):
        value = x.to_concrete_value()
        if value is not None:
            return value
        inner = getattr(x, "val", getattr(x, "primal", None))
        x = inner if isinstance(inner, jax.Array) else None
    return x


def is_differentiated(x: Any) -> bool:
    """Return whether a derivative is the innermost transformation of x.

    JAX has no public name for this: only its classes of tracers tell.
    """
    return isinstance(x, (ad.JVPTracer, LinearizeTracer))


def is_mapped(x: Any) -> bool:
    """Return whether `jax.vmap` maps over x, by a `vmap` that is the innermost transformation.

    A function of `jax.custom_batching.custom_vmap` learns it without private names, but JAX cannot
    differentiate one that no vmap maps over.
    """
    return isinstance(x, BatchTracer)


def mapped_axis() -> Any:
    """Return the axis name of `jax.vmap` if that is the innermost transformation and is named, else None.

    JAX has no public name for this: collectives have to be called with the axis.
    """
    trace = core.trace_ctx.trace
    name = trace.axis_data.name if isinstance(trace, BatchTrace) else core.no_axis_name
    return None if name is core.no_axis_name else name


def is_traced() -> bool:
    """Whether any transformation of JAX traces the caller: `jit`, `scan`, also an eager `grad` or `vmap`."""
    return not core.trace_state_clean()


@contextmanager
def compiling_with(options: Mapping[str, Any]) -> Iterator[None]:
    """Give XLA's compiler options for all programs that are compiled in the context, in all threads.

    `compiler_options` of `jax.jit` does this for one program; an operation alone has no such argument.
    """
    original = compiler.get_compile_options

    def with_options(*args: Any, **kwargs: Any) -> Any:
        chosen = {**options, **(kwargs.pop("env_options_overrides", None) or {})}
        kwargs["env_options_overrides"] = chosen
        return original(*args, **kwargs)

    compiler.get_compile_options = with_options
    try:
        yield
    finally:
        compiler.get_compile_options = original


def address(x: jax.Array) -> int:
    """Return the device memory address of a single-device array: equal if two arrays share a buffer."""
    return x.unsafe_buffer_pointer()


# --------------------------------------------------------------------------------- Flax, and Python


def promote_dtype(arrays: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    """Cast arrays to `dtype`, or to their promoted type, as every Flax layer does with its inputs."""
    from flax.nnx.nn import dtypes  # a process that only joins a group does not need Flax

    return dtypes.promote_dtype(arrays, dtype=dtype)


def set_past_trace(variable: Any, value: Any) -> None:
    """Set an NNX variable's value without `Variable.__setattr__`, which checks the trace each time.

    For all variables of a small model, those checks take longer than the model's step.
    `Variable.set_raw_value` is the slow alternative; the caller must ensure that no trace is active.
    """
    object.__setattr__(variable, "_raw_value", value)


def linen_capture_filter() -> Any:
    """Return the filter of the innermost `capture_intermediates`, or False.

    A wrapper applies its module again, inside of a program, where Linen records nothing unless it is asked.
    Linen keeps the filter in its context, and no public function returns it.
    """
    from flax.linen.module import _context

    return (_context.capture_stack or [False])[-1] or False


def captured_methods(kind: type) -> tuple[tuple[str, str, type], ...]:
    """Return the methods of a class that `nnx.capture(method_outputs=T)` has replaced for now, with their T.

    The functions that replace them are marked. A program traced with them differs from one traced without.
    """
    methods = [(name, f) for name, f in vars(kind).items() if hasattr(f, "_does_capturing")]
    types = [inspect.getclosurevars(f).nonlocals["variable_type"] for _, f in methods]
    return tuple((kind.__qualname__, name, t) for (name, _), t in zip(methods, types, strict=True))


def before_thread_pools_close(f: Callable[[], None]) -> None:
    """Call `f` at exit, while thread pools still work.

    atexit would be too late, since concurrent.futures closes all pools before. This is the hook that
    concurrent.futures itself uses; the last function registered is called first.
    """
    threading._register_atexit(f)  # type: ignore[attr-defined]
