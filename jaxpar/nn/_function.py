"""Function: an operation with a gradient of its own, in torch's form."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class FunctionCtx:
    """The first argument of `forward` and `backward`: arrays and attributes that the former saves.

    torch counterpart: `torch.autograd.function.FunctionCtx`.
    """

    saved_tensors: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *arrays: Any) -> None:
        self.saved_tensors = arrays

    def mark_non_differentiable(self, *arrays: Any) -> None:
        """Do nothing: an output without a gradient has a cotangent of zeros."""

    def set_materialize_grads(self, value: bool) -> None:
        """Do nothing: cotangents are always arrays."""


class Function:
    """An operation whose gradient `backward` computes, instead of JAX.

    A subclass has two static methods. `forward(ctx, *arguments)` returns an array or a tuple of arrays;
    `backward(ctx, *cotangents)` takes one cotangent for each of these, and returns one gradient, or None, for
    each argument of `forward`. `apply(*arguments)` calls it.

    It is a `jax.custom_vjp`: differentiated once, in reverse mode.

    >>> import jax, jax.numpy as jnp
    >>> from jaxpar import nn
    >>> class Reversed(nn.Function):
    ...     @staticmethod
    ...     def forward(ctx, x, scale):
    ...         ctx.scale = scale
    ...         return x
    ...
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         return -ctx.scale * gradient, None
    >>> print(jax.grad(lambda x: Reversed.apply(x, 0.5))(1.0))
    -0.5

    Raises: ValueError: `backward` returns more or fewer gradients than `forward` has arguments.

    torch counterpart: `torch.autograd.Function`. Source: torch/autograd/function.py.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        raise NotImplementedError("Function: a subclass defines forward(ctx, *arguments)")

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise NotImplementedError("Function: a subclass defines backward(ctx, *cotangents)")

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """Return `forward`'s result; its gradient is `backward`'s."""
        values = [x[...] if isinstance(x, nnx.Variable) else x for x in arguments]
        positions = [i for i, x in enumerate(values) if isinstance(x, jax.Array | np.ndarray)]
        needs = tuple(i in positions and jnp.issubdtype(x.dtype, jnp.inexact) for i, x in enumerate(values))
        structure: list[Any] = []

        def called(arrays: tuple[Any, ...]) -> tuple[FunctionCtx, Any]:
            context = FunctionCtx()
            context.needs_input_grad = needs
            every = [*values]
            for i, array in zip(positions, arrays, strict=True):
                every[i] = array
            return context, cls.forward(context, *every)

        def forward(*arrays: Any) -> tuple[Any, list[jax.Array]]:
            context, output = called(arrays)
            leaves, tree = jax.tree.flatten(vars(context))
            is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
            static = [None if array else leaf for leaf, array in zip(leaves, is_array, strict=True)]
            structure[:] = [tree, is_array, static]
            return output, [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]

        def backward(saved: list[jax.Array], cotangents: Any) -> tuple[Any, ...]:
            tree, is_array, static = structure
            arrays = iter(saved)
            leaves = [next(arrays) if array else leaf for leaf, array in zip(static, is_array, strict=True)]
            context = FunctionCtx()
            vars(context).update(jax.tree.unflatten(tree, leaves))
            outputs = cotangents if isinstance(cotangents, tuple | list) else (cotangents,)
            gradients = cls.backward(context, *outputs)
            gradients = gradients if isinstance(gradients, tuple | list) else (gradients,)
            if len(gradients) < len(values) or any(x is not None for x in gradients[len(values) :]):
                raise ValueError(
                    f"{cls.__name__}: backward returned an incorrect number of gradients "
                    f"(expected {len(values)}, got {len(gradients)})"
                )
            return tuple(gradients[i] if needs[i] else None for i in positions)

        function = jax.custom_vjp(lambda *arrays: called(arrays)[1])
        function.defvjp(forward, backward)
        return function(*(values[i] for i in positions))
