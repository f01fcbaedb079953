"""What the distributions share: parameters that are checked, shapes, and two kinds of draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._tree import has_tracers, is_staged
from .._typing import Array, Shape
from ..errors import StagedError
from ..random import Generator
from ..random.arguments import checked_generator

D = TypeVar("D", bound="Distribution")
Constraint = tuple[str, Callable[[jax.Array], jax.Array]]
"""torch's name, and a function that tells which events are allowed."""

REAL: Constraint = ("Real()", lambda x: x == x)


class Distribution:
    """The base of `Categorical`, `Normal` and `Bernoulli`.

    A distribution is a pytree of its parameters: compiled functions take and return it, `jax.vmap` maps it.
    Values are checked where they are concrete, outside of `jax.jit` and `jax.vmap`, and shapes always.

    torch counterpart: `torch.distributions.Distribution`.
    """

    has_rsample = False
    has_enumerate_support = False
    constraints: ClassVar[dict[str, Constraint]] = {}
    """By parameter, in torch's order."""

    def __init__(self, parameters: dict[str, jax.Array], validate_args: bool | None):
        self._parameters = parameters
        # As in torch, `python -O` checks nothing by default.
        self._validate_args = __debug__ if validate_args is None else validate_args
        for name, value in parameters.items() if self._validate_args else ():
            text, check = self.constraints[name]
            if not _all(check, value):
                raise ValueError(
                    f"Expected parameter {name} (Array of shape {value.shape}) of distribution {self!r} to "
                    f"satisfy the constraint {text}, but found invalid values:\n{value}"
                )

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_node(cls, cls._flatten, cls._unflatten)

    def _flatten(self) -> tuple[tuple, tuple]:
        return tuple(self._parameters.values()), (tuple(self._parameters), self._validate_args)

    @classmethod
    def _unflatten(cls: type[D], aux: tuple, children: Sequence[Any]) -> D:
        new = object.__new__(cls)
        new._parameters, new._validate_args = dict(zip(aux[0], children, strict=True)), aux[1]
        return new

    def __repr__(self) -> str:
        shown = (f"{name}: {x if x.size == 1 else x.shape}" for name, x in self._parameters.items())
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def _first(self) -> jax.Array:
        return next(iter(self._parameters.values()))

    @property
    def batch_shape(self) -> Shape:
        """The shape of the parameters."""
        return self._first.shape

    @property
    def event_shape(self) -> Shape:
        """The shape of one draw of one distribution: ()."""
        return ()

    @property
    def variance(self) -> jax.Array:
        raise NotImplementedError

    @property
    def stddev(self) -> jax.Array:
        """The square root of the variance."""
        return jnp.sqrt(self.variance)

    def expand(self: D, batch_shape: Sequence[int]) -> D:
        """Return the distribution with its parameters broadcast to a batch shape."""
        event = self._first.shape[len(self.batch_shape) :]
        children = [jnp.broadcast_to(x, (*batch_shape, *event)) for x in self._parameters.values()]
        return self._unflatten((tuple(self._parameters), self._validate_args), children)

    def sample(
        self,
        sample_shape: Sequence[int] = (),
        *,
        generator: Generator | None = None,
        key: Array | None = None,
    ) -> jax.Array:
        """Draw an array of shape `sample_shape + batch_shape`; no gradient goes through it.

        Args:
          sample_shape: how many draws.
          generator: a `jaxpar.random.Generator`, for torch's draws, which are made on the host.
          key: instead, a `jax.random.key`, for JAX's draws, also inside of compiled functions.

        Raises: ValueError: not one of generator and key. StagedError: a generator under `jax.jit` or `vmap`.
        """
        fixed, shape = jax.lax.stop_gradient(self), (*sample_shape, *self.batch_shape)
        if self._is_torchs("sample", generator, key):
            return jnp.asarray(fixed._torch_draw(shape, generator))
        return fixed._jax_draw(shape, key)

    def _is_torchs(self, method: str, generator: Any, key: Any) -> bool:
        """Whether a draw is torch's; it is JAX's otherwise."""
        function = f"{type(self).__name__}.{method}"
        if (generator is None) == (key is None):
            raise ValueError(
                f"{function}: give one of generator, a jaxpar.random.Generator for torch's draws, and key, "
                "a jax.random.key for JAX's."
            )
        if generator is None:
            return False
        checked_generator(function, generator)
        if is_staged() or has_tracers(jax.lax.stop_gradient(self)):
            raise StagedError(
                f"{function}: a generator draws on the host, and this is inside of jax.jit, vmap, scan or "
                "the like, which would draw once, when it is compiled. Draw outside, or give key=, a "
                "jax.random.key."
            )
        return True

    def _torch_draw(self, shape: Shape, generator: Any) -> np.ndarray:
        raise NotImplementedError

    def _jax_draw(self, shape: Shape, key: Any) -> jax.Array:
        raise NotImplementedError

    @property
    def _support(self) -> Constraint:
        return REAL

    def _checked(self, value: Array, method: str = "log_prob") -> jax.Array:
        """Return a value to score, of a shape that broadcasts with the batch, and in the support."""
        if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
            raise ValueError(f"The value argument to {method} must be an array")
        value = jnp.asarray(value)
        if not self._validate_args:
            return value
        for i, j in zip(reversed(value.shape), reversed(self.batch_shape), strict=False):
            if 1 not in (i, j) and i != j:
                raise ValueError(
                    f"Value is not broadcastable with batch_shape+event_shape: {value.shape} vs "
                    f"{self.batch_shape}."
                )
        text, check = self._support
        if not _all(check, value):
            raise ValueError(
                f"Expected value argument (Array of shape {value.shape}) to be within the support ({text}) "
                f"of the distribution {self!r}, but found invalid values:\n{value}"
            )
        return value


def _all(check: Callable[[jax.Array], jax.Array], value: jax.Array) -> bool:
    value = jax.lax.stop_gradient(value)  # an eager derivative has a value
    return is_staged() or has_tracers(value) or bool(check(value).all())


def broadcast(*values: Any) -> list[jax.Array]:
    """Broadcast parameters; Python numbers take the dtype of the arrays, or JAX's default one."""
    arrays = [jnp.asarray(x) for x in values if not isinstance(x, (int, float))]
    dtype = jnp.result_type(*arrays) if arrays else jnp.result_type(float)
    if not jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.result_type(float)
    return list(jnp.broadcast_arrays(*(jnp.asarray(x, dtype) for x in values)))
