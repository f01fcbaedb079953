"""Programs: compiled programs, kept by the object that runs them.

A compiled program holds the function that was traced, and whatever that function closes over: a loss, its
arrays, a whole data set. In a cache of the module it would stay there for the life of the process. So every
wrapper and every step has its own `Programs`, which go when it goes. The functions that have no object of
their own (`data_parallel`, `parallel_apply`) share one, which `jaxpar.clear_caches` empties.

torch compiles nothing here; its counterpart is `torch.compiler.reset`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

MOST = 256
"""Programs of one object. A function of the user that is another object at every call makes one each time."""


class Programs:
    """`programs(*what)` is `make(*what)`, made once for equal arguments.

    It may be an attribute of a Flax module, so it is part of the module's structure. There all are equal:
    which programs have been compiled does not make two modules different, and `nnx.jit` must not trace again
    for it.
    """

    def __init__(self, make: Callable[..., Any]):
        self._make = make
        self._made = functools.lru_cache(MOST)(make)

    def __call__(self, *what: Any) -> Any:
        return self._made(*what)

    def clear(self) -> None:
        self._made.cache_clear()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Programs)

    def __hash__(self) -> int:
        return hash(Programs)

    def __repr__(self) -> str:
        return "Programs()"

    def __deepcopy__(self, memo: object) -> Programs:
        return Programs(self._make)  # a copy of a module is another object, with programs of its own

    def __reduce__(self) -> tuple[Any, ...]:
        return Programs, (self._make,)  # executables cannot be pickled


_shared: list[Programs] = []


def shared(make: Callable[..., Any]) -> Programs:
    """Programs that no object owns."""
    _shared.append(Programs(make))
    return _shared[-1]


def clear_caches() -> None:
    """Forget all compiled programs that no wrapper and no step owns, and JAX's own caches.

    Programs of a `DataParallel`, a `DistributedDataParallel`, a `TrainStep` or an `OnDevice` go when that
    object goes. What remains are those of `data_parallel` and `parallel_apply`, and in JAX's caches the
    arrays that a function with an uneven batch closes over. Everything compiles again when it is needed
    again.

    torch counterpart: `torch.compiler.reset`.
    """
    for programs in _shared:
        programs.clear()
    jax.clear_caches()
