"""replicas: the step of a DistributedDataParallel, whose loss is that of each replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from .._backends import backend
from .._distributed_data_parallel.gradient import Plan, Step, compiled
from .._distributed_data_parallel.rows import Rows, outputs, take
from .._distributed_data_parallel.step import Agreement, agree, changes_of, first_own, loss_of
from .._gather import assemble
from .._loss import Loss
from .._precision import Precision
from .._typing import PyTree, Static
from .state import State, placed, take_distinct
from .update import Update


class Replicas:
    """As `Whole`, with the arrays of all processes."""

    def __init__(
        self,
        net: Any,
        optimizer: nnx.Optimizer,
        loss_fn: Callable[..., Any],
        has_aux: bool,
        precision: Precision | None,
        make: Callable[[], Update],
    ):
        self._ddp, self._world, self._memory = net, net.world, net.memory
        local = net.world.local
        self._net, self._optimizer = State(net, local, net.world), State(optimizer, local, net.world)
        self._loss_fn, self._has_aux, self._precision, self._make = Static(loss_fn), has_aux, precision, make
        self._wrt = optimizer.wrt
        self._update, self._definitions = make(), self._both()
        self._extra: dict[str, Any] = self._start()

    def _both(self) -> tuple[Any, Any]:
        return self._net.view.definition, self._optimizer.view.definition

    def _start(self) -> dict[str, Any]:
        return self._world.shared(placed(self._update.start(), self._world.local))

    def step(
        self, args: tuple, kwargs: dict[str, Any], last: bool
    ) -> tuple[jax.Array, PyTree, jax.Array | None]:
        """The loss, aux, and the report on gradients."""
        held = self._ddp.held(self._wrt)
        rows = take(args, kwargs, self._world)

        def run(held: Any, rows: Rows, agreed: Agreement) -> tuple[Step, Plan]:
            return self._run(held, rows, agreed, last)

        if self._memory.join is None:
            agreed = agree(rows, held, self._loss_fn.value, self._world, self._memory, self._ddp.settings)
            done, plan = run(held, rows, agreed)
        else:
            done, plan = self._memory.join.step(rows, held, run)
        loss, aux = loss_of(done, plan, self._world), ()
        if self._has_aux:
            aux = assemble(outputs(done.aux, plan.active, rows, self._world), self._world.local.output_device)
        report = self._update.report(self._world.local_shared(self._extra)) if last else None
        return loss, aux, report

    def _run(self, held: Any, rows: Rows, agreed: Agreement, last: bool) -> tuple[Step, Plan]:
        values, optimizer = take_distinct(self._net, self._optimizer)
        if self._both() != self._definitions:
            self._update, self._definitions = self._make(), self._both()
        parameters = self._update.parameters
        loss = Loss(held.definition, held.form, parameters, self._loss_fn, self._has_aux, self._precision)
        hook, update = (self._memory.hook, self._update) if last else (None, None)
        settings = self._ddp.settings
        agreed = agreed if last else agreed._replace(source=None)
        plan = Plan(loss, *agreed, hook, self._world.everywhere, backend(settings.backend), update)
        own = self._memory.own or first_own(self._memory, held, self._world)
        donate = ("values", "extra", "own") if last else ("own",)
        extra = {**self._extra, "optimizer": optimizer}
        batch = self._world.stacked(rows.batch)
        done: Step = compiled(plan, donate)(values, extra, own, batch)
        self._memory.own = done.own
        self._memory.steps += 1
        if last:
            after = dict(done.extra)
            self._optimizer.put(after.pop("optimizer"))
            self._net.put(done.gradients)
            self._extra = after
        held.commit(changes_of(done, plan, self._world))
        return done, plan

    def name(self, parameter: int) -> str:
        """What the user calls a parameter."""
        return ".".join(map(str, self._definitions[0].paths[self._update.parameters[parameter]]))

    def forget_trouble(self) -> None:
        self._extra["trouble"] = self._start()["trouble"]
