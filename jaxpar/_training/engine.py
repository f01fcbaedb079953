"""engine: the one loop. Take the arrays, agree with the other ranks, run the program, put the arrays back.

`value_and_grad`, `train_step`, `eval_step`, accumulation, `no_sync` and `join` all go through `Engine.turn`.
They differ in the arrays, in the work (a loss on every replica, a loss of the whole batch, or outputs), and
in the strategy by which ranks agree on a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from .._parallel.compiling import Compiling, begun, place_of
from .._tree import is_staged
from .._typing import PyTree
from ..distributed import broadcast
from ..distributed.call_log import begin
from ..distributed.group import rank
from .agreement import Agreement
from .arrays import Arrays
from .compiled_step import Program, ReplicaState, StepResult
from .divergence_guard import Fingerprint, OptimizerNumbers, StepMetadata, compare_programs, next_number
from .engine_state import EngineState
from .watchdog import beat
from .world import World


class Work(Protocol):
    def bring(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return the batch, on this process's devices."""

    def shapes(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return the batch of `bring` as shapes with shardings. Arrays may be anywhere, or be shapes."""

    def program(self, arrays: Arrays, batch: Any, agreed: Agreement, keep: bool) -> tuple[Program, Any]:
        """Return the compiled program and its batch argument."""

    def first_replica_state(self, trained: list) -> ReplicaState:
        """Return the initial per-replica state for this process's parameters."""

    def replica_state_like(self, trained: list, adds: bool) -> ReplicaState:
        """Return what `first_replica_state` returns, as shapes with shardings; `adds`: with gradients."""

    def read(self, done: StepResult, agreed: Agreement, batch: Any) -> tuple[jax.Array, PyTree, PyTree]:
        """Return the loss, the auxiliary outputs and changed buffers, on this process's devices."""


class StepOutcome(NamedTuple):
    loss: jax.Array  # the mean over the replicas; this process's own while gradients are kept
    aux: PyTree  # likewise
    after: list  # the mean gradients, a list, where there was no update
    committed: PyTree  # what `Arrays.put` returned for changed buffers
    report: jax.Array | None  # on gradients that are not finite, if the update checked them
    metrics: PyTree = None  # what a function of the update returned, if there was one


class Engine:
    """The loop for one module and one computation. `call` is the name of a step for users."""

    def __init__(
        self,
        arrays: Arrays,
        work: Work,
        state: EngineState,
        world: World,
        loss_fn: Callable[..., Any],
        fingerprint: Fingerprint = (),
        call: str = "value_and_grad",
    ):
        self.arrays, self.work, self.state, self.world = arrays, work, state, world
        self._loss_fn, self._fingerprint, self._call = loss_fn, fingerprint, call
        self._numbers = OptimizerNumbers()

    def step(self, args: tuple, kwargs: dict[str, Any], keep: bool = False) -> StepOutcome:
        """Run a step on this rank's batch. `keep` leaves gradients on the replicas for the next step."""
        batch = self.work.bring(args, kwargs)
        if self.state.joining:
            self.state.engine = self
        done = self.turn(batch, keep)
        assert done is not None  # a rank with rows takes part in the step
        return done

    def trace(
        self, args: tuple, kwargs: dict[str, Any], keep: bool = False, adds: bool = False
    ) -> jax.stages.Traced:
        """The program of a step, for shapes; `adds`: the replicas hold gradients of earlier calls."""
        values, extra = self.arrays.shapes(keep)
        agreement = self.state.usual.agree(self.work.shapes(args, kwargs), None, keep)
        assert agreement is not None  # only join runs out of rows
        program, batch = self.work.program(self.arrays, agreement[1], agreement[0], keep)
        trained = [values[i] for i in self.arrays.parameters]
        replica_state = self.work.replica_state_like(trained, adds)
        with Compiling(self._describe, rank()):
            return program.trace(values, extra, replica_state, batch)  # type: ignore[attr-defined]

    def compile(self, args: tuple, kwargs: dict[str, Any], accumulate: int) -> jax.stages.Compiled:
        """Compile the programs of `accumulate` calls; return the last, which updates."""
        first, between = [True, False], [True, True]  # keep, adds
        calls = [first] * (accumulate > 1) + [between] * (accumulate > 2) + [[False, accumulate > 1]]
        for call in calls:
            lowered = self.trace(args, kwargs, *call).lower()
            with Compiling(self._describe, rank()):
                begun()
                compiled = lowered.compile()
        return compiled

    def turn(self, batch: Any, keep: bool = False) -> StepOutcome | None:
        """Go around the loop once. Return None, with nothing done, when no rank has rows left."""
        # Taken before the agreement, so that a deleted array raises before other ranks count on this one.
        values, extra = self.arrays.take()
        metadata = self._metadata(keep) if self.world.size > 1 else None
        if metadata is not None and not keep and not self.state.joining and not is_staged():
            # While gradients are kept ranks are independent, and torch's may make different numbers of calls.
            # In join every step is announced, and recorded there.
            begin(self._call, f"{self._call} of {metadata.number}", self.world.group)
        agreement = self.state.strategy.agree(batch, metadata, keep)
        if agreement is None:
            return None
        agreed, batch = agreement
        if agreed.buffers_from is not None:
            values = self.receive(values, agreed.buffers_from, buffers=True)
        # A rank without rows takes `keep` from the ranks that have some.
        extra = self.arrays.program_extra(extra, agreed.keep)
        program, program_batch = self.work.program(self.arrays, batch, agreed, agreed.keep)
        replica_state = self.state.replica_state
        if replica_state is None:
            trained = [values[i] for i in self.arrays.parameters]
            replica_state = self.work.first_replica_state(self.world.local_shared(trained))
        arguments = values, extra, replica_state, program_batch
        with Compiling(self._describe, rank()):
            # Before the call, since a different program hangs in a collective; inside `Compiling`, since the
            # comparison traces and lowers the program.
            if metadata is not None and not is_staged():
                compare_programs(metadata, program, arguments)
            done = program(*arguments)
        return self._put(done, agreed, batch)

    def drop(self) -> None:
        """Zero the gradients that `keep` left on this process's replicas."""
        replica_state, world = self.state.replica_state, self.world
        if replica_state is not None and replica_state.gradients:
            # Zeros rather than none: all ranks run one program, and other ranks may hold gradients.
            zeros = [world.stacked(jnp.zeros_like(world.local_stacked(x))) for x in replica_state.gradients]
            self.state.replace(replica_state._replace(gradients=zeros))

    def _describe(self) -> str:
        placement = getattr(self.arrays, "placement", None)
        n = max(self.world.N, 1 if placement is None else placement.N)
        return f"{self.arrays.function} ({place_of(self._loss_fn)}) for {n} device{'s' * (n > 1)}"

    def _put(self, done: StepResult, agreed: Agreement, batch: Any) -> StepOutcome:
        # Inside of the user's jit nothing has run yet, so nothing may be remembered.
        if done.replica_state is not None and not is_staged():
            self.state.replace(done.replica_state)
            self.state.steps += 1
            beat()
        loss, aux, changes = self.work.read(done, agreed, batch)
        # Not part of the state that `put` stores for the next step, which may donate it.
        report = done.extra.pop("report", None)
        metrics = done.extra.pop("metrics", None)
        committed = self.arrays.put(done.after, done.extra, changes)
        report, metrics = self.world.local_shared((report, metrics))
        return StepOutcome(loss, aux, done.after, committed, report, metrics)

    def _metadata(self, keep: bool) -> StepMetadata:
        state, arrays = self.state, self.arrays
        # Assigned at a step, which all ranks make, and not when a wrapper is copied, maybe on one rank alone.
        state.number = state.number or next_number(self.world.group)
        return StepMetadata(
            state.number,
            state.steps,
            arrays.definition,
            arrays.parameters,
            arrays.names,
            self._loss_fn,
            keep,
            self._fingerprint + self._numbers.fingerprint(arrays.numbers),
            self.world.group,
        )

    def receive(self, values: list, src: int, *, buffers: bool, parameters: bool = False) -> list:
        """Take the module's buffers or parameters from a rank; return the program's values with them."""
        trained = set(self.arrays.parameters)
        which = [i for i in range(len(values)) if (parameters if i in trained else buffers)]
        if not which:
            return values
        sent = self.world.local_shared([values[i] for i in which])
        received = broadcast(sent, group=self.world.group, group_src=src)
        received = jax.device_put(received, self.world.local.replicated)
        return self.arrays.replace(values, dict(zip(which, received, strict=True)))
