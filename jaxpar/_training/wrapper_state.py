"""memory: what a wrapper remembers between calls. No part of the module's state, and of no program."""

from __future__ import annotations

from typing import Any

from ..comm_hooks._plain import mean
from ..comm_hooks.hook import CommHook
from .compiled_step import Own


class Memory:
    """One for each wrapper; compared by identity, so that it may stand in an NNX module's structure.

    Attributes:
      own: gradients that wait on their replicas, and the hook's state; None before the first call.
      hook: how gradients are reduced; registered: whether the user has chosen it.
      synchronises: False inside of `no_sync()`.
      compared: whether values that the user holds were compared with the other ranks'.
      join: the `Join` that the call is in, if it is in one.
      steps: how many calls there were.
      number: which wrapper this is, for all ranks the same; 0 before the first step with other ranks.
      timeout: seconds that join waits for another rank's step.
      structures: of gradients, by module definition.
    """

    def __init__(self, hook: CommHook | None):
        self.own: Own | None = None
        self.hook: CommHook = hook or mean
        self.registered = hook is not None
        self.synchronises = True
        self.compared = False
        self.join: Any = None
        self.steps = self.number = 0
        self.timeout = 600.0
        self.structures: dict[Any, Any] = {}

    def __deepcopy__(self, memo: object) -> Memory:
        return Memory(self.hook if self.registered else None)
