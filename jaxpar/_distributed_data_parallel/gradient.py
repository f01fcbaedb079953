"""gradient: every replica's own loss and gradient, and their mean, as one compiled program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .. import _program
from .._backends import Backend
from .._modules import Definition
from .._placement import Placement
from .._program import Kind, Local
from .._reduce import from_replica
from .._shards import Shards
from .._typing import REPLICA, PyTree, Static
from ..errors import LossError
from .reduction import Bucket, CommHook


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is compiled: everything about a step but its arrays.

    Attributes:
      definition: the module without its values; form: the structure of its values.
      parameters: which of the values' leaves get gradients.
      loss_fn: `loss_fn(module, *args, **kwargs)`, on one replica's rows.
      kinds: for each of the N replicas the shapes of its rows, None for one without.
      divisor: what the sum of the gradients is divided by.
      hook: how gradients are reduced; None leaves them on their replicas, to be added to.
      source: the replica whose buffers all get; None leaves each process its own.
      then: `then(values, extra, gradients, loss) -> (values, extra)` in the same program, if anything.
    """

    definition: Definition
    form: Any
    parameters: tuple[int, ...]
    loss_fn: Static
    has_aux: bool
    kinds: tuple[Kind | None, ...]
    divisor: int
    hook: CommHook | None
    source: int | None
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
    extra: PyTree
    own: Own


@functools.lru_cache(maxsize=1024)
def compiled(plan: Plan, donate: tuple[str, ...] = ()) -> Any:
    """`compiled(plan)(values, extra, own, batch) -> Step`, for global arrays."""

    def step(values: list, extra: PyTree, own: Own, batch: tuple[PyTree, PyTree]) -> Step:
        return _step(plan, values, extra, own, batch)

    return jax.jit(step, donate_argnames=donate)


def _step(plan: Plan, values: list, extra: PyTree, own: Own, batch: tuple[PyTree, PyTree]) -> Step:
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
    values, _ = shared

    def loss_of(parameters: list[jax.Array]) -> tuple[jax.Array, PyTree]:
        full = list(values)
        for i, value in zip(plan.parameters, parameters, strict=True):
            full[i] = value
        module = jax.tree.unflatten(plan.form, full)
        result, changes = plan.definition.apply(plan.loss_fn.value, module, index, args, kwargs)
        loss, aux = _split(result, plan.has_aux)
        return loss, (aux, changes)

    wanted = [values[i] for i in plan.parameters]
    (loss, (aux, changes)), gradients = jax.value_and_grad(loss_of, has_aux=True)(wanted)
    terms = {"loss": loss, "gradients": gradients}
    if plan.source is None:
        terms["changes"], changes = changes, {}
    return Local(aux, terms, changes)


def _split(result: Any, has_aux: bool) -> tuple[jax.Array, PyTree]:
    if has_aux and not (isinstance(result, tuple) and len(result) == 2):
        raise LossError(
            f"value_and_grad: with has_aux=True the loss function returns (loss, aux), not {result!r:.60}."
        )
    loss, aux = result if has_aux else (result, ())
    shape = getattr(loss, "shape", None)
    if shape != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        what = f"{loss.dtype}{list(shape)}" if shape is not None else type(loss).__name__
        raise LossError(
            f"value_and_grad: grad can be implicitly created only for scalar outputs, and the loss function "
            f"returned {what}. Return one real number, for instance with .mean(); with more than the loss, "
            "pass has_aux=True."
        )
    return loss, aux


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
    if plan.source is None:
        changes, mine = (), local.terms["changes"]
    else:
        changes, mine = from_replica(plan.source, local.changes, index), ()
    if plan.hook is None:
        return ((), (), changes, extra), _Kept(loss, mine, Own(gradients, own.hook))
    loss = lax.psum(loss / len(plan.active), REPLICA)
    state, gradients = plan.hook.reduce(own.hook, Bucket(gradients, plan.divisor, REPLICA, index))
    if plan.then is not None:
        gradients, extra = plan.then(values, extra, gradients, loss)
    return (loss, gradients, changes, extra), _Kept((), mine, Own((), state))
