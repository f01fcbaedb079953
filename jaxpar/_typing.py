"""Type aliases and small types that every package uses.

N: replicas. B: rows of the global batch. b: rows of one replica. k: replicas that got rows, k <= N.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import jax
import numpy as np

PyTree: TypeAlias = Any
TreeDef: TypeAlias = jax.tree_util.PyTreeDef
Array: TypeAlias = jax.Array | np.ndarray
Shape: TypeAlias = tuple[int, ...]
DeviceLike: TypeAlias = int | str | jax.Device

REPLICA = "replica"  # the name of the mesh axis of the replicas

AxisName: TypeAlias = str | tuple[str, ...] | None  # over which a batch is spread; None: it is not


@dataclasses.dataclass(frozen=True)
class ReplicaGroups:
    """Which replicas sum together: the number of each one's group, the same on all ranks."""

    numbers: tuple[int, ...]


Axis: TypeAlias = AxisName | ReplicaGroups  # over which a batch with its own statistics is spread


class Static:
    """A value of a program, compared by value; one without a hash by identity, so that it is traced again."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any):
        self.value = value
        try:
            self._hash = hash((type(value), value))
        except TypeError:
            self._hash = id(self)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Static) or self._hash != other._hash:
            return False
        # 1, 1.0 and True are equal in Python and different programs here.
        return type(self.value) is type(other.value) and bool(self.value == other.value)

    def __repr__(self) -> str:
        return repr(self.value)


DIVISION = "division"
"""The metadata of a Variable whose array replicas divide: its value is this process's part of the array."""
