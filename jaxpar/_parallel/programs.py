"""Programs: compiled programs, owned by the object that runs them, and freed with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

MOST = 256  # programs per object; a function that is new at every call adds one each time


class Programs:
    """`programs(*key)` is `make(*key)`, computed once for equal arguments. All Programs compare equal."""

    def __init__(self, make: Callable[..., Any]):
        self._make = make
        # Owned, not a shared cache with weak keys: eager `nnx.grad` makes a new module object at every call,
        # so such entries would die between calls.
        self._cached = functools.lru_cache(MOST)(make)

    def __call__(self, *key: Any) -> Any:
        return self._cached(*key)

    def clear(self) -> None:
        self._cached.cache_clear()

    def __eq__(self, other: object) -> bool:
        # An attribute of a Flax module is part of the module's structure. Which programs have been compiled
        # must not make two modules different, nor make `nnx.jit` trace again.
        return isinstance(other, Programs)

    def __hash__(self) -> int:
        return hash(Programs)

    def __repr__(self) -> str:
        return "Programs()"

    def __deepcopy__(self, memo: object) -> Programs:
        return Programs(self._make)  # a copy of a module owns different programs

    def __reduce__(self) -> tuple[Any, ...]:
        return Programs, (self._make,)  # executables cannot be pickled


_shared: list[Programs] = []


def shared(make: Callable[..., Any]) -> Programs:
    _shared.append(Programs(make))
    return _shared[-1]


def clear_caches() -> None:
    """Free all compiled programs that no wrapper and no step owns, and JAX's own caches.

    >>> import jaxpar
    >>> jaxpar.clear_caches()

    A wrapper's or step's programs are freed with that object. JAX's caches also hold the arrays that a
    function with an uneven batch closes over.

    torch counterpart: `torch.compiler.reset`.
    """
    for programs in _shared:
        programs.clear()
    jax.clear_caches()
