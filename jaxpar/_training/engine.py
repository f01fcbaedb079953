"""step: one call of `value_and_grad`, from this process's rows to the mean loss and gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._parallel.backends import backend as _backend
from .._parallel.gather import assemble
from .._parallel.program import Kind
from .._tree import is_staged
from .._typing import PyTree, Static
from ..errors import StagedError
from .compiled_step import Own, Plan, Step, compiled
from .divergence_guard import Told, guard
from .held import Held
from .local_batch import Rows, outputs, take
from .loss import Loss
from .watchdog import beat
from .world import World
from .wrapper_state import Memory


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a wrapper is told when it is made."""

    forward_sync_buffers: bool
    backend: str


class Agreement(NamedTuple):
    """What all ranks know of one step: every replica's rows, the divisor, whose buffers all get."""

    kinds: tuple[Kind | None, ...]
    divisor: int
    source: int | None


def evaluate(
    held: Held,
    loss_fn: Callable[..., Any],
    has_aux: bool,
    args: tuple,
    kwargs: dict,
    world: World,
    memory: Memory,
    settings: Settings,
) -> tuple[Any, PyTree, PyTree]:
    """The loss (with aux), the gradients or None, and what `held.commit` gave."""
    staged = is_staged()
    _check_staged(staged, world, memory)
    rows = take(args, kwargs, world)

    def run(held: Held, rows: Rows, agreed: Agreement) -> tuple[Step, Plan]:
        hook = memory.hook if memory.synchronises else None
        loss = Loss(held.definition, held.form, held.parameters, Static(loss_fn), has_aux)
        plan = Plan(loss, *agreed, hook, world.everywhere, _backend(settings.backend))
        own = memory.own or first_own(memory, held, world)
        done = compiled(plan)(world.shared(held.values), {}, own, world.stacked(rows.batch))
        if not staged:
            memory.own = done.own
            memory.steps += 1
            beat()
        return done, plan

    if memory.join is None:
        done, plan = run(held, rows, agree(rows, held, loss_fn, world, memory, settings))
    else:
        done, plan = memory.join.step(rows, held, run)
    loss: Any = loss_of(done, plan, world)
    committed = held.commit(changes_of(done, plan, world))
    if has_aux:
        shards = outputs(done.aux, plan.active, rows, world)
        loss = loss, assemble(shards, None if staged else world.local.output_device)
    if plan.hook is None:
        return loss, None, committed
    return loss, held.gradients(world.local_shared(done.gradients)), committed


def first_own(memory: Memory, held: Held, world: World) -> Own:
    """What replicas keep for themselves, before the first step."""
    state = memory.hook.init([held.values[i] for i in held.parameters])
    K = world.local.N
    stacked = jax.tree.map(
        lambda x: jax.device_put(jnp.broadcast_to(x, (K, *jnp.shape(x))), world.local.stacked), state
    )
    return Own((), world.stacked(stacked))


def agree(
    rows: Rows,
    held: Held,
    loss_fn: Callable[..., Any],
    world: World,
    memory: Memory,
    settings: Settings,
    told: Told = (),
) -> Agreement:
    """Outside of join all ranks bring rows of the same shapes.

    Raises:
      DivergenceError: they do not, or differ in something else.
    """
    if world.size > 1:
        guard(rows, held, loss_fn, memory, told)
    kinds = rows.kinds * world.size
    active = sum(kind is not None for kind in kinds)
    shared = settings.forward_sync_buffers and memory.synchronises
    return Agreement(kinds, active, 0 if shared else None)


def _check_staged(staged: bool, world: World, memory: Memory) -> None:
    if not staged:
        return
    what = "several processes" if world.size > 1 else "no_sync()"
    if world.size > 1 or not memory.synchronises or (memory.own is not None and memory.own.gradients):
        raise StagedError(
            f"value_and_grad: called inside jax.jit (or nnx.jit), which cannot be done with {what}: it "
            "compiles its own program over all devices. Call it outside, or use jaxpar.train_step, which "
            "compiles the whole step."
        )


def loss_of(done: Step, plan: Plan, world: World) -> jax.Array:
    if plan.hook is not None:
        return world.local_shared(done.loss)
    mine = [i for i in range(world.local.N) if plan.kinds[world.first + i] is not None]
    return jnp.mean(world.local_stacked(done.loss)[jnp.array(mine)])


def changes_of(done: Step, plan: Plan, world: World) -> PyTree:
    if plan.source is not None:
        return world.local_shared(done.changes)
    first = next((i for i in range(world.local.N) if plan.kinds[world.first + i] is not None), None)
    if first is None:
        return {}
    local = world.local_stacked(done.changes)
    if is_staged():
        return jax.tree.map(lambda x: x[first], local)
    return jax.tree.map(lambda x: _entry(x, first, world), local)


def _entry(stack: jax.Array, i: int, world: World) -> jax.Array:
    shard = next(s for s in stack.addressable_shards if (s.index[0].start or 0) == i)
    return jax.device_put(shard.data[0], world.local.replicated)
