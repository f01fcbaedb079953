"""DistributedDataParallel: a loss and a gradient on every replica, their mean on all of them.

Unlike torch's, `value_and_grad` returns the mean gradient, because a JAX array has no `.grad`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from flax import linen, nnx
from jax.sharding import Mesh

from .._arguments import NonNegative, check_class, warn
from .._devices.context import left_mesh, outside, refuse_own_mesh, returned
from .._parallel.backends import backend as _backend
from .._parallel.mesh_placement import placement_for
from .._parallel.modules.function_view import (
    Applied,
    FunctionView,
    function_of,
    is_callable_pytree,
    is_equinox_state,
)
from .._parallel.over_rows import over_rows
from .._parallel.placement import Placement
from .._parallel.replicated import unmarked
from .._typing import DeviceLike, PyTree
from ..comm_hooks import CommHook
from ..distributed.group import Group, NonMember, registered
from ..errors import GroupError
from .agreement import SameRows
from .arrays import FunctionArrays, LinenArrays, ModuleArrays
from .distributed_base import Distributed, settle, settle_groups
from .engine_state import EngineState
from .world import World, make_world


class DistributedDataParallel(abc.ABC):
    """A module whose every replica takes the loss of its own rows, and the mean of their gradients.

    >>> import jax.numpy as jnp, jaxpar
    >>> from flax import nnx
    >>> net = jaxpar.DistributedDataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    >>> value_and_grad = net.value_and_grad(lambda net, x: (net(x) ** 2).mean())
    >>> loss, gradients = value_and_grad(jnp.ones((8, 3)))
    >>> loss.shape, gradients["module"]["kernel"][...].shape
    ((), (3, 1))

    A replica is a device of any process. In one process it needs no process group; with
    `jaxpar.distributed.init_process_group()` every process brings its own rows, as in torch.

    Args:
      module: an `nnx.Module`, a `flax.linen.Module`, a function of parameters and inputs, an Equinox module,
        or a Haiku transform.
      device_ids: this process's devices; all that it has if left out. (torch allows one.)
      dim: the batch dimension.
      process_group: whose processes train this module; the default group's if left out.
      forward_sync_buffers: whether rank 0's buffers go to all before each forward. If not, every process
        keeps its own. `broadcast_buffers` is torch's older name.
      init_sync: whether parameters and buffers are compared and made equal to rank 0's now.
      comm_hook: how gradients are reduced, see `register_comm_hook`.
      shard_optimizer: whether `train_step` divides the optimizer's arrays between the replicas (ZeRO-1).
      backend: `"shard_map"` or `"pmap"`; equal results.
      mesh, axis: as for `DataParallel`; with a process group, the mesh of all processes or this one's part.
      output_device, bucket_cap_mb, find_unused_parameters, gradient_as_bucket_view, static_graph: taken and
        not needed. Buckets are XLA's business, and a parameter that no loss uses has gradient zero.

    Raises:
      ParametersError: nothing to train; or other ranks have other parameters.
      DeviceError: unknown devices, or ranks with different numbers of them.
      GroupError: this process is not in `process_group`.

    torch counterpart: `torch.nn.parallel.DistributedDataParallel` (docs/semantics.md section 2.1).
    """

    module: Any
    world: World
    backend: str
    engine_state: EngineState

    def __new__(
        cls,
        module: Any,
        device_ids: Iterable[DeviceLike] | Placement | None = None,
        output_device: DeviceLike | None = None,
        dim: int = 0,
        *,
        process_group: Any = None,
        forward_sync_buffers: bool | None = None,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        comm_hook: CommHook | None = None,
        shard_optimizer: bool = False,
        backend: str = "shard_map",
        mesh: Mesh | None = None,
        axis: str | None = None,
        bucket_cap_mb: NonNegative | None = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
    ) -> Any:
        on_mesh = None
        if mesh is not None:
            devices = device_ids, output_device
            on_mesh = placement_for(devices, dim, mesh, axis, backend, "DistributedDataParallel")
        del output_device, bucket_cap_mb, find_unused_parameters, gradient_as_bucket_view, static_graph
        _backend(backend)
        if shard_optimizer and on_mesh is not None and on_mesh.positions.size > on_mesh.N:
            raise ValueError(
                "DistributedDataParallel: shard_optimizer=True divides arrays over one axis, and mesh= has "
                f"{on_mesh.positions.size // on_mesh.N} devices for each replica. Give a mesh of one axis, "
                "or leave shard_optimizer out and shard the optimizer's arrays over the other axes."
            )
        world = make_world(device_ids, dim, _members(process_group), on_mesh)
        shares_buffers = _buffers(forward_sync_buffers, broadcast_buffers)
        state = EngineState(SameRows(world.size, shares_buffers), comm_hook, shard_optimizer)
        if isinstance(module, nnx.Module):
            return _NNXDistributed(module, world, backend, state, init_sync)
        if isinstance(module, linen.Module):
            return _LinenDistributed(module, world, backend, state)
        if is_callable_pytree(module):
            return _PytreeDistributed(module, world, backend, state)
        return _FunctionDistributed(function_of(module), world, backend, state)

    def __init_subclass__(cls) -> None:
        raise TypeError(
            "DistributedDataParallel cannot be subclassed: it returns a module of the wrapped one's kind. "
            "Wrap it."
        )


def _members(process_group: Any) -> Group | None:
    if isinstance(process_group, NonMember):
        raise GroupError(
            "DistributedDataParallel: this process is not in process_group. Wrap the module in its group's "
            "processes only."
        )
    return None if process_group is None else registered(process_group, "DistributedDataParallel")


def _buffers(forward_sync: bool | None, broadcast: bool | None) -> bool:
    if broadcast is not None:
        warn(
            "DistributedDataParallel: broadcast_buffers is deprecated; use forward_sync_buffers.",
            FutureWarning,
        )
    flags = [value for value in (forward_sync, broadcast) if value is not None]
    return flags[0] if flags else True


class _NNXDistributed(Distributed, nnx.Module):
    @outside
    def __init__(self, module: nnx.Module, world: World, backend: str, state: EngineState, init_sync: bool):
        self._remember(module, world, backend, state)
        settle_groups(module, world)
        arrays = self.arrays(nnx.Param)
        arrays.commit(dict(enumerate(settle(arrays, world, init_sync))))

    def arrays(self, wrt: nnx.filterlib.Filter) -> ModuleArrays:
        world, structures = self.world, self.engine_state.structures
        return ModuleArrays(self, self.module, wrt, world.local, world, structures, "DistributedDataParallel")

    def __call__(self, *inputs: PyTree, **kwargs: PyTree) -> PyTree:
        """The module's outputs for this process's rows. Raises GradientError when differentiated."""
        return self._forward(self.module, inputs, kwargs)

    def value_and_grad(
        self, loss_fn: Callable[..., Any], *, has_aux: bool = False, wrt: nnx.filterlib.Filter = nnx.Param
    ) -> Callable[..., Any]:
        """Return a function of a batch that returns the mean loss and the mean gradients.

        >>> import jax.numpy as jnp, jaxpar
        >>> from flax import nnx
        >>> net = jaxpar.DistributedDataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
        >>> value_and_grad = net.value_and_grad(lambda net, x: (net(x).mean(), net(x)), has_aux=True)
        >>> (loss, outputs), gradients = value_and_grad(jnp.ones((8, 3)))
        >>> outputs.shape
        (8, 1)

        Args:
          loss_fn: `loss_fn(module, *batch)`, evaluated on every replica's own rows, returns one number, or
            `(number, aux)` with `has_aux`.
          has_aux: aux is any tree of arrays [b, ...]; those of this process's replicas are concatenated.
          wrt: the NNX filter of what is trained.

        Returns:
          `f(*batch) -> (loss, gradients)`, with aux `((loss, aux), gradients)`. Gradients are an `nnx.State`
          with the structure of `nnx.state(net, wrt)`, for `optimizer.update(net, gradients)`.

        Raises (when called): LossError; BatchError for an empty batch; and as `scatter`.

        torch counterpart: forward, loss and `loss.backward()` (docs/semantics.md rows D4, D5).
        """
        _check_filter(wrt)

        @outside
        def value_and_grad(*batch: PyTree, **kwargs: PyTree) -> Any:
            if (mesh := left_mesh()) is not None:
                weights = jax.tree.leaves(nnx.state(self.module, wrt))
                refuse_own_mesh(mesh, weights, self.world.local.mesh, "DistributedDataParallel")
            loss, gradients, _ = self._gradients(self.arrays(wrt), loss_fn, has_aux, batch, kwargs)
            return loss, gradients

        return value_and_grad


def _check_filter(wrt: nnx.filterlib.Filter) -> None:
    try:
        nnx.filterlib.to_predicate(wrt)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"DistributedDataParallel.value_and_grad: wrt is {wrt!r:.60}; it must be a filter of NNX: "
            "a type of variables, a tag, a function of path and value, a bool, `...`, or a list of these."
        ) from error


class _LinenDistributed(Distributed):
    def __init__(self, module: linen.Module, world: World, backend: str, state: EngineState):
        self._remember(module, world, backend, state)

    def init(self, rngs: Any, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The module's variables, rank 0's on all ranks."""
        args, kwargs = unmarked((args, kwargs))
        variables = self.module.init(rngs, *args, **kwargs)
        return self._settled(variables)

    @outside
    def _settled(self, variables: PyTree) -> PyTree:
        arrays = LinenArrays(self.module, variables, {}, False, self.world)
        settled = settle(arrays, self.world, True)
        return returned(jax.tree.unflatten(arrays.form, settled)["variables"])

    def apply(
        self,
        variables: Mapping[str, Any],
        *args: PyTree,
        rngs: Any = None,
        mutable: Any = False,
        capture_intermediates: Any = False,
        **kwargs: PyTree,
    ) -> PyTree:
        """The module's outputs for this process's rows, as `module.apply`."""

        def forward(module: linen.Module) -> PyTree:
            return self._forward(module, args, kwargs)

        return linen.apply(forward, self.module, mutable, capture_intermediates)(variables, rngs=rngs)

    def value_and_grad(
        self, loss_fn: Callable[..., Any], *, has_aux: bool = False, mutable: Any = False
    ) -> Callable[..., Any]:
        """Return `f(variables, *batch, rngs=None) -> (loss, gradients)`, gradients as `variables["params"]`.

        `loss_fn(module, *batch)` is given the module with its variables. With `mutable`, the value comes with
        the collections that changed: `((loss, updates), gradients)`, with aux `((loss, aux), updates)`.
        """

        @outside
        def value_and_grad(variables: PyTree, *batch: PyTree, rngs: Any = None, **kwargs: PyTree) -> Any:
            self._compare("variables", variables)
            arrays = LinenArrays(self.module, variables, rngs or {}, mutable, self.world)
            value, gradients, updates = self._gradients(arrays, loss_fn, has_aux, batch, kwargs)
            return (value if mutable is False else (value, updates)), gradients

        return value_and_grad


class _FunctionDistributed(Distributed):
    def __init__(self, module: Callable[..., Any], world: World, backend: str, state: EngineState):
        FunctionView(module)  # fail now rather than at the first call
        self._remember(module, world, backend, state)

    def __call__(self, parameters: PyTree, *inputs: PyTree, **kwargs: PyTree) -> PyTree:
        return self._forward(Applied(self.module, parameters), inputs, kwargs)

    def value_and_grad(self, loss_fn: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
        """Return `f(parameters, *batch) -> (loss, gradients)`; `loss_fn(f, *batch)` calls `f(*inputs)`.

        Raises DivergenceError if ranks hold other parameters; see `jaxpar.distributed.broadcast`.
        """
        return self._of_tree(self.module, "parameters", loss_fn, has_aux)

    def _of_tree(self, function: Any, what: str, loss_fn: Callable[..., Any], has_aux: bool) -> Any:
        @outside
        def value_and_grad(tree: PyTree, *batch: PyTree, **kwargs: PyTree) -> Any:
            self._compare(what, tree)
            arrays = FunctionArrays(function, tree, self.world)
            loss, gradients, _ = self._gradients(arrays, loss_fn, has_aux, batch, kwargs)
            return loss, gradients

        return value_and_grad


class _PytreeDistributed(_FunctionDistributed):
    def __init__(self, module: Callable[..., Any], world: World, backend: str, state: EngineState):
        self._remember(module, world, backend, state)

    def __call__(self, *inputs: PyTree, **kwargs: PyTree) -> PyTree:
        """The module's outputs for this process's rows. Under `jax.vmap` it is called for each row."""
        return over_rows(self._forward, self.module, inputs, kwargs, self.world.local)

    def value_and_grad(self, loss_fn: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
        """Return `f(module, *batch) -> (loss, gradients)`, as `equinox.filter_value_and_grad`.

        `loss_fn(module, *batch)` is given the module. Gradients are such a module with None for what is not
        trained. Raises DivergenceError if ranks hold other modules; see `jaxpar.distributed.broadcast`.
        """
        run = self._of_tree(None, "module", loss_fn, has_aux)

        def value_and_grad(module: PyTree, *batch: PyTree, **kwargs: PyTree) -> Any:
            if any(map(is_equinox_state, (unmarked(x) for x in (*batch, *kwargs.values())))):
                raise TypeError(
                    "DistributedDataParallel.value_and_grad: an eqx.nn.State has no rows, and its new values "
                    "are each replica's. Train with train_step and "
                    "FunctionState.create(module, tx, buffers=state), which keep them (docs/functions.md)."
                )
            return run(module, *batch, **kwargs)

        return value_and_grad


for _kind in (_NNXDistributed, _LinenDistributed, _FunctionDistributed, _PytreeDistributed):
    # One public name: this is what repr and isinstance show.
    _kind.__name__ = "DistributedDataParallel"
    DistributedDataParallel.register(_kind)
    check_class(_kind)
Distributed.of_nnx = _NNXDistributed
