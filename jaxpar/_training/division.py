"""division: an optimizer's arrays, divided between the replicas (ZeRO-1)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from .._parallel.modules.nnx_view import view_nnx
from .._parallel.spread import spread
from .._tree import check_alive, shape_of
from .._typing import DIVISION, PyTree, Shape
from ..distributed import all_gather
from .arrays import ObjectArrays
from .divided_program import length, rows
from .world import World


@dataclasses.dataclass(frozen=True)
class Division:
    """How replicas divide an array: metadata of a Variable whose value is then a stack [K, k].

    Entry i holds k elements of the array, in its order, on this process's device i. The array is padded to
    N * k elements.
    """

    shape: Shape  # the array's
    world: World = dataclasses.field(compare=False)

    @property
    def first(self) -> int:
        """The position of this process's first piece."""
        return self.world.first

    def holds(self, x: Any) -> bool:
        """Whether an array is such a stack, and not a whole array."""
        local = self.world.local
        if isinstance(x, jax.core.Tracer) or not hasattr(x, "sharding"):
            return False
        stack = local.N, length(self.shape, self.world.N)
        if local.of_topology:
            return tuple(x.shape) == stack
        return tuple(x.shape) == stack and local.stacked.is_equivalent_to(x.sharding, 2)

    def divided(self, x: Any) -> Any:
        """Return this process's pieces of a whole array."""
        local, n, k = self.world.local, self.world.N, length(self.shape, self.world.N)
        if isinstance(x, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct((local.N, k), x.dtype, sharding=local.stacked)
        pieces = rows(np.asarray(x), n, np)[self.first : self.first + local.N]
        return jnp.asarray(pieces) if local.of_topology else jax.device_put(pieces, local.stacked)

    def whole(self, x: Any) -> Any:
        """Return the whole array of all processes' pieces, on the host. All ranks must call it."""
        if isinstance(x, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(self.shape, x.dtype)
        pieces = [x] if self.world.size == 1 else all_gather(x, self.world.group)
        assert pieces is not None, "a world is of its members"
        elements = np.concatenate([np.asarray(piece) for piece in pieces]).reshape(-1)
        return elements[: math.prod(self.shape)].reshape(self.shape)

    def __deepcopy__(self, memo: object) -> Division:
        return self  # devices and groups cannot be copied


def division_of(leaf: Any) -> Division | None:
    """Return the division of a Variable's value, or None if it is a whole array."""
    division = leaf.get_metadata().get(DIVISION) if isinstance(leaf, nnx.Variable) else None
    return division if division is not None and division.holds(leaf.get_raw_value()) else None


def whole_value(leaf: Any) -> Any:
    """Return a leaf's value; of one that is divided the whole array, for which all ranks must call."""
    value, division = leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf, division_of(leaf)
    return value if division is None else division.whole(value)


def whole_shape(leaf: Any) -> Any:
    """Return a leaf's value; of one that is divided the whole array's shape."""
    value, division = leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf, division_of(leaf)
    return value if division is None else jax.ShapeDtypeStruct(division.shape, value.dtype)


def undivided(variable: nnx.Variable, value: Any) -> nnx.Variable:
    """Return a copy of a Variable with a whole array."""
    copied = variable.copy(value)
    copied.set_metadata({name: x for name, x in copied.get_metadata().items() if name != DIVISION})
    return copied


class DividedArrays(ObjectArrays):
    """The arrays of an optimizer, some of which replicas divide: `shapes` are theirs, by position."""

    shapes: Sequence[Shape | None] = ()

    def divide(self, shapes: Sequence[Shape | None]) -> None:
        self.shapes = shapes
        self.read()

    def divide_shapes(self, shapes: Sequence[Shape | None]) -> None:
        """As `divide`, of an optimizer without values."""
        self.shapes = shapes
        self._divide(self.current_values())

    def read(self) -> list:
        self.view = view = view_nnx(self.thing)
        values = view.current_values()
        check_alive(values, view.names, self.function)
        self.clean = self._is_written(values)
        if self.clean:
            return values
        self._divide(values)
        assert self.placement is not None
        if self.placement.of_topology:
            return values
        others = [i for i, shape in enumerate(self.shapes) if shape is None]
        names = [view.names[i] for i in others]
        for i, x in zip(others, spread([values[i] for i in others], names, self.placement), strict=True):
            values[i] = x
        return values

    def _divide(self, values: list) -> None:
        for i, (leaf, shape) in enumerate(zip(self.view.leaves, self.shapes, strict=True)):
            if shape is None:
                continue
            division = Division(shape, self.world)
            if not division.holds(values[i]):
                values[i] = division.divided(values[i])
                leaf.set_raw_value(values[i])
            leaf.set_metadata(DIVISION, division)

    def for_program(self, values: list) -> list:
        return self._written if self.clean else self._converted(values, self.world.shared, self.world.stacked)

    def write(self, values: list) -> None:
        local = self._converted(values, self.world.local_shared, self.world.local_stacked)
        self._object_values, self._written = self.view.put(local), values

    def shaped(self, values: list, shared: Any) -> list:
        """Return values as shapes with the program's shardings; `shared` does so for those on all devices."""
        local = self.world.local

        def stacked(tree: PyTree) -> PyTree:
            return self.world.stacked(jax.tree.map(lambda x: shape_of(x, local.stacked), tree))

        return self._converted(values, shared, stacked)

    def _converted(self, values: list, shared: Any, stacked: Any) -> list:
        """Apply `stacked` to divided values and `shared` to the others."""
        converted = [None if shape else x for x, shape in zip(values, self.shapes, strict=True)]
        slices = [x if shape else None for x, shape in zip(values, self.shapes, strict=True)]
        pairs = zip(shared(converted), stacked(slices), self.shapes, strict=True)
        return [piece if shape else x for x, piece, shape in pairs]


def _refuse(tx: optax.GradientTransformation, *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "Optimizer.update: this optimizer's arrays are divided between the replicas, because its "
        "DistributedDataParallel has shard_optimizer=True. Only the step that jaxpar.train_step made updates "
        "with them."
    )


def whole_again(optimizer: nnx.Optimizer) -> None:
    """Undo a division, for a step that divides differently or does not."""
    for leaf in _divided(optimizer):
        leaf.update_from_state(undivided(leaf, jnp.asarray(whole_value(leaf))))
    if usable(optimizer.tx) is not optimizer.tx:
        optimizer.tx = usable(optimizer.tx)


def only_by_steps(optimizer: nnx.Optimizer) -> None:
    """Let `update` raise outside of a step, where the shapes of pieces could fit by broadcasting."""
    if optimizer.tx is not None:
        update = functools.partial(_refuse, optimizer.tx)
        optimizer.tx = optax.GradientTransformationExtraArgs(optimizer.tx.init, update)


def usable(tx: Any) -> Any:
    """Return the transformation that `only_by_steps` has replaced."""
    update = getattr(tx, "update", None)
    return update.args[0] if isinstance(update, functools.partial) and update.func is _refuse else tx


def _divided(optimizer: nnx.Optimizer) -> Iterator[nnx.Variable]:
    for _, leaf in nnx.to_flat_state(nnx.state(optimizer, graph=True)):
        if isinstance(leaf, nnx.Variable) and DIVISION in leaf.get_metadata():
            yield leaf
