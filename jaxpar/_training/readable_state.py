"""readable_state: the states of a step's networks, which its user reads and writes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax

from .state_optimizer import StateOptimizer


class ReadableState:
    """The TrainStates or FunctionStates of a step, by network.

    A state that was read is remembered until the next is read: its user may write into its dicts. optax keeps
    the rate in one, `state.opt_state.hyperparams["learning_rate"] = 0.1`.
    """

    def __init__(self, nets: Sequence[Any], optimizers: Sequence[Any]):
        self._pairs = tuple(zip(nets, optimizers, strict=True))
        self._read: tuple[Any, ...] = ()
        self._before: tuple[Any, ...] = ()  # copies, as they were read
        self._leaves: list[Any] = []  # of the copies

    def read(self) -> tuple[Any, ...]:
        """Return the states. AttributeError: one of the networks is an NNX module."""
        if not all(isinstance(optimizer, StateOptimizer) for _, optimizer in self._pairs):
            raise AttributeError(
                "TrainStep.state: an NNX module and its optimizer hold their own: step.net, step.optimizer."
            )
        self.write_back()
        self._read = tuple(optimizer.state(net) for net, optimizer in self._pairs)
        self._remember()
        return self._read

    def write(self, states: Any) -> None:
        """Write states. TypeError, ValueError: another structure or shape; nothing has changed then."""
        self.read()
        if not isinstance(states, (tuple, list)) or len(states) != len(self._pairs):
            raise TypeError(f"TrainStep.state: {len(self._pairs)} networks have a tuple of as many states.")
        self._put(states, [None] * len(self._pairs))

    def write_back(self) -> None:
        """Write what has been put into the states since they were read, or since the last call."""
        leaves = jax.tree.leaves(self._read)
        if len(leaves) != len(self._leaves) or not all(map(operator.is_, leaves, self._leaves)):
            try:
                self._put(self._read, self._before)
            except ValueError:
                self.forget()  # so that one mistake is one error
                raise
            self._remember()

    def _put(self, states: Sequence[Any], before: Sequence[Any]) -> None:
        replacements = [
            pair
            for (net, optimizer), *both in zip(self._pairs, states, before, strict=True)
            for pair in optimizer.replacements(net, *both)
        ]
        for variable, array in replacements:
            variable.set_value(array)

    def _remember(self) -> None:
        self._leaves = jax.tree.leaves(self._read)
        self._before = jax.tree.map(lambda leaf: leaf, self._read)

    def forget(self) -> None:
        self._read = ()
        self._remember()
