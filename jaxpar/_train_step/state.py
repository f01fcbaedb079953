"""state: the arrays of a module and an optimizer, taken out before a step and put back after it.

Objects and arrays are matched once; a step costs one look at each array. In a world of several processes
the arrays that the user sees are this process's, and the program's are everybody's: both are kept, so
that only an array that somebody has changed has to be put together again.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._distributed_data_parallel.world import World
from .._modules.nnx_view import view_nnx
from .._placement import Placement
from .._tree import check_alive


class State:
    """The arrays of one NNX object.

    Attributes:
      placement: where its arrays belong; None leaves them where they are.
      world: of whom the program's arrays are; None: of this process.
    """

    def __init__(self, thing: nnx.Module, placement: Placement | None, world: World | None = None):
        self.thing, self.placement, self.world = thing, placement, world
        self._local: list[Any] = []
        self._global: list[Any] = []

    @property
    def view(self) -> Any:
        return view_nnx(self.thing)

    def take(self) -> list:
        """The arrays, as the program wants them."""
        view = self.view
        if self.placement is not None:
            values = view.values(self.placement)
        else:
            values = [leaf.get_raw_value() for leaf in view.leaves]
            check_alive(values, view.names, "train_step")
        if self.world is None or self.world.size == 1:
            return values
        if len(self._local) == len(values) and all(map(operator.is_, self._local, values)):
            return self._global
        return self.world.shared(values)

    def put(self, values: list, which: list[int] | None = None) -> None:
        """Arrays that a program returned, all or those at `which`, into the object."""
        several = self.world is not None and self.world.size > 1
        local = self.world.local_shared(values) if self.world is not None and several else values
        which = list(range(len(values))) if which is None else which
        self.view.commit(dict(zip(which, local, strict=True)))
        if several:
            self._remember(which, local, values)

    def _remember(self, which: list[int], local: list, everywhere: list) -> None:
        n = len(self.view.leaves)
        if len(self._local) != n:
            self._local, self._global = [None] * n, [None] * n
        for i, x, y in zip(which, local, everywhere, strict=True):
            self._local[i], self._global[i] = x, y


def distinct(*groups: list) -> tuple[list, ...]:
    """The same arrays, none of them twice: one that is donated twice ends the process."""
    seen: set[int] = set()
    out = []
    for group in groups:
        unique = []
        for x in group:
            unique.append(jnp.copy(x) if id(x) in seen else x)
            seen.add(id(x))
        out.append(unique)
    return tuple(out)


def placed(tree: Any, placement: Placement | None) -> Any:
    return tree if placement is None else jax.device_put(tree, placement.replicated)
