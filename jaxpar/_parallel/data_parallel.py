"""DataParallel: scatter, replicate, parallel_apply and gather in one call, at every forward as in torch."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from flax import linen, nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._arguments import check_class, name_call
from .._counterparts import TorchNames
from .._devices.context import Outside, is_explicit, returned
from .._statistics.linen_batch_norm import over_replicas
from .._tree import is_real, is_staged
from .._typing import REPLICA, DeviceLike, PyTree
from .._upstream.mesh_context import context_mesh
from ..errors import JaxparError
from .backends import backend as _backend
from .batch_statistics import warn_of_replica_statistics
from .gather import assemble, with_mesh
from .mesh_placement import placement_for
from .modules import Module, view
from .modules.bundle import Bundle, refuse_metrics, set_aside
from .modules.function_view import (
    AppliedView,
    FunctionView,
    function_of,
    is_callable_pytree,
)
from .modules.linen_view import are_bare, nested
from .modules.nnx_view import view_nnx
from .modules.records import PERTURBATIONS
from .nesting import refuse_nesting
from .over_rows import over_rows
from .parallel_apply import apply_replicas, compiled
from .parallel_apply import programs as shared_programs
from .placement import Placement
from .programs import Programs
from .replicate import Replicas, replicate
from .replicated import is_marked, plain_arguments, unmarked
from .scatter import cut_arguments


def data_parallel(
    module: Module,
    inputs: PyTree,
    device_ids: Iterable[DeviceLike] | Placement | None = None,
    output_device: DeviceLike | None = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
    *,
    backend: str = "shard_map",
    mesh: Mesh | None = None,
    axis: str | None = None,
) -> PyTree:
    """Evaluate `module(*inputs, **module_kwargs)` with the rows shared out over the devices.

    >>> import jax.numpy as jnp, jaxpar
    >>> jaxpar.data_parallel(lambda x: 2 * x, jnp.arange(6.0))
    Array([ 0.,  2.,  4.,  6.,  8., 10.], dtype=float...)

    Args:
      module: an NNX module, a bound Linen module (`module.bind(variables)`) or a function.
      inputs: the positional arguments as a tuple; a non-tuple is passed as the single argument; None means no
        arguments.
      device_ids: devices in replica order; all of them if left out.
      output_device: where the outputs go; `device_ids[0]` if left out.
      dim: the batch dimension of all arrays.
      module_kwargs: keyword arguments, split like the others.
      backend: `"shard_map"` or `"pmap"`; equal results.
      mesh, axis: as for `DataParallel`.

    Raises: as `scatter`, `replicate`, `parallel_apply` and `gather`.

    torch counterpart: `torch.nn.parallel.data_parallel`. Without devices torch raises; here the module is
    called, as `DataParallel` does in both.
    """
    placement = placement_for((device_ids, output_device), dim, mesh, axis, backend, "data_parallel")
    args = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    return forward(module, args, module_kwargs or {}, placement, backend, shared_programs)


def forward(
    module: Module,
    args: tuple,
    kwargs: dict[str, Any],
    placement: Placement,
    backend: str,
    programs: Programs,
    function: str = "DataParallel",
) -> PyTree:
    """Return the module's outputs; `function` is the wrapper that errors name."""
    if not placement.devices:
        args, kwargs = unmarked((args, kwargs))
        return _alone(module, args, kwargs)
    refuse_nesting(function)
    target = None if context_mesh() is not None else _target(args, kwargs, placement)
    try:
        with Outside(placement.outer_mesh):
            outputs = _forward(module, args, kwargs, placement, backend, programs, function, target)
            return with_mesh(outputs, placement.dim)
    except Exception as error:
        name_call(error, function, args, kwargs)
        raise


def _forward(
    module: Module,
    args: tuple,
    kwargs: dict[str, Any],
    placement: Placement,
    backend: str,
    programs: Programs,
    function: str,
    target: Any,
) -> PyTree:
    args, kwargs, objects = set_aside(args, kwargs)
    module = bundled(module, objects, placement, function) if objects else module
    # On a mesh, one replica is a group of devices, which the program puts in context.
    alone = placement.N == 1 and placement.outer_mesh is None
    if not alone and isinstance(module, nnx.Module) and (perturbations := view_nnx(module).perturbations()):
        kwargs = {**kwargs, PERTURBATIONS: perturbations}  # they have rows
    inputs, named = cut_arguments(args, kwargs, placement)
    if alone:
        # docs/semantics.md row 31: with one device the module is called as it is.
        view(module).values(placement, function)
        return _alone(module, inputs[0], named[0])
    replicas = Replicas(module, placement, len(inputs), function=function)
    outputs, records = apply_replicas(replicas, inputs, named, backend, programs)
    if records.tree and not isinstance(split := replicas.split(), FunctionView):
        split.record(module, returned(assemble(records, target, warns=False), placement.dim))
    return assemble(outputs, target)


def _alone(module: Module, args: tuple, kwargs: dict[str, Any]) -> PyTree:
    with plain_arguments((args, kwargs)) as (args, kwargs):
        if not isinstance(module, linen.Module):
            return module(*args, **kwargs)
        with over_replicas(REPLICA):  # of which there is one
            return module(*args, **kwargs)


def bundled(
    module: Module, objects: Sequence[Any], placement: Placement, function: str = "DataParallel"
) -> Bundle:
    if isinstance(module, linen.Module):
        raise TypeError(
            f"{function}: {type(objects[0]).__name__} is an argument of a Linen module, which takes random "
            "streams as rngs={'dropout': key} and other modules as submodules."
        )
    if placement.N > 1:
        refuse_metrics(objects, function)
    return Bundle(module, objects)


def _target(args: tuple, kwargs: dict[str, Any], placement: Placement) -> Any:
    """Return where outputs go: to all devices, if the batch is already spread over them."""
    if is_staged() or placement.outer_mesh is not None:
        return None
    # After a training step inside of jit, parameters are on all devices, and JAX refuses to mix them with an
    # array on one, such as the outputs of a wrapped block.
    spread = set(placement.devices)
    for x in jax.tree.leaves((args, kwargs), is_leaf=is_marked):
        if is_real(x) and not x.is_deleted() and x.devices() == spread and len(spread) > 1:
            if isinstance(where := x.sharding, NamedSharding) and not is_explicit(where.mesh):
                return NamedSharding(where.mesh, PartitionSpec())
            return placement.replicated
    return placement.output_device


class DataParallel(abc.ABC):
    """A module that shares every batch out over the devices.

    >>> import jax.numpy as jnp, jaxpar
    >>> from flax import nnx
    >>> net = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    >>> net = jaxpar.DataParallel(net)  # the only line that changes
    >>> net(jnp.ones((8, 3))).shape
    (8, 2)

    Args:
      module: an `nnx.Module`, a `flax.linen.Module`, an Equinox module, or a function of arrays.
      device_ids: devices in replica order, as ints, texts or `jax.Device`s; all if left out.
      output_device: where outputs go outside of `jax.jit`, any device; `device_ids[0]` if left out.
      dim: the batch dimension of all inputs and outputs.
      backend: `"shard_map"` or `"pmap"`; equal results.
      mesh, axis: in place of devices, a mesh of yours and its axis over which rows are split. Parameters
        that are split over its other axes stay split, see docs/placement.md.

    What is returned has `.module`, `.device_ids`, `.output_device`, `.dim`, and is itself

    * an `nnx.Module` for an NNX module: `nnx.jit`, `nnx.grad`, `nnx.Optimizer`, `nnx.state`, `net.train()`,
      `net.eval()` and use as a submodule work as for any module;
    * a Linen module for a Linen module: `net.init(rngs, x)`, `net.apply(variables, x, rngs=, mutable=)` and
      use as a submodule;
    * a function for a function, and a pytree that is called for such a pytree, as Equinox's modules are.

    With one CPU device and no accelerator, calls pass straight through and `device_ids` is `[]`.

    Raises:
      DeviceError: unknown, duplicate or missing devices. ValueError: unknown backend.

    torch counterpart: `torch.nn.DataParallel` (docs/semantics.md section 1.1). Gradients of any function of
    the outputs are the sum over the replicas; statistics come back from replica 0; random streams differ
    between replicas.
    """

    module: Any
    placement: Placement
    device_ids: list[int]
    output_device: jax.Device | None
    dim: int

    def __new__(
        cls,
        module: Any,
        device_ids: Iterable[DeviceLike] | Placement | None = None,
        output_device: DeviceLike | None = None,
        dim: int = 0,
        *,
        backend: str = "shard_map",
        mesh: Mesh | None = None,
        axis: str | None = None,
        **fields: Any,
    ) -> Any:
        _backend(backend)
        if fields and not isinstance(module, linen.Module):
            raise TypeError(
                f"DataParallel: unexpected argument {', '.join(fields)}. shard_optimizer and comm_hook are "
                "DistributedDataParallel's; only a Linen module's wrapper has a name and a parent."
            )
        placement = placement_for((device_ids, output_device), dim, mesh, axis, backend, "DataParallel")
        if isinstance(module, nnx.Module):
            return _NNXDataParallel(module, placement, backend)
        if isinstance(module, linen.Module):
            return _LinenDataParallel(module, placement, backend, **fields)
        if is_callable_pytree(module):
            return _PytreeDataParallel(_placed(module, placement), placement, backend, Programs(compiled))
        return _FunctionDataParallel(function_of(module), placement, backend)

    def __init_subclass__(cls) -> None:
        raise TypeError(
            "DataParallel cannot be subclassed: it returns a module of the wrapped one's kind. Wrap it."
        )

    def __call__(self, *inputs: PyTree, **kwargs: PyTree) -> PyTree:
        """Return the module's outputs for the complete batch."""
        raise NotImplementedError


class _Remembers(TorchNames):
    module: Any
    placement: Placement
    backend: str
    programs: Programs

    @property
    def device_ids(self) -> list[int]:
        return list(self.placement.device_ids)

    @property
    def output_device(self) -> jax.Device | None:
        return self.placement.output_device

    @property
    def dim(self) -> int:
        return self.placement.dim

    def __call__(self, *inputs: PyTree, **kwargs: PyTree) -> PyTree:
        with warn_of_replica_statistics(self.module, "DataParallel", self.placement.N):
            return forward(self.module, inputs, kwargs, self.placement, self.backend, self.programs)


class _NNXDataParallel(_Remembers, nnx.Module):
    def __init__(self, module: nnx.Module, placement: Placement, backend: str):
        self.module, self.placement, self.backend = module, placement, backend
        self.programs = Programs(compiled)
        _settle(module, placement)

    @property
    def variables(self) -> Any:
        """The variables of a Linen module in a step, as its `TrainState` has them."""
        return self.module.variables

    def around(self, module: Any) -> Any:
        """Return a DataParallel of a callable pytree, with this one's programs."""
        return _PytreeDataParallel(module, self.placement, self.backend, self.programs)


class _LinenDataParallel(_Remembers, linen.Module):
    module: linen.Module
    placement: Placement
    backend: str = "shard_map"
    programs: Programs = dataclasses.field(default_factory=lambda: Programs(compiled), repr=False)

    def __call__(self, *inputs: PyTree, **kwargs: PyTree) -> PyTree:
        if self.scope is not None and self.is_initializing():
            inputs, kwargs = unmarked((inputs, kwargs))
            return self.module(*inputs, **kwargs)  # only shapes matter, so no device is used
        return super().__call__(*inputs, **kwargs)

    @linen.nowrap
    def init_with_output(self, rngs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return the outputs and the wrapped module's weights, one level deeper."""
        # A Linen module draws by its path, so as a submodule of the wrapper it would draw different weights.
        args, kwargs = unmarked((args, kwargs))
        outputs, variables = self.module.init_with_output(rngs, *args, **kwargs)
        return outputs, nested(variables)

    @linen.nowrap
    def init(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = unmarked((args, kwargs))
        return nested(self.module.init(rngs, *args, **kwargs))

    @linen.nowrap
    def apply(self, variables: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Apply the module to the wrapper's variables or the wrapped module's own."""
        if not are_bare(variables):
            return super().apply(variables, *args, **kwargs)
        done = super().apply(nested(variables), *args, **kwargs)
        if kwargs.get("mutable", False) is False and not kwargs.get("capture_intermediates", False):
            return done
        outputs, updates = done
        return outputs, {collection: tree.get("module", tree) for collection, tree in updates.items()}

    @linen.nowrap
    def bind(self, variables: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return the wrapper with its variables or the wrapped module's own."""
        return super().bind(nested(variables) if are_bare(variables) else variables, *args, **kwargs)


class _FunctionDataParallel(_Remembers):
    def __init__(self, module: Callable[..., Any], placement: Placement, backend: str):
        self.module, self.placement, self.backend = module, placement, backend
        self.programs = Programs(compiled)
        view(module)  # fail now rather than at the first call


@jax.tree_util.register_pytree_with_keys_class
class _PytreeDataParallel(_Remembers):
    """A callable pytree, wrapped, is one itself: `eqx.filter_grad`, `eqx.tree_at` and `jax.vmap` take it."""

    def __init__(self, module: Any, placement: Placement, backend: str, programs: Programs):
        self.module, self.placement, self.backend, self.programs = module, placement, backend, programs

    def tree_flatten_with_keys(self) -> Any:
        key = jax.tree_util.GetAttrKey("module")
        return ((key, self.module),), (self.placement, self.backend, self.programs)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        return cls(*children, *aux)

    def __call__(self, *inputs: PyTree, **kwargs: PyTree) -> PyTree:
        def run(module: Any, args: tuple, kwargs: dict[str, Any], placement: Placement) -> PyTree:
            return forward(module, args, kwargs, placement, self.backend, self.programs)

        return over_rows(run, self.module, inputs, kwargs, self.placement)


for _kind in (_NNXDataParallel, _LinenDataParallel, _FunctionDataParallel, _PytreeDataParallel):
    # One public name: this is what repr, isinstance and Linen's automatic names show.
    _kind.__name__ = "DataParallel"  # not __qualname__, by which pickle finds the class
    DataParallel.register(_kind)
    check_class(_kind)


def _placed(module: Any, placement: Placement) -> Any:
    """Return a callable pytree on the devices, as `_settle` moves an NNX module."""
    if not placement.devices or placement.of_topology or is_staged():
        return module
    split = AppliedView(None, module)
    try:
        return split.definition.bind(split.definition.function.value, split.values(placement))
    except JaxparError:
        return module


def _settle(module: nnx.Module, placement: Placement) -> None:
    """Move parameters to the devices now, unless they are tracers, shapes or misplaced."""
    if not placement.devices or placement.of_topology or is_staged():
        return
    # torch moves a module for a single device only (docs/semantics.md row 10). Here a module on one device
    # could not be passed to `nnx.jit`. Errors are raised at the first call, as in torch (row 14).
    with contextlib.suppress(JaxparError):
        replicate(module, placement)
