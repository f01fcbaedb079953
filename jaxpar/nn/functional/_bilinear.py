"""bilinear: a linear map of the products of two vectors' elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def bilinear(x1: jax.Array, x2: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """x1 kernel x2 + bias, [..., O].

    Args:
      x1, x2: [..., I] and [..., J], the same rows.
      kernel: [I, J, O].
      bias: [O].

    Raises: ValueError: axes that differ.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.bilinear(jnp.ones((5, 2)), jnp.ones((5, 3)), jnp.ones((2, 3, 4))).shape
    (5, 4)

    torch counterpart: `torch.nn.functional.bilinear`, whose weight is [O, I, J].
    """
    if x1.shape[:-1] != x2.shape[:-1]:
        raise ValueError(
            f"bilinear(): input batch dimensions do not match: {x1.shape[:-1]} and {x2.shape[:-1]}"
        )
    for name, x, axis in (("x1", x1, 0), ("x2", x2, 1)):
        if x.shape[-1] != kernel.shape[axis]:
            raise ValueError(
                f"bilinear(): {name} size does not match kernel size: got {x.shape[-1]} but expected "
                f"{kernel.shape[axis]}"
            )
    y = jnp.einsum("...j,...jo->...o", x2, jnp.einsum("...i,ijo->...jo", x1, kernel))
    return y if bias is None else y + bias
