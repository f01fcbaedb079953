"""program: a function on every replica's own rows, all replicas in one compiled program.

Padding of replicas with fewer rows has no effect, so BatchNorm, or a loss inside of forward, needs no mask
(docs/semantics.md rows 15, 75).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._typing import PyTree, Shape
from .backends import Backend
from .branch import Branch, Kind, Local, check_outputs, output_shapes, run_branch, trace_branch
from .convolution_in_branch import for_branch
from .lift import communicates, switch, zeros
from .padding import Padded, Plan, planned
from .placement import Placement
from .replicated import array_marks, plain_arguments
from .shards import combine, separate

Replica = Callable[[PyTree, PyTree, jax.Array | None, tuple, dict], Local]
"""`replica(shared, replica_state, i, args, kwargs)` runs replica i on its rows; i is None if alone."""
Finish = Callable[[jax.Array, PyTree, PyTree, Local, Callable[[PyTree], Local]], tuple[PyTree, PyTree]]
"""`finish(i, shared, replica_state, local, again) -> (shared, replica_state)`, on every device, after the
branches: the only place where replicas communicate. The shared tree that it returns must be equal on all
devices. `again(shared)` runs the replica once more on the same rows, with other shared values."""


@dataclasses.dataclass(frozen=True)
class Differentiated:
    """A replica that returns its own gradients among its terms."""

    forward: Replica  # its terms include the "objective", one number, which is only differentiated
    parameters: tuple[int, ...]  # the leaves of the shared values that get gradients

    def __call__(
        self, shared: PyTree, replica_state: PyTree, index: jax.Array | None, args: tuple, kwargs: dict, /
    ) -> Local:
        leaves, form = jax.tree.flatten(shared)

        def local(leaves: list[jax.Array]) -> Local:
            return self.forward(jax.tree.unflatten(form, leaves), replica_state, index, args, kwargs)

        return differentiated(local, leaves, self.parameters)


def differentiated(
    local: Callable[[list[jax.Array]], Local], leaves: list[jax.Array], parameters: Sequence[int]
) -> Local:
    """Return the results of `local`, with gradients in place of the objective."""

    def objective(moved: list[jax.Array]) -> tuple[jax.Array, Local]:
        full = list(leaves)
        for i, leaf in zip(parameters, moved, strict=True):
            full[i] = leaf
        value = local(full)
        return value.terms["objective"], value

    (_, value), gradients = jax.value_and_grad(objective, has_aux=True)([leaves[i] for i in parameters])
    terms = {name: term for name, term in value.terms.items() if name != "objective"}
    return value._replace(terms=terms | {"gradients": gradients})


class RunResult(NamedTuple):
    outputs: PyTree  # every leaf stacked to [N, ...] and padded to the largest
    shapes: tuple[tuple[Shape, ...], ...]  # each leaf's true shapes on the replicas with rows
    shared: PyTree  # the shared tree that `finish` returned, equal on all devices
    replica_state: PyTree  # the state that `finish` returned for each device, stacked to [N, ...]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _OutputShapes:
    shapes: tuple[tuple[Shape, ...], ...]


class _Split:
    def __init__(self, kinds: Sequence[Kind | None], marks: Sequence[bool], source: int):
        # torch.chunk gives at most three kinds: full pieces, a shorter last one, and devices without rows.
        self.kinds, self.marks, self.source = kinds, marks, source
        self.order = list(dict.fromkeys(kind for kind in kinds if kind is not None))
        self.table = [len(self.order) if kind is None else self.order.index(kind) for kind in kinds]
        self.k = sum(kind is not None for kind in kinds)  # replicas with rows
        self.uneven = len(set(kinds)) > 1
        self.some_idle = None in kinds


def run(
    replica: Replica,
    finish: Finish,
    backend: Backend,
    placement: Placement,
    shared: PyTree,
    batch: tuple[PyTree, PyTree],
    kinds: Sequence[Kind | None],
    replica_state: PyTree = (),
    source: int = 0,
) -> RunResult:
    """Run `replica` on every device that has rows, then `finish` on every device. Traced under `jax.jit`.

    Arrays of the batch are [N, *piece], of the replica state [N, ...]. `source`, which has rows, is the
    replica whose changes are kept; replicas of a different kind give zeros.
    """
    split = _Split(kinds, array_marks(batch), source)
    stacks, statics, treedef = separate(batch)
    states, state_form = jax.tree.flatten(replica_state)

    def body(index: jax.Array, shared: PyTree, rows: list[jax.Array]) -> tuple[PyTree, PyTree]:
        # The function is traced here, inside of the backend, because what is traced holds its mesh.
        pieces, state = rows[: len(stacks)], jax.tree.unflatten(state_form, rows[len(stacks) :])
        platform = placement.devices[0].platform

        def one_of(replica: Replica) -> Callable[..., Local]:
            def one(index: jax.Array, shared: PyTree, state: PyTree, cropped: list[jax.Array]) -> Local:
                number = None if split.k == 1 else index
                with plain_arguments(combine(cropped, statics, treedef), number) as (args, kwargs):
                    local = replica(shared, state, number, args, kwargs)
                check_outputs(local.outputs)
                return local

            return one

        def branches_of(data: PyTree, replica: Replica) -> list[Branch]:
            one, k = one_of(replica), split.k
            return [
                trace_branch(one, data, kind, placement, split.marks, kinds.index(kind), k)
                for kind in split.order
            ]

        def local_of(shared: PyTree) -> tuple[Local, tuple[tuple[Shape, ...], ...]]:
            data = (index, shared, state, pieces)
            if not split.uneven:
                local = run_branch(one_of(replica), data, split.order[0], placement, split.marks)
                return _even(local, split.k)
            return _local(functools.partial(branches_of, data), replica, split, data, platform)

        local, shapes = local_of(shared)
        shared, next_state = finish(index, shared, state, local, lambda other: local_of(other)[0])
        # JAX's transformations may trace this function more than once. Shapes in its result belong to the
        # trace that is used; shapes collected on the side might not.
        return (local.outputs, _OutputShapes(shapes), next_state), shared

    (outputs, output_shapes, replica_state), shared = backend(body, placement, shared, stacks + states)
    return RunResult(outputs, output_shapes.shapes, shared, replica_state)


Flat = tuple[list[jax.Array], list[jax.Array]]  # a switch's results: the padded outputs; terms and changes


class _Form:
    def __init__(self, local: Local, shapes: tuple[tuple[Shape, ...], ...]):
        self.outputs, self._outputs_form = jax.tree.flatten(local.outputs)
        self.others, self._others_form = jax.tree.flatten((local.terms, local.changes))
        self.terms = len(jax.tree.leaves(local.terms))
        # At least 1: XLA's partitioner fails on arrays without elements at a shard_map's border.
        self._padded = [tuple(max(1, *sizes) for sizes in zip(*s, strict=True)) for s in shapes]

    def pad(self, outputs: Sequence[jax.Array]) -> list[jax.Array]:
        return [_pad(x, shape) for x, shape in zip(outputs, self._padded, strict=True)]

    def idle(self, flat: list[jax.Array]) -> Flat:
        del flat
        rows = [zeros(shape, a.dtype) for shape, a in zip(self._padded, self.outputs, strict=True)]
        return rows, [zeros(a.shape, a.dtype) for a in self.others]

    def local(self, flat: Flat) -> Local:
        terms, changes = jax.tree.unflatten(self._others_form, flat[1])
        return Local(jax.tree.unflatten(self._outputs_form, flat[0]), terms, changes)


def _even(local: Local, k: int) -> tuple[Local, tuple[tuple[Shape, ...], ...]]:
    """Return the results of a replica whose k - 1 others have as many rows, padded, and the true shapes."""
    shapes = tuple((x.shape,) * k for x in jax.tree.leaves(local.outputs))
    form = _Form(local, shapes)
    return form.local((form.pad(form.outputs), form.others)), shapes


def _local(
    branches_of: Callable[[Replica], list[Branch]],
    replica: Replica,
    split: _Split,
    data: PyTree,
    platform: str,
) -> tuple[Local, tuple[tuple[Shape, ...], ...]]:
    """Run one device's part with the cheapest of three strategies; return its results and the true shapes."""
    united = _united(branches_of, replica, split.some_idle) if len(split.order) > 1 else None
    branches = branches_of(replica) if united is None else united.branches
    shapes = output_shapes(branches, split.table)
    if united is not None:
        return _padded(united, split, shapes, data, platform), shapes
    return _switched(branches, split, shapes, data, platform), shapes


def _padded(
    united: _United, split: _Split, shapes: tuple[tuple[Shape, ...], ...], data: PyTree, platform: str
) -> Local:
    """One masked program for every number of rows; a switch only if there are devices without rows."""
    if split.some_idle and platform == "cpu":  # see `_switched`
        united = dataclasses.replace(united, plan=united.plan.rewritten(for_branch))
    form, flat = _Form(united.local(data), shapes), jax.tree.leaves(data)
    choice, n = jnp.array(split.table)[data[0]], len(split.order)
    # A device without rows takes the other branch, so in this one it may use any number of rows.
    kind = jnp.minimum(choice, n - 1)

    def together(flat: list[jax.Array]) -> Flat:
        local = united(kind, flat)
        return form.pad(jax.tree.leaves(local.outputs)), jax.tree.leaves((local.terms, local.changes))

    if not split.some_idle:
        return form.local(together(flat))
    return form.local(jax.lax.switch(choice // n, [together, form.idle], flat))


def _switched(
    branches: list[Branch], split: _Split, shapes: tuple[tuple[Shape, ...], ...], data: PyTree, platform: str
) -> Local:
    """A branch for each number of rows, of which every device takes its own."""
    if platform == "cpu":  # XLA's CPU compiler has no fast convolution inside of a branch
        branches = [dataclasses.replace(b, jaxpr=for_branch(b.jaxpr)) for b in branches]
    source = branches[split.table[split.source]]
    form, flat = _Form(source.local, shapes), jax.tree.leaves(data)
    n, m = len(form.outputs), len(form.outputs) + form.terms

    def take(branch: Branch, flat: list[jax.Array]) -> Flat:
        # A switch requires equal shapes from all branches. Only the source's branch returns its changes; the
        # others return zeros instead, because a changed buffer may have the batch's shape.
        out = branch(flat)
        changes = (
            out[m:] if branch is source else [zeros(a.shape, a.dtype) for a in form.others[form.terms :]]
        )
        return form.pad(out[:n]), [*out[n:m], *changes]

    choices: list[Callable[..., Any]] = [functools.partial(take, branch) for branch in branches]
    choices += [form.idle] * split.some_idle
    choice = jnp.array(split.table)[data[0]]
    if not any(communicates(branch.jaxpr) for branch in branches):
        return form.local(jax.lax.switch(choice, choices, flat))
    # A collective inside a branch would wait for devices that take a different one, so `lift` cuts it out.
    programs = [jax.make_jaxpr(choose)(flat) for choose in choices]
    arrays = switch(choice, programs, flat, split.k, idle=split.some_idle)
    return form.local((arrays[:n], arrays[n:]))


@dataclasses.dataclass(frozen=True)
class _United:
    """All branches as one program; for a differentiated replica, the branches of its forward pass."""

    plan: Plan
    branches: list[Branch]
    parameters: tuple[int, ...] | None

    def __call__(self, kind: jax.Array, flat: list[jax.Array]) -> Local:
        form = jax.tree.structure(self.branches[0].local)

        def local(flat: list[jax.Array]) -> Local:
            return jax.tree.unflatten(form, Padded(self.plan)(kind, flat))

        if self.parameters is None:
            return local(flat)
        # The first operand is the number of the replica, followed by the shared values.
        # Padded first and differentiated afterwards: a traced backward pass sums over the rows in every
        # layer, so each sum would need a mask and a proof of its own.
        return differentiated(local, flat, [1 + i for i in self.parameters])

    def local(self, data: PyTree) -> Local:
        return jax.eval_shape(self, jnp.int32(0), jax.tree.leaves(data))


def _united(
    branches_of: Callable[[Replica], list[Branch]], replica: Replica, some_idle: bool
) -> _United | None:
    """Return one program for all branches, or None if it is not proven to exist."""
    parameters = replica.parameters if isinstance(replica, Differentiated) else None
    branches = branches_of(replica.forward if isinstance(replica, Differentiated) else replica)
    if some_idle and any(communicates(branch.jaxpr) for branch in branches):
        return None  # a device without rows adds zeros to every sum, which is what `lift` is for
    # Terms are added over the replicas, so they have no rows. An output of several blocks has padding in each
    # of them, where `gather`, which slices it off at the end, would not find it.
    plan, n = planned([branch.jaxpr for branch in branches]), len(jax.tree.leaves(branches[0].local.outputs))
    if (
        plan is None
        or any(plan.result_rows[n:])
        or any(rows and rows.outer > 1 for rows in plan.result_rows[:n])
    ):
        return None
    return _United(plan, branches, parameters)


def _pad(x: jax.Array, shape: Shape) -> jax.Array:
    if x.shape == shape:
        return x
    return jnp.pad(x, [(0, want - have) for have, want in zip(x.shape, shape, strict=True)])
