"""engine_state: what an engine remembers from step to step, and the user's settings for it.

No program contains it. Engine, join and the wrappers change it through its methods. torch keeps the same
things in the DDP object and its reducer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .._parallel.programs import Programs
from ..comm_hooks import CommHook, mean
from .agreement import Strategy
from .compiled_step import ReplicaState, compiled


class EngineState:
    """State of one wrapper, or of a step of a module without one.

    Compared by identity, so that an NNX module may hold it: a different wrapper is a different program.

    Attributes:
      replica_state: the replicas' gradients and hook state; None before the first step.
      hook: how gradients are reduced; registered: whether the user has chosen it.
      strategy: how ranks agree on a step; usual: the same outside of join.
      engine: the engine of the last step inside of join, with which a rank without rows continues.
      synchronises: False inside of `no_sync()`.
      compared: whether the values that the user holds were compared with the other ranks'.
      steps: the number of steps.
      number: which wrapper this is, the same on all ranks; 0 before the first step with other ranks.
      timeout: seconds that join waits for a different rank's step.
      structures: the gradients' structures, by module definition.
      programs: the programs of `value_and_grad`; a TrainStep has its own.
    """

    def __init__(self, strategy: Strategy, hook: CommHook | None = None):
        self.strategy = self.usual = strategy
        self.engine: Any = None
        self.replica_state: ReplicaState | None = None
        self.hook: CommHook = hook or mean
        self.registered = hook is not None
        self.synchronises = True
        self.compared = False
        self.steps = self.number = 0
        self.timeout = 600.0
        self.structures: dict[Any, Any] = {}
        self.programs = Programs(compiled)

    @property
    def joining(self) -> bool:
        """Whether steps are announced: inside of `join()`."""
        return self.strategy is not self.usual

    def enter_join(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def leave_join(self) -> None:
        self.strategy, self.engine = self.usual, None

    @contextlib.contextmanager
    def unsynchronised(self) -> Iterator[None]:
        """A context in which gradients stay on the replicas."""
        outer, self.synchronises = self.synchronises, False
        try:
            yield
        finally:
            self.synchronises = outer

    def advance(self, replica_state: ReplicaState) -> None:
        """Record a step."""
        self.replica_state = replica_state
        self.steps += 1

    def replace(self, replica_state: ReplicaState) -> None:
        """Set the replicas' state between two steps."""
        self.replica_state = replica_state

    def register(self, hook: CommHook) -> None:
        """Raises RuntimeError if the user has chosen one already."""
        if self.registered:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        # The old hook's state does not fit the new one, which starts from its own.
        self.hook, self.registered, self.replica_state = hook, True, None

    def __deepcopy__(self, memo: object) -> EngineState:
        return EngineState(self.usual, self.hook if self.registered else None)
