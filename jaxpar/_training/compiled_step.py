"""compiled_step: a loss, its gradients and what follows them, as one compiled program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._parallel import program as _program
from .._parallel.backends import Backend
from .._parallel.branch import Kind, Local
from .._parallel.compiling import begun
from .._parallel.placement import Placement
from .._parallel.program import Differentiated
from .._parallel.reduce import terms_of
from .._parallel.shards import Shards, combine
from .._typing import REPLICA, PyTree, Static, TreeDef
from ..comm_hooks.hook import Bucket, CommHook, Message
from .divided_update import reduced
from .loss import Loss
from .optimizer_calls import Evaluation, mean_with_gradients
from .update import Update
from .world import is_flat

Program = Callable[..., "StepResult"]
"""`program(values, extra, replica_state, batch) -> StepResult`, for the arrays of all processes."""


class ReplicaState(NamedTuple):
    """State that each replica keeps between steps: accumulated gradients and the hook's state."""

    gradients: PyTree = ()
    hook: PyTree = ()
    losses: PyTree = ()  # the accumulated losses, one for each network, if the update needs them


class StepResult(NamedTuple):
    loss: PyTree  # the mean; while gradients are kept, each replica's, stacked to [N, ...]
    aux: PyTree  # on the replicas
    after: PyTree  # the mean gradients, or with an update the module's values; empty while gradients are kept
    changes: PyTree  # of buffers, which no update has written; stacked where not shared
    extra: dict[str, Any]  # the step's other state, after an update
    replica_state: ReplicaState | None  # None where nothing was trained
    sums: PyTree = None  # of metrics, over all replicas, which no update has written


@dataclasses.dataclass(frozen=True)
class ReplicaPlan:
    """A step on replicas, without its arrays: the key and the body of a program."""

    loss: Loss  # of one replica's rows
    statics: tuple[Static | None, ...]  # see `separate`
    form: TreeDef
    kinds: tuple[Kind | None, ...]  # the shapes of each replica's rows, None for one without
    divisor: int  # what the sum of the gradients is divided by
    source: int | None  # the replica whose buffers all get; None: each process keeps its own
    hook: CommHook | None  # how gradients are reduced; None leaves them on their replicas
    placement: Placement
    backend: Backend
    update: Update | None = None
    keeps_losses: bool = False  # whether losses accumulate with the gradients

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.kinds) if kind is not None)

    def __call__(
        self, values: list, extra: dict[str, Any], replica_state: ReplicaState, batch: list
    ) -> StepResult:
        extra, slices = _detached(self.update, extra)
        # Without a source each process keeps its own buffers, and `run` only takes shapes from the replica.
        source = self.active[0] if self.source is None else self.source
        done = _program.run(
            Differentiated(functools.partial(_forward, self), self.loss.parameters),
            functools.partial(_finish, self),
            self.backend,
            self.placement,
            (values, extra),
            combine(batch, self.statics, self.form),
            self.kinds,
            (replica_state, slices),
            source,
        )
        loss, after, changes, extra, sums = done.shared
        extra = _attached(extra, done.replica_state.slices)
        if self.hook is None:
            loss = done.replica_state.loss
        if self.source is None:
            changes = done.replica_state.changes
        aux = Shards(done.outputs, (0,) * len(self.active), done.shapes, self.placement)
        return StepResult(loss, aux, after, changes, extra, done.replica_state.replica_state, sums)


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """A step on a complete batch, without its arrays; without an update the gradients accumulate."""

    loss: Loss
    statics: tuple[Static | None, ...]
    form: TreeDef
    update: Update | None = None
    keeps_losses: bool = False

    def __call__(
        self, values: list, extra: dict[str, Any], replica_state: ReplicaState, batch: list
    ) -> StepResult:
        args, kwargs = combine(batch, self.statics, self.form)
        value = self.loss(values, None, args, kwargs, extra.get("scale"))
        gradients = _sum(replica_state.gradients, value.gradients)
        losses = _losses(self, replica_state, value.loss)
        if self.update is None:
            state = ReplicaState(gradients, (), losses)
            return StepResult(value.loss, value.aux, (), value.changes, {}, state)

        def at(parameters: list) -> PyTree:
            return self.loss.forward(self.loss.with_parameters(values, parameters), None, args, kwargs).loss

        evaluation = Evaluation(_mean_loss(value.loss, losses, self.update.accumulate), at)
        after, extra = self.update(values, extra, gradients, value.changes, evaluation)
        return StepResult(value.loss, value.aux, after, {}, extra, ReplicaState())


def compiled(
    plan: ReplicaPlan | BatchPlan, donate: tuple[str, ...] = (), options: tuple[tuple[str, str], ...] = ()
) -> Program:
    """Compile a plan; `donate` names the arguments whose memory it may reuse, `options` are XLA's."""

    def step(values: list, extra: dict[str, Any], replica_state: ReplicaState, batch: PyTree) -> StepResult:
        # Python runs this line only while JAX traces the step, hence only in calls that compile.
        begun()
        return plan(values, extra, replica_state, batch)

    return jax.jit(step, donate_argnames=donate, compiler_options=dict(options) or None)


def _forward(
    plan: ReplicaPlan,
    shared: tuple[list, PyTree],
    replica_state: tuple[ReplicaState, Slices],
    index: jax.Array | None,
    args: tuple,
    kwargs: dict[str, Any],
) -> Local:
    del replica_state
    values, extra = shared
    # Each replica counts its own rows from zero, and the counts are added to what a metric had.
    zeros = {i: jnp.zeros_like(values[i]) for i in plan.loss.sums}
    values = [zeros.get(i, x) for i, x in enumerate(values)]
    value = plan.loss.forward(values, index, args, kwargs, extra.get("scale"))
    changes = {i: x for i, x in value.changes.items() if i not in zeros}
    sums = {i: value.changes.get(i, zero) for i, zero in zeros.items()}
    terms = {"loss": value.loss, "objective": value.scaled, "sums": sums}
    if plan.source is not None:
        return Local(value.aux, terms, changes)
    # As terms, because `run` returns every replica's terms but only the source's changes.
    return Local(value.aux, {**terms, "changes": changes}, {})


Slices = dict[int, jax.Array]
"""A replica's elements of the optimizer's values, by their positions."""


def _detached(update: Update | None, extra: dict[str, Any]) -> tuple[dict[str, Any], Slices]:
    """Return the state that all replicas have, and the stacks of what they have divided."""
    if update is None or not update.divided:
        return extra, {}
    values = extra["optimizer"]
    slices = {i: values[i] for i, shape in enumerate(update.divided) if shape is not None}
    return {**extra, "optimizer": [None if i in slices else x for i, x in enumerate(values)]}, slices


def _attached(extra: dict[str, Any], slices: Slices) -> dict[str, Any]:
    """The inverse of `_detached`."""
    if not slices:
        return extra
    return {**extra, "optimizer": [slices.get(i, x) for i, x in enumerate(extra["optimizer"])]}


class _LocalResult(NamedTuple):
    loss: PyTree
    changes: PyTree
    replica_state: ReplicaState
    slices: Slices


def _finish(
    plan: ReplicaPlan,
    index: jax.Array,
    shared: tuple[list, PyTree],
    replica_state_and_slices: tuple[ReplicaState, Slices],
    local: Local,
    again: Callable[[PyTree], Local],
) -> tuple[PyTree, _LocalResult]:
    """Combine the replicas, on every device, after the branches of an uneven batch have joined."""
    values, extra = shared
    replica_state, slices = replica_state_and_slices
    loss, gradients = local.terms["loss"], _sum(replica_state.gradients, local.terms["gradients"])
    accumulated = _losses(plan, replica_state, loss)
    if plan.hook is None:
        # Nothing is sent, so buffers are each replica's own.
        state = ReplicaState(gradients, replica_state.hook, accumulated)
        # But metrics, which the user may read between two updates.
        counted = Message(REPLICA, is_flat(plan.placement)).sum(jax.tree.leaves(local.terms["sums"]))
        sums = _added(values, local.terms["sums"], counted)
        return ((), (), {}, {}, sums), _LocalResult(loss, local.terms["changes"], state, slices)
    changes: PyTree = {}
    local_changes, terms = local.terms.get("changes", ()), list[jax.Array]()
    if plan.source is not None:
        terms, rebuild = terms_of(plan.source, local.changes, index)
    # Loss and buffers go with the first sum of the hook: one all-reduce instead of three.
    losses, form = jax.tree.flatten((loss, accumulated))
    counted = jax.tree.leaves(local.terms["sums"])
    # The loss is a mean over the replicas with rows, also where join divides gradients by all replicas.
    means = [x / len(plan.active) for x in losses]
    message = Message(REPLICA, is_flat(plan.placement), [*means, *counted, *terms])
    bucket = Bucket(gradients, plan.divisor, REPLICA, index, message)
    divides = plan.update is not None and plan.update.divided
    reduce = functools.partial(reduced, plan.hook) if divides else plan.hook.reduce
    state, after = reduce(replica_state.hook, bucket)
    others = message.others()
    (loss, accumulated), others = jax.tree.unflatten(form, others[: len(means)]), others[len(means) :]
    sums, terms = _added(values, local.terms["sums"], others[: len(counted)]), others[len(counted) :]
    if plan.source is not None:
        changes = rebuild(terms)
    if plan.update is not None:

        def evaluate(parameters: list) -> tuple[PyTree, list]:
            # Without a loss scale in the extra state.
            terms = again((plan.loss.with_parameters(values, parameters), {})).terms
            return terms["loss"], terms["gradients"]

        def mean(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda x: jax.lax.psum(x, REPLICA) / len(plan.active), tree)

        evaluation = Evaluation(
            _mean_loss(loss, accumulated, plan.update.accumulate), mean_with_gradients(evaluate, mean)
        )
        extra = _attached(extra, slices)
        after, extra = plan.update(values, extra, after, {**changes, **sums}, evaluation)
        extra, slices = _detached(plan.update, extra)
        changes, sums = {}, {}
    state = ReplicaState((), state)
    return (loss, after, changes, extra, sums), _LocalResult((), local_changes, state, slices)


def _added(values: list, counts: dict[int, jax.Array], counted: list[jax.Array]) -> dict[int, jax.Array]:
    totals = jax.tree.unflatten(jax.tree.structure(counts), counted)
    return {i: values[i] + x for i, x in totals.items()}


def _losses(plan: ReplicaPlan | BatchPlan, earlier: ReplicaState, loss: PyTree) -> PyTree:
    """Return the sum of the losses since the last update, one for each network, in the widest float type."""
    if not plan.keeps_losses:
        return ()
    networks = max(1, len(plan.loss.groups))
    losses = jnp.asarray(loss if isinstance(loss, tuple) else [loss] * networks, float)
    return losses + earlier.losses if earlier.gradients else losses


def _mean_loss(loss: PyTree, losses: PyTree, accumulate: int) -> PyTree:
    if isinstance(losses, tuple):  # an empty one: nothing was accumulated
        return loss
    numbers, form = jax.tree.flatten(loss)
    means = [(losses[i] / accumulate).astype(x.dtype) for i, x in enumerate(numbers)]
    return jax.tree.unflatten(form, means)


def _sum(earlier: PyTree, gradients: list) -> list:
    return jax.tree.map(jnp.add, earlier, gradients) if earlier else gradients
