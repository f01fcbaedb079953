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
        self._before: tuple[Any, ...] = ()  # as they were read

    def read(self) -> tuple[Any, ...]:
        """Return the states. AttributeError: one of the networks is an NNX module."""
        if not all(isinstance(optimizer, StateOptimizer) for _, optimizer in self._pairs):
            raise AttributeError(
                "TrainStep.state: an NNX module and its optimizer hold their own: step.net, step.optimizer."
            )
        self.write_back()
        self._read = tuple(optimizer.state(net) for net, optimizer in self._pairs)
        self._before = _copied(self._read)
        return self._read

    def write(self, states: Any) -> None:
        """Write states. TypeError, ValueError: their structure or shapes differ from what `read` returns."""
        self.read()
        if not isinstance(states, (tuple, list)) or len(states) != len(self._pairs):
            raise TypeError(f"TrainStep.state: {len(self._pairs)} networks have a tuple of as many states.")
        for (net, optimizer), state in zip(self._pairs, states, strict=True):
            optimizer.load(net, state)

    def write_back(self) -> None:
        """Write what has been put into the states since they were read, or since the last call."""
        leaves = jax.tree.leaves(self._read), jax.tree.leaves(self._before)
        if len(leaves[0]) == len(leaves[1]) and all(map(operator.is_, *leaves)):
            return
        for (net, optimizer), state, before in zip(self._pairs, self._read, self._before, strict=True):
            optimizer.load(net, state, before)
        self._before = _copied(self._read)

    def forget(self) -> None:
        self._read = self._before = ()


def _copied(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf, tree)
