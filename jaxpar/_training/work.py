"""work: what a step computes, a loss on every replica or one of the complete batch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from .._devices.topology import compiler_options
from .._parallel.backends import backend
from .._parallel.data_parallel import DataParallel
from .._parallel.gather import assemble
from .._parallel.modules import Definition
from .._parallel.modules.nnx_view import NNXDefinition
from .._parallel.placement import Placement, over_devices
from .._parallel.programs import Programs
from .._parallel.replicated import array_marks
from .._parallel.shards import combine, entry_of, separate
from .._tree import is_staged, shape_of, sharding_of
from .._typing import PyTree, Static, TreeDef
from ..data.sending import sender
from .agreement import Agreement
from .arrays import Arrays
from .compiled_step import BatchPlan, Program, ReplicaPlan, ReplicaState, StepResult
from .engine_state import EngineState
from .local_batch import LocalRows, outputs, take
from .loss import Loss
from .precision import Precision
from .update import Update
from .world import World


class Objective:
    """A loss function and what follows its gradients, for a module as it is now."""

    loss: Loss  # for the arrays that were prepared last
    update: Update | None  # likewise

    def __init__(
        self,
        loss_fn: Callable[..., Any],
        has_aux: bool,
        precision: Precision | None = None,
        make_update: Callable[[Any], Update] | None = None,
        on_replicas: bool = False,
    ):
        self.has_aux, self._on_replicas = has_aux, on_replicas
        self._loss_fn, self._precision, self._make_update = loss_fn, precision, make_update
        self.owns_state = True  # whether a training step may donate what it is given
        self._definitions: Any = None
        self._prepared: dict[Any, tuple[Loss, Update | None]] = {}

    def frozen(self) -> Objective:
        """Return this objective for the arrays that were prepared last, which donates nothing."""
        frozen = copy.copy(self)
        frozen.owns_state = False
        return frozen

    def prepare(self, arrays: Arrays) -> None:
        """Prepare for net and optimizer as they are; `net.eval()`, for instance, changes the definition."""
        if not self.owns_state or self._definitions == arrays.definitions:
            return
        self._definitions = arrays.definitions
        if self._definitions not in self._prepared:
            if len(self._prepared) == MOST:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[self._definitions] = self._make(arrays)
        self.loss, self.update = self._prepared[self._definitions]

    def _make(self, arrays: Arrays) -> tuple[Loss, Update | None]:
        update = None if self._make_update is None else self._make_update(arrays)
        trained, definition = arrays.parameters, arrays.definition
        on_replicas = self._on_replicas and _all_parameters(definition, trained)
        policy = self.has_aux, self._precision, on_replicas, arrays.groups, arrays.sums
        function = arrays.loss_of(self._loss_fn)
        return Loss(definition, arrays.form, trained, function, *policy), update

    @property
    def losses(self) -> PyTree:
        """The accumulated losses, as a shape."""
        networks = max(1, len(self.loss.groups))
        return jax.ShapeDtypeStruct((networks,), jnp.result_type(float)) if self.keeps_losses else ()

    @property
    def keeps_losses(self) -> bool:
        return self.update is not None and self.update.keeps_losses

    def donates(self, keep: bool) -> tuple[str, ...]:
        # A training step owns its state. `value_and_grad` leaves the arrays to its caller.
        owned = self.update is not None and self.owns_state and not keep
        return ("values", "extra") if owned else ()


MOST = 16  # cached definitions of one module: training and evaluation, different arguments


def _all_parameters(definition: Definition, trained: tuple[int, ...]) -> bool:
    """Whether exactly the parameters are trained: these are what replicas cast."""
    if not isinstance(definition, NNXDefinition):
        return False
    return trained == tuple(i for i, kind in enumerate(definition.kinds) if kind == "parameter")


class ReplicaWork:
    def __init__(
        self, objective: Objective, world: World, state: EngineState, backend_name: str, programs: Programs
    ):
        self.objective, self._world, self._state = objective, world, state
        self._backend, self.programs = backend(backend_name), programs

    def bring(self, args: tuple, kwargs: dict[str, Any]) -> LocalRows:
        return take(args, kwargs, self._world)

    def shapes(self, args: tuple, kwargs: dict[str, Any]) -> LocalRows:
        arrays, statics, form = separate((args, kwargs))
        # `eval_shape` returns arrays only; the static parts of the rows come out through this list.
        rows: list[LocalRows] = []

        def bring(arrays: list) -> list:
            args, kwargs = combine(arrays, statics, form)
            rows.append(take(args, kwargs, self._world))
            return separate(rows[0].batch)[0]

        stacks = jax.eval_shape(bring, [shape_of(x) for x in arrays])
        shapes = [shape_of(x, self._world.local.stacked) for x in stacks]
        return dataclasses.replace(rows[0], batch=combine(shapes, *separate(rows[0].batch)[1:]))

    def program(self, arrays: Arrays, batch: LocalRows, agreed: Agreement, keep: bool) -> tuple[Program, Any]:
        objective = self.objective
        objective.prepare(arrays)
        stacks, statics, form = separate(batch.batch)
        plan = ReplicaPlan(
            objective.loss,
            statics,
            form,
            agreed.kinds,
            agreed.divisor,
            agreed.source,
            None if keep else self._state.hook,
            self._world.everywhere,
            self._backend,
            None if keep else objective.update,
            objective.keeps_losses,
        )
        donated = () if objective.update is None or not objective.owns_state else ("replica_state",)
        donate, options = (*objective.donates(keep), *donated), compiler_options(self._world.local.devices)
        return self.programs(plan, donate, options), self._world.stacked(stacks)

    def first_replica_state(self, trained: list) -> ReplicaState:
        local = self._world.local

        def on_replicas(x: Any) -> jax.Array:
            return jax.device_put(jnp.broadcast_to(x, (local.N, *jnp.shape(x))), local.stacked)

        return ReplicaState(
            (), self._world.stacked(jax.tree.map(on_replicas, self._state.hook.init(trained)))
        )

    def replica_state_like(self, trained: list, adds: bool) -> ReplicaState:
        hook = jax.eval_shape(self._state.hook.init, trained)
        losses = self.objective.losses if adds else ()
        return ReplicaState(self._stacks(trained if adds else ()), self._stacks(hook), self._stacks(losses))

    def _stacks(self, tree: PyTree) -> PyTree:
        everywhere = self._world.everywhere
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((everywhere.N, *x.shape), x.dtype, sharding=everywhere.stacked),
            tree,
        )

    def read(self, done: StepResult, agreed: Agreement, batch: LocalRows) -> tuple[jax.Array, PyTree, PyTree]:
        aux: PyTree = ()
        if self.objective.has_aux and batch.sizes:  # inside of join this rank may have no rows left
            target = None if is_staged() else self._world.local.output_device
            aux = assemble(outputs(done.aux, agreed.active, batch, self._world), target)
        return self._loss(done, agreed), aux, self._changes(done, agreed)

    def _loss(self, done: StepResult, agreed: Agreement) -> jax.Array:
        world = self._world
        if all(jnp.ndim(x) == 0 for x in jax.tree.leaves(done.loss)):
            return world.local_shared(done.loss)
        # While gradients are kept nothing is sent, so this is the mean over the process's own replicas.
        local_active = self._local_active(agreed)
        if not local_active:  # inside of join
            return jax.tree.map(lambda x: jnp.zeros((), x.dtype), done.loss)
        return jax.tree.map(lambda x: jnp.mean(x[jnp.array(local_active)]), world.local_stacked(done.loss))

    def _changes(self, done: StepResult, agreed: Agreement) -> PyTree:
        """Return the sums of all replicas, and one's buffers.

        These are the source's, or those in this process's first replica with rows.
        """
        world = self._world
        sums = world.local_shared(done.sums or {})
        if agreed.source is not None:
            return world.local_shared(done.changes) | sums
        local_active = self._local_active(agreed)
        if not local_active:
            return sums
        first, local = local_active[0], world.local_stacked(done.changes)
        if is_staged():
            return jax.tree.map(lambda x: x[first], local) | sums
        placed = world.local.replicated
        return jax.tree.map(lambda x: jax.device_put(entry_of(x, first), placed), local) | sums

    def _local_active(self, agreed: Agreement) -> list[int]:
        first = self._world.first
        return [i for i in range(self._world.local.N) if agreed.kinds[first + i] is not None]


class Whole(NamedTuple):
    arrays: list
    statics: tuple[Static | None, ...]
    form: TreeDef


class WholeBatch:
    """A batch that goes to the devices as one; a DataParallel splits it in the program."""

    def __init__(self, placement: Placement | None):
        self.placement = placement
        self._send = sender(placement, checked=True) if placement is not None else lambda batch: batch

    def bring(self, args: tuple, kwargs: dict[str, Any]) -> Whole:
        if self.placement is not None and is_staged():
            return self._constrained(args, kwargs)
        return Whole(*separate(self._send((args, kwargs))))

    def _constrained(self, args: tuple, kwargs: dict[str, Any]) -> Whole:
        """Return traced arrays with the shardings of sent ones, so that the program is the same."""
        arrays, statics, form = separate((args, kwargs))
        marks = array_marks((args, kwargs))
        placed = [
            jax.lax.with_sharding_constraint(x, self._where(x, mark))
            for x, mark in zip(arrays, marks, strict=True)
        ]
        return Whole(placed, statics, form)

    def shapes(self, args: tuple, kwargs: dict[str, Any]) -> Whole:
        arrays, statics, form = separate((args, kwargs))
        marks = array_marks((args, kwargs))
        shapes = [shape_of(x, self._where(x, mark)) for x, mark in zip(arrays, marks, strict=True)]
        return Whole(shapes, statics, form)

    def _where(self, x: Any, mark: bool) -> Sharding | None:
        if self.placement is None:
            return sharding_of(x)
        return self.placement.replicated if mark else over_devices(x, self.placement)

    def first_replica_state(self, trained: list) -> ReplicaState:
        del trained
        return ReplicaState()

    def replica_state_like(self, trained: list, adds: bool) -> ReplicaState:
        return ReplicaState([shape_of(x, x.sharding) for x in trained] if adds else ())

    def read(self, done: StepResult, agreed: Agreement, batch: Whole) -> tuple[jax.Array, PyTree, PyTree]:
        del agreed, batch
        return done.loss, done.aux, done.changes


class BatchWork(WholeBatch):
    """One loss of the complete batch, of a plain module or a DataParallel."""

    def __init__(self, objective: Objective, placement: Placement | None, programs: Programs):
        super().__init__(placement)
        self.objective, self.programs = objective, programs

    def program(self, arrays: Arrays, batch: Whole, agreed: Agreement, keep: bool) -> tuple[Program, Any]:
        del agreed
        objective = self.objective
        objective.prepare(arrays)
        update = None if keep else objective.update
        plan = BatchPlan(objective.loss, batch.statics, batch.form, update, objective.keeps_losses)
        donate = ("replica_state",) if keep and objective.owns_state else objective.donates(keep)
        options = compiler_options(() if self.placement is None else self.placement.devices)
        return self.programs(plan, donate, options), batch.arrays

    def replica_state_like(self, trained: list, adds: bool) -> ReplicaState:
        losses = self.objective.losses if adds else ()
        everywhere = _replicated_like(trained[0].sharding) if trained else None
        return (
            super()
            .replica_state_like(trained, adds)
            ._replace(losses=jax.tree.map(lambda x: shape_of(x, everywhere), losses))
        )


def _replicated_like(sharding: Sharding | None) -> Sharding | None:
    if not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec())


def placement_of(net: nnx.Module) -> Placement | None:
    """Return the placement of a plain module's or a DataParallel's arrays; None leaves them in place."""
    if isinstance(net, DataParallel) and net.placement.devices:
        return net.placement
    return None
