"""Definition: the code of a module, without its arrays."""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable
from typing import Any

import jax

from ..._typing import PyTree
from .records import Records

Changes = dict[Any, PyTree]


class Definition(abc.ABC):
    """The module without its arrays. Hashable: a key of compiled programs."""

    def __call__(
        self, values: Any, replica: jax.Array | None, args: tuple, kwargs: dict, /
    ) -> tuple[PyTree, Changes]:
        """Return outputs and changed values. A `replica` is folded into every random stream."""
        return self.apply(operator.call, values, replica, args, kwargs)

    def recorded(
        self, values: Any, replica: jax.Array | None, args: tuple, kwargs: dict, /
    ) -> tuple[PyTree, Changes, Records]:
        """The same, and what the call has recorded, which is not among the changes."""
        return *self(values, replica, args, kwargs), Records()

    def cast(self, values: Any, dtype: Any) -> Any:
        """Return the values with floating parameters in `dtype`."""
        return values

    @abc.abstractmethod
    def apply(
        self,
        function: Callable[..., Any],
        values: Any,
        replica: jax.Array | None,
        args: tuple,
        kwargs: dict,
        /,
    ) -> tuple[PyTree, Changes]:
        """The same for `function(module, *args, **kwargs)`."""


def fold(key: jax.Array, replica: jax.Array) -> jax.Array:
    """Return the stream of one replica, as torch's devices have their own (docs/semantics.md row 57)."""
    typed = jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    batch = key.ndim if typed else key.ndim - 1
    fold_in = jax.random.fold_in
    for _ in range(batch):
        fold_in = jax.vmap(fold_in, in_axes=(0, None))
    return fold_in(key, replica)
