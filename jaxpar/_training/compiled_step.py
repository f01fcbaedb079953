"""gradient: every replica's own loss and gradient, and their mean, as one compiled program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._parallel import program as _program
from .._parallel.backends import Backend
from .._parallel.placement import Placement
from .._parallel.program import Kind, Local
from .._parallel.reduce import terms_of
from .._parallel.shards import Shards
from .._typing import REPLICA, PyTree
from ..comm_hooks.hook import Bucket, CommHook
from ..comm_hooks.message import Message
from .loss import Loss


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is compiled: everything about a step but its arrays.

    Attributes:
      loss: of one replica's rows.
      kinds: for each of the N replicas the shapes of its rows, None for one without.
      divisor: what the sum of the gradients is divided by.
      source: the replica whose buffers all get; None leaves each process its own, as it is without a hook.
      hook: how gradients are reduced; None leaves them on their replicas, to be added to.
      then: `then(values, extra, gradients, changes) -> (values, extra)` in the same program, if anything.
    """

    loss: Loss
    kinds: tuple[Kind | None, ...]
    divisor: int
    source: int | None
    hook: CommHook | None
    placement: Placement
    backend: Backend
    then: Callable[..., Any] | None = None

    @property
    def active(self) -> tuple[int, ...]:
        """The replicas that have rows."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind is not None)


class Own(NamedTuple):
    """What each replica keeps for itself between steps: gradients to add to, the hook's state."""

    gradients: PyTree = ()
    hook: PyTree = ()


class Step(NamedTuple):
    """What comes out of a program. Losses and changes that were not shared are stacked to [N, ...]."""

    loss: jax.Array
    aux: Shards
    gradients: PyTree
    changes: PyTree
    extra: dict[str, Any]
    own: Own


@functools.lru_cache(maxsize=1024)
def compiled(plan: Plan, donate: tuple[str, ...] = ()) -> Any:
    """`compiled(plan)(values, extra, own, batch) -> Step`, for global arrays."""

    def step(values: list, extra: dict[str, Any], own: Own, batch: tuple[PyTree, PyTree]) -> Step:
        return _step(plan, values, extra, own, batch)

    return jax.jit(step, donate_argnames=donate)


def _step(plan: Plan, values: list, extra: dict[str, Any], own: Own, batch: tuple[PyTree, PyTree]) -> Step:
    replica = functools.partial(_replica, plan)
    finish = functools.partial(_finish, plan)
    source = plan.active[0] if plan.source is None else plan.source
    done = _program.run(
        replica, finish, plan.backend, plan.placement, (values, extra), batch, plan.kinds, own, source
    )
    loss, gradients, changes, extra = done.shared
    if plan.hook is None:
        loss = done.own.loss
    if plan.source is None:
        changes = done.own.changes
    aux = Shards(done.outputs, (0,) * len(plan.active), done.shapes, plan.placement)
    return Step(loss, aux, gradients, changes, extra, done.own.kept)


def _replica(
    plan: Plan, shared: tuple[list, PyTree], own: Own, index: jax.Array | None, args: tuple, kwargs: dict
) -> Local:
    del own
    values, extra = shared
    value = plan.loss(values, index, args, kwargs, extra.get("scale"))
    terms = {"loss": value.loss, "gradients": value.gradients}
    if plan.source is not None:
        return Local(value.aux, terms, value.changes)
    return Local(value.aux, {**terms, "changes": value.changes}, {})


class _Kept(NamedTuple):
    loss: PyTree
    changes: PyTree
    kept: Own


def _finish(
    plan: Plan, index: jax.Array, shared: tuple[list, PyTree], own: Own, local: Local
) -> tuple[PyTree, _Kept]:
    values, extra = shared
    loss, gradients = local.terms["loss"], local.terms["gradients"]
    if own.gradients:
        gradients = jax.tree.map(jnp.add, own.gradients, gradients)
    if plan.hook is None:
        # Nothing is sent, so buffers are each replica's own.
        return ((), (), {}, extra), _Kept(loss, local.terms["changes"], Own(gradients, own.hook))
    changes: PyTree = {}
    mine, terms = local.terms.get("changes", ()), list[jax.Array]()
    if plan.source is not None:
        terms, rebuild = terms_of(plan.source, local.changes, index)
    message = Message(REPLICA, _is_flat(plan.placement), [loss / len(plan.active), *terms])
    bucket = Bucket(gradients, plan.divisor, REPLICA, index, message)
    state, gradients = plan.hook.reduce(own.hook, bucket)
    loss, *terms = message.others()
    if plan.source is not None:
        changes = rebuild(terms)
    if plan.then is not None:
        gradients, extra = plan.then(values, extra, gradients, changes)
        changes = {}
    return (loss, gradients, changes, extra), _Kept((), mine, Own((), state))


def _is_flat(placement: Placement) -> bool:
    processes = {d.process_index for d in placement.devices}
    return placement.devices[0].platform == "cpu" and len(processes) > 1
