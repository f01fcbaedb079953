"""engine_state: what an engine remembers from step to step, and the user's settings; in no program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .._parallel.programs import Programs
from ..comm_hooks import CommHook, mean
from .agreement import Strategy
from .compiled_step import ReplicaState, compiled


class EngineState:
    """State of one wrapper or step; compared by identity, so that an NNX module may hold it."""

    def __init__(self, strategy: Strategy, hook: CommHook | None = None, divides_optimizer: bool = False):
        self.strategy = self.usual = strategy
        self.engine: Any = None
        self.replica_state: ReplicaState | None = None
        self.hook: CommHook = hook or mean
        self.registered = hook is not None
        self.synchronises, self.divides_optimizer = True, divides_optimizer
        self.compared = False
        self.steps = self.number = 0
        self.timeout = 600.0
        self.structures: dict[Any, Any] = {}
        self.programs = Programs(compiled)

    @property
    def joining(self) -> bool:
        return self.strategy is not self.usual

    def leave_join(self) -> None:
        self.strategy, self.engine = self.usual, None

    @contextlib.contextmanager
    def unsynchronised(self) -> Iterator[None]:
        outer, self.synchronises = self.synchronises, False
        try:
            yield
        finally:
            self.synchronises = outer

    def replace(self, replica_state: ReplicaState) -> None:
        self.replica_state = replica_state

    def register(self, hook: CommHook) -> None:
        if self.registered:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        # The old hook's state does not fit the new one, which starts from its own.
        self.hook, self.registered, self.replica_state = hook, True, None

    def __deepcopy__(self, memo: object) -> EngineState:
        return EngineState(self.usual, self.hook if self.registered else None, self.divides_optimizer)
