"""Activations that JAX lacks, or whose derivative at a kink differs between torch and JAX.

Values at a kink are common (padding, dead units). For relu, elu, selu and silu use jax.nn.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..._arguments import Extended
from .._checks import check_bounds


def gelu(x: jax.Array, approximate: str = "none") -> jax.Array:
    """x Phi(x), or with approximate="tanh", JAX's default, a formula that is 5e-5 off.

    Raises: ValueError: an unknown `approximate`.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.gelu(jnp.array([-10.0, 0.0, 10.0])).round(3).tolist()
    [-0.0, 0.0, 10.0]

    torch counterpart: `torch.nn.functional.gelu`.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate argument must be either none or tanh, but got {approximate}.")
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def prelu(x: jax.Array, negative_slope: jax.Array) -> jax.Array:
    """x where it is above 0, else negative_slope x.

    Args:
      x: [..., C].
      negative_slope: [C], [1] or [].

    Raises: ValueError: the number of slopes is neither 1 nor C.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.prelu(jnp.array([[-2.0, -2.0]]), jnp.array([0.25, 0.5])).tolist()
    [[-0.5, -1.0]]

    torch counterpart: `torch.nn.functional.prelu`; at 0 the derivative is the slope.
    """
    if negative_slope.size not in (1, x.shape[-1] if x.ndim else 1):
        raise ValueError(
            "Mismatch of parameter numbers and input channel size. Found parameter numbers = "
            f"{negative_slope.size} and channel size = {x.shape[-1]}."
        )
    slope = negative_slope.reshape(-1 if x.ndim else ())
    return jnp.where(x > 0, x, slope * x)


def rrelu(
    x: jax.Array,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *,
    key: jax.Array | None = None,
    slope: jax.Array | None = None,
) -> jax.Array:
    """x where it is above 0, else x times a slope drawn from [lower, upper) for each element.

    Args:
      lower, upper: outside of training the slope is their mean.
      key: draws the slopes.
      slope: the slopes themselves, of a shape that broadcasts to x's.

    Raises: ValueError: lower above upper; neither key nor slope in training.

    torch counterpart: `torch.nn.functional.rrelu`.
    """
    check_bounds(lower, upper)
    if not training:
        slope = jnp.asarray((lower + upper) / 2, x.dtype)
    elif slope is None:
        if key is None:
            raise ValueError("rrelu: there is neither a key nor a slope, and training is True.")
        slope = jax.random.uniform(key, x.shape, x.dtype, lower, upper)
    return jnp.where(x > 0, x, slope * x)


def leaky_relu(x: jax.Array, negative_slope: float = 0.01) -> jax.Array:
    """x where it is above 0, else negative_slope x; at 0 the derivative is the slope.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.leaky_relu(jnp.array([-2.0, 3.0]), 0.5).tolist()
    [-1.0, 3.0]

    torch counterpart: `torch.nn.functional.leaky_relu`; the derivative of `jax.nn.leaky_relu` at 0 is 1.
    """
    return jnp.where(x > 0, x, negative_slope * x)


def hardtanh(x: jax.Array, min_val: Extended = -1.0, max_val: Extended = 1.0) -> jax.Array:
    """x between `min_val` and `max_val`; at both the derivative is 0.

    Raises: ValueError: max_val is not above min_val.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.hardtanh(jnp.array([-2.0, 0.5, 3.0])).tolist()
    [-1.0, 0.5, 1.0]

    torch counterpart: `torch.nn.functional.hardtanh`; `jax.nn.hard_tanh` has the derivative 1 there.
    """
    if max_val <= min_val:
        raise ValueError(f"max_val ({max_val}) must be greater than min_val ({min_val})")
    linear = (x > min_val) & (x < max_val)
    return jnp.where(linear | jnp.isnan(x), x, jax.lax.stop_gradient(jnp.clip(x, min_val, max_val)))


def softshrink(x: jax.Array, lambd: float = 0.5) -> jax.Array:
    """x moved towards 0 by `lambd`, and 0 with derivative 0 where |x| <= lambd.

    Raises: ValueError: lambd below 0.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.softshrink(jnp.array([-2.0, 0.25, 2.0])).tolist()
    [-1.5, 0.0, 1.5]

    torch counterpart: `torch.nn.functional.softshrink`.
    """
    if lambd < 0:
        raise ValueError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    return jnp.where(x > lambd, x - lambd, jnp.where(x < -lambd, x + lambd, x * 0))


def hardshrink(x: jax.Array, lambd: float = 0.5) -> jax.Array:
    """x, and 0 with derivative 0 where |x| <= lambd.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.hardshrink(jnp.array([-2.0, 0.25, 2.0])).tolist()
    [-2.0, 0.0, 2.0]

    torch counterpart: `torch.nn.functional.hardshrink`.
    """
    return jnp.where((x >= -lambd) & (x <= lambd), jnp.zeros_like(x), x)


def threshold(x: jax.Array, threshold: Extended, value: Extended) -> jax.Array:
    """x where it is above `threshold`, else `value`.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.threshold(jnp.array([0.5, 2.0]), 1.0, 9.0).tolist()
    [9.0, 2.0]

    torch counterpart: `torch.nn.functional.threshold`.
    """
    return jnp.where(x <= threshold, jnp.asarray(value, x.dtype), x)
