"""replicas: the step of a DistributedDataParallel, whose loss is that of each replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from .._parallel.backends import backend
from .._parallel.gather import assemble
from .._typing import PyTree, Static
from .compiled_step import Plan, Step, compiled
from .divergence_guard import Told
from .engine import Agreement, agree, changes_of, first_own, loss_of
from .held import Held
from .local_batch import Rows, outputs, take
from .loss import Loss
from .optimizer_fingerprint import tell
from .precision import Precision
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
        self._prepare()
        self._told = self._tell() if net.world.size > 1 else ()
        self._extra: dict[str, Any] = self._start()

    def _tell(self) -> Told:
        names = [name.removeprefix("module.") for name in self._optimizer.view.names]
        return tell(self._update, self._net.take(), self._optimizer.take(), names)

    def _prepare(self) -> None:
        """For net and optimizer as they are now; again when one changes, by `net.eval()` for instance."""
        self._definitions = self._net.definition, self._optimizer.definition
        self._update = self._make()
        self._held = held = self._ddp.held(self._wrt)
        trained = self._update.parameters
        self._loss = Loss(held.definition, held.form, trained, self._loss_fn, self._has_aux, self._precision)
        self._plans: dict[Any, tuple[Plan, Any]] = {}

    def _start(self) -> dict[str, Any]:
        return self._world.shared(placed(self._update.start(), self._world.local))

    def step(
        self, args: tuple, kwargs: dict[str, Any], last: bool
    ) -> tuple[jax.Array, PyTree, jax.Array | None]:
        """The loss, aux, and the report on gradients."""
        world, memory = self._world, self._memory
        self._check_context()
        rows = take(args, kwargs, world)

        def run(held: Held, rows: Rows, agreed: Agreement) -> tuple[Step, Plan]:
            del held  # the arrays are taken when the program runs
            return self._run(rows, agreed, last, self._take())

        if memory.join is None:
            taken = self._take()
            function, settings = self._loss_fn.value, self._ddp.settings
            agreed = agree(rows, self._held, function, world, memory, settings, self._told)
            done, plan = self._run(rows, agreed, last, taken)
        else:
            done, plan = memory.join.step(rows, self._ddp.held(self._wrt), run)
        loss, aux = loss_of(done, plan, world), ()
        if self._has_aux:
            aux = assemble(outputs(done.aux, plan.active, rows, world), world.local.output_device)
        report = done.extra.get("report") if last else None
        return loss, aux, world.local_shared(report)

    def _check_context(self) -> None:
        if not self._memory.synchronises:
            raise RuntimeError(
                "train_step: it updates, so it cannot be called inside of no_sync(); write "
                "train_step(..., accumulate=k), which communicates once in k calls."
            )
        if self._memory.join is not None and self._update.accumulate > 1:
            raise RuntimeError(
                "train_step: accumulate cannot be used inside of join(): a rank that has finished would not "
                "know whether the others' next call is an update."
            )

    def _take(self) -> list[list]:
        """The arrays of net and optimizer, and everything else as these now want it."""
        taken = take_distinct(self._net, self._optimizer)
        if self._definitions != (self._net.definition, self._optimizer.definition):
            self._prepare()
        return taken

    def _run(self, rows: Rows, agreed: Agreement, last: bool, taken: list[list]) -> tuple[Step, Plan]:
        world, memory = self._world, self._memory
        values, optimizer = taken
        plan, program = self._plan(agreed if last else agreed._replace(source=None), last)
        own = memory.own or first_own(memory, self._held, world)
        extra = {**self._extra, "optimizer": optimizer}
        done: Step = program(values, extra, own, world.stacked(rows.batch))
        memory.own = done.own
        memory.steps += 1
        if last:
            after = dict(done.extra)
            after.pop("report", None)
            self._optimizer.put(after.pop("optimizer"))
            self._net.put(done.gradients)
            self._extra = after
        if plan.source is None:
            self._ddp.held(self._wrt).commit(changes_of(done, plan, world))
        return done, plan

    def _plan(self, agreed: Agreement, last: bool) -> tuple[Plan, Any]:
        hook, update = (self._memory.hook, self._update) if last else (None, None)
        key = agreed, hook, last
        if key not in self._plans:
            run = backend(self._ddp.settings.backend)
            state = ("values", "extra") if update and update.way.donates else ()
            plan = Plan(self._loss, *agreed, hook, self._world.everywhere, run, update)
            self._plans[key] = plan, compiled(plan, (*state, "own"))
        return self._plans[key]

    def name(self, parameter: int) -> str:
        """What the user calls a parameter."""
        return ".".join(map(str, self._definitions[0].paths[self._update.parameters[parameter]]))

    def forget_trouble(self) -> None:
        self._extra["trouble"] = self._start()["trouble"]
