"""state: the arrays of a module and an optimizer, taken out before a step and put back after it.

Objects and arrays are matched once; a step costs one look at each array. In a world of several processes
the arrays that the user sees are this process's, and the program's are everybody's: both are kept, so
that only arrays that somebody has changed have to be put together again.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._parallel.modules.nnx_view import view_nnx
from .._parallel.placement import Placement
from .._tree import check_alive, is_array
from .world import World


class State:
    """The arrays of one NNX object.

    Attributes:
      placement: where its arrays belong; None leaves them where they are.
      world: of whom the program's arrays are; None: of this process.
      clean: whether the arrays that were taken are those that were put.
    """

    def __init__(self, thing: nnx.Module, placement: Placement | None, world: World | None = None):
        self.thing, self.placement = thing, placement
        self.world = world if world is not None and world.size > 1 else None
        self.clean = False
        self.view: Any = view_nnx(thing)
        self._seen: list[Any] = []  # what the object holds since the last step
        self._program: list[Any] = []  # the same as the program knows it

    @property
    def definition(self) -> Any:
        """The object without its arrays, as it was when they were taken."""
        return self.view.definition

    def take(self) -> list:
        """The arrays, as the program wants them."""
        self.view = view = view_nnx(self.thing)
        if self.placement is not None:
            values = view.values(self.placement)
        else:
            values = view.held()
            check_alive(values, view.names, "train_step")
        self.clean = len(self._seen) == len(values) and all(map(operator.is_, self._seen, values))
        if self.clean:
            return self._program
        # An array that is no Variable cannot be put back, so the object keeps its own.
        pairs = zip(values, view.definition.kinds, strict=True)
        values = [jnp.copy(x) if kind == "array" and is_array(x) else x for x, kind in pairs]
        return values if self.world is None else self.world.shared(values)

    def put(self, values: list) -> None:
        """Arrays that a program returned, into the object."""
        local = values if self.world is None else self.world.local_shared(values)
        self.view.put(local)
        kept = zip(self.view.leaves, self.view.are_variables, local, strict=True)
        self._seen = [x if is_variable else leaf for leaf, is_variable, x in kept]
        self._program = values


def take_distinct(*states: State) -> list[list]:
    """What each holds, no buffer twice: one that is donated twice ends the process."""
    taken = [state.take() for state in states]
    if all(state.clean for state in states):
        return taken  # a program's results lie in buffers of their own
    seen: set[Any] = set()
    for values in taken:
        for i, x in enumerate(values):
            if not is_array(x):  # optax.MaskedNode, an empty tree
                continue
            if (buffer := _buffer(x)) in seen:
                values[i] = x = jnp.copy(x)
            seen.add(buffer)
    return taken


def _buffer(x: jax.Array) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return id(x)
    return x.addressable_data(0).unsafe_buffer_pointer()


def placed(tree: Any, placement: Placement | None) -> Any:
    return tree if placement is None else jax.device_put(tree, placement.replicated)
