"""program: a function on every replica's own rows, all replicas in one compiled program.

torch starts a thread, or a process, for each replica. Here one program is compiled for all devices. When
replicas have different numbers of rows, `padding` makes one program for all of them if it can. Otherwise
there is one branch for each number that occurs, and every device takes its own. Either way padding reaches
nothing, and no mask has to reach BatchNorm, a loss inside of forward, or anything else that looks at more
than one row (docs/semantics.md rows 15, 75). What the replicas say to each other they say behind the
branches, where every device passes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from .._devices import devices as _devices
from .._tree import is_array, paths
from .._typing import PyTree, Shape, TreeDef
from .._upstream import ClosedJaxpr, jaxpr_as_fun
from ..errors import GatherError, GatherTypeError
from .backends import Backend
from .convolution_in_branch import for_branch
from .lift import communicates, switch, traced, zeros
from .padding import Padded, Plan, planned
from .placement import Placement
from .shards import combine, crop, separate

Kind = tuple[Shape, ...]
"""The shapes of one replica's pieces; replicas of one kind share a branch."""


class Local(NamedTuple):
    """What one replica makes of its rows.

    Attributes:
      outputs: its own, of any shapes.
      terms: its terms of sums over all replicas, of the same shapes on each; a replica without rows adds
        zeros.
      changes: shared values that it changed; those of one replica, the source, are kept.
    """

    outputs: PyTree
    terms: PyTree
    changes: PyTree


class Replica(Protocol):
    """`replica(shared, own, i, args, kwargs)` runs on replica i, on its own rows; i is None for one alone."""

    def __call__(
        self, shared: PyTree, replica_state: PyTree, index: jax.Array | None, args: tuple, kwargs: dict, /
    ) -> Local: ...


@dataclasses.dataclass(frozen=True)
class Differentiated:
    """A replica with gradients of its own, which stand among its terms.

    Attributes:
      forward: a replica; among its terms is the "objective", one number, which goes no further.
      parameters: the leaves of the shared values that get gradients.
    """

    forward: Replica
    parameters: tuple[int, ...]

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
    """What `local` makes of the leaves, with the gradients in place of the objective."""

    def objective(moved: list[jax.Array]) -> tuple[jax.Array, Local]:
        full = list(leaves)
        for i, leaf in zip(parameters, moved, strict=True):
            full[i] = leaf
        value = local(full)
        return value.terms["objective"], value

    (_, value), gradients = jax.value_and_grad(objective, has_aux=True)([leaves[i] for i in parameters])
    terms = {name: term for name, term in value.terms.items() if name != "objective"}
    return value._replace(terms=terms | {"gradients": gradients})


class Finish(Protocol):
    """`finish(i, shared, own, local) -> (shared, own)`, on every device, behind the branches.

    The only place where replicas meet. The shared tree that it returns must be equal on all devices.
    """

    def __call__(
        self, index: jax.Array, shared: PyTree, replica_state: PyTree, local: Local, /
    ) -> tuple[PyTree, PyTree]: ...


class RunResult(NamedTuple):
    """Attributes:
    outputs: the replicas' outputs, every leaf stacked to [N, ...] and filled up to the largest.
    shapes: for every leaf, its true shape on each replica that got rows, in order.
    shared: what `finish` returned, equal on all devices.
    own: what `finish` returned for each device, stacked to [N, ...].
    """

    outputs: PyTree
    shapes: tuple[tuple[Shape, ...], ...]
    shared: PyTree
    replica_state: PyTree


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
    """Runs `replica` on every device that has rows, then `finish` on every device. Traced under `jax.jit`.

    Args:
      shared: values that all devices hold.
      batch: arguments and keyword arguments; arrays [N, *piece], other leaves as they are.
      kinds: for each of the N devices the true shapes of its pieces, or None if it has no rows.
      own: values of each device's own, stacked to [N, ...].
      source: the replica, one with rows, whose changes are kept; on replicas of another kind they are zeros.
    """
    # torch.chunk gives at most three kinds: full pieces, a shorter last one, and devices without rows.
    order = list(dict.fromkeys(kind for kind in kinds if kind is not None))
    stacks, statics, treedef = separate(batch)
    states, state_form = jax.tree.flatten(replica_state)
    k = sum(kind is not None for kind in kinds)
    uneven = len(set(kinds)) > 1
    layouts: list[tuple[Any, tuple[tuple[Shape, ...], ...], Any]] = []

    def body(index: jax.Array, shared: PyTree, rows: list[jax.Array]) -> tuple[list[jax.Array], PyTree]:
        # The function is traced here, inside of the backend, because what is traced holds its mesh.
        pieces, state = rows[: len(stacks)], jax.tree.unflatten(state_form, rows[len(stacks) :])
        data = (index, shared, state, pieces)

        def branches_of(replica: Replica) -> list[_Branch]:
            def one(index: jax.Array, shared: PyTree, state: PyTree, cropped: list[jax.Array]) -> Local:
                args, kwargs = combine(cropped, statics, treedef)
                local = replica(shared, state, None if k == 1 else index, args, kwargs)
                check_outputs(local.outputs)
                return local

            return [
                _trace(one, data, kind, placement, kinds.index(kind), k if uneven else None) for kind in order
            ]

        table = [len(order) if kind is None else order.index(kind) for kind in kinds]
        platform, united = placement.devices[0].platform, None
        if len(order) > 1:
            united = _united(branches_of, replica, some_idle=None in kinds)
        branches = united.branches if united is not None else branches_of(replica)
        shapes = _output_shapes(branches, table)
        local = _choose(united, branches, table, source, shapes, data, k, platform)
        shared, state = finish(index, shared, state, local)
        state_leaves, form = jax.tree.flatten(state)
        layouts.append((jax.tree.structure(branches[0].local.outputs), shapes, form))
        return jax.tree.leaves(local.outputs) + state_leaves, shared

    rows, shared = backend(body, placement, shared, stacks + states)
    # The last one: some transformations of JAX trace the body more than once.
    outputs_form, shapes, form = layouts[-1]
    n = len(shapes)
    return RunResult(
        jax.tree.unflatten(outputs_form, rows[:n]), shapes, shared, jax.tree.unflatten(form, rows[n:])
    )


@dataclasses.dataclass(frozen=True)
class _Branch:
    """The function traced for one kind of pieces, which it takes without padding; `local` holds shapes."""

    jaxpr: ClosedJaxpr
    local: Local
    kind: Kind

    def __call__(self, flat: list[jax.Array]) -> list[jax.Array]:
        """What it returns for operands of which the last are the pieces, with their padding."""
        first = len(flat) - len(self.kind)
        pieces = [crop(x, shape) for x, shape in zip(flat[first:], self.kind, strict=True)]
        return list(jaxpr_as_fun(self.jaxpr)(*flat[:first], *pieces))


def _trace(
    one: Callable[..., Local], data: PyTree, kind: Kind, placement: Placement, replica: int, k: int | None
) -> _Branch:
    *context, pieces = data
    data = (*context, [crop(x, shape) for x, shape in zip(pieces, kind, strict=True)])
    try:
        # To a jaxpr, and not straight into the switch: shapes of outputs and collectives must be known first.
        jaxpr, local = jax.make_jaxpr(one, return_shape=True)(*data)
        if k is not None and communicates(jaxpr):
            jaxpr = traced(one, data, k)
    except Exception as error:
        device = _devices.name(placement.devices[replica])
        error.add_note(
            f"Caught {type(error).__name__} in replica {replica} on device {device}"
            " (replicas with the same number of rows are traced once)."
        )
        raise
    return _Branch(jaxpr, local, kind)


def check_outputs(outputs: PyTree, function: str = "parallel_apply") -> None:
    """Raises GatherTypeError for a leaf that no program can return."""
    for path, leaf in jax.tree.leaves_with_path(outputs):
        if not is_array(leaf):
            raise GatherTypeError(
                f"{function}: outputs{jax.tree_util.keystr(path)} is of type {type(leaf).__name__} "
                f"({leaf!r:.40}), which cannot be gathered. Return arrays, None, or containers of these."
            )


def _output_shapes(branches: list[_Branch], table: list[int]) -> tuple[tuple[Shape, ...], ...]:
    first = branches[0].local.outputs
    used = [(i, branches[j].local.outputs) for i, j in enumerate(table) if j < len(branches)]
    form: TreeDef = jax.tree.structure(first)
    for i, other in used:
        if (its := jax.tree.structure(other)) != form:
            raise GatherError(
                f"parallel_apply: replica {used[0][0]} returned {form} and replica {i} returned {its}; all "
                "replicas must return the same structure. Does forward depend on the number of rows?"
            )
        for a, b, name in zip(
            jax.tree.leaves(first), jax.tree.leaves(other), paths(first, "outputs"), strict=True
        ):
            if (a.ndim, a.dtype) != (b.ndim, b.dtype):
                raise GatherError(
                    f"parallel_apply: {name} is {a.dtype} with {a.ndim} axes on replica {used[0][0]} and "
                    f"{b.dtype} with {b.ndim} axes on replica {i}; all replicas must return the same kind of "
                    "array."
                )
    return tuple(zip(*([x.shape for x in jax.tree.leaves(other)] for _, other in used), strict=True))


def _choose(
    united: _United | None,
    branches: list[_Branch],
    table: list[int],
    source: int,
    shapes: tuple[tuple[Shape, ...], ...],
    data: PyTree,
    k: int,
    platform: str,
) -> Local:
    """One device's part: take its branch, and fill up what it returns to the shapes of the largest."""
    # A switch wants equal shapes from all branches. Only the source's branch returns its changes; the others
    # return zeros in their place, because a changed buffer may have the batch's shape.
    some_idle = len(branches) in table
    if platform == "cpu" and len(branches) + some_idle > 1:
        # XLA's CPU compiler has no fast convolution inside of a branch.
        if united is None:
            branches = [dataclasses.replace(b, jaxpr=for_branch(b.jaxpr)) for b in branches]
        elif some_idle:
            united = dataclasses.replace(united, plan=united.plan.rewritten(for_branch))
    source_branch = branches[table[source]]
    like = source_branch.local if united is None else united.local(data)
    outputs, form = jax.tree.flatten(like.outputs)
    reduced, reduced_form = jax.tree.flatten((like.terms, like.changes))
    n, m = len(outputs), len(jax.tree.leaves(like.terms))
    # At least 1: XLA's partitioner fails on arrays without elements at a shard_map's border.
    common = [tuple(max(1, *sizes) for sizes in zip(*s, strict=True)) for s in shapes]

    def take(branch: _Branch, flat: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        out = branch(flat)
        rows = [_pad(x, shape) for x, shape in zip(out[:n], common, strict=True)]
        if branch is source_branch:
            return rows, list(out[n:])
        return rows, [*out[n : n + m], *(zeros(a.shape, a.dtype) for a in reduced[m:])]

    def idle(flat: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        del flat
        rows = [zeros(shape, a.dtype) for shape, a in zip(common, outputs, strict=True)]
        return rows, [zeros(a.shape, a.dtype) for a in reduced]

    flat = jax.tree.leaves(data)
    choice = jnp.array(table)[data[0]]
    choices: list[Callable[..., Any]] = [functools.partial(take, branch) for branch in branches]
    if united is not None:
        # A device without rows takes the other branch, so here it may ask for any number of rows.
        kind, choice = jnp.minimum(choice, len(branches) - 1), choice // len(branches)
        padded = united

        def together(flat: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            local = padded(kind, flat)
            rows = [_pad(x, shape) for x, shape in zip(jax.tree.leaves(local.outputs), common, strict=True)]
            return rows, jax.tree.leaves((local.terms, local.changes))

        choices = [together]
    choices += [idle] * some_idle
    if len(choices) == 1:
        rows, others = choices[0](flat)
    elif any(communicates(branch.jaxpr) for branch in branches):
        programs = [jax.make_jaxpr(take)(flat) for take in choices]
        arrays = switch(choice, programs, flat, k, idle=some_idle)
        rows, others = arrays[:n], arrays[n:]
    else:
        rows, others = jax.lax.switch(choice, choices, flat)
    terms, changes = jax.tree.unflatten(reduced_form, others)
    return Local(jax.tree.unflatten(form, rows), terms, changes)


@dataclasses.dataclass(frozen=True)
class _United:
    """All branches as one program.

    Attributes:
      branches: of the forward pass, if there is a backward one.
      parameters: of a replica that is differentiated.
    """

    plan: Plan
    branches: list[_Branch]
    parameters: tuple[int, ...] | None

    def __call__(self, kind: jax.Array, flat: list[jax.Array]) -> Local:
        """What a replica makes of `flat`, of which the last are the pieces with their padding."""
        form = jax.tree.structure(self.branches[0].local)

        def local(flat: list[jax.Array]) -> Local:
            return jax.tree.unflatten(form, Padded(self.plan)(kind, flat))

        if self.parameters is None:
            return local(flat)
        # The number of the replica stands before the shared values.
        return differentiated(local, flat, [1 + i for i in self.parameters])

    def local(self, data: PyTree) -> Local:
        """The shapes of what it returns."""
        return jax.eval_shape(self, jnp.int32(0), jax.tree.leaves(data))


def _united(
    branches_of: Callable[[Replica], list[_Branch]], replica: Replica, some_idle: bool
) -> _United | None:
    """One program for all branches, if there provably is one."""
    parameters = replica.parameters if isinstance(replica, Differentiated) else None
    branches = branches_of(replica.forward if isinstance(replica, Differentiated) else replica)
    if some_idle and any(communicates(branch.jaxpr) for branch in branches):
        return None  # a device without rows adds zeros to every sum, which is what `lift` is for
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
