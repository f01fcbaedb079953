"""batch_norm over all axes but the last, and over all replicas if an axis is named.

Sums and counts are added up first, then the squared distances from the mean: two small all-reduces, and the
variance of the complete batch to the last digit (docs/semantics.md rows B2, B3).
"""

from __future__ import annotations

import collections
import math

import jax
import jax.numpy as jnp

from ..._arguments import NonNegative
from ..._statistics.moments import global_count, global_moments, moments, standardize, update_running, widened
from ..._typing import Axis, ReplicaGroups
from .._checks import check_groups


def batch_norm(
    x: jax.Array,
    running_mean: jax.Array | None,
    running_var: jax.Array | None,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    training: bool = False,
    momentum: NonNegative | jax.Array = 0.1,
    eps: NonNegative = 1e-5,
    *,
    axis_name: Axis = None,
    mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Batch normalisation of [..., C].

    Args:
      x: [..., C], at least two axes.
      running_mean, running_var: [C], or None.
      scale, bias: [C]; None for 1 and for 0.
      training: normalise by x's own statistics; otherwise by the running ones.
      momentum: the fraction of a running value that this batch replaces.
      eps: added to the variance under the root.
      axis_name: mesh axes over which the batch is spread; the statistics are the complete batch's.
      mask: booleans of the shape of x's first axes, so [b] for rows. Where it is False, x does not count for
        the statistics and is taken as 0.

    Returns: y of x's shape and type, and the running mean and variance, updated in training. As in torch, x
    is divided by the biased variance and the unbiased one is stored, which for a single value under a mask is
    NaN. Raises: ValueError: fewer than two axes, a last axis of the wrong length, a single value per channel
    in training, eps <= 0 in training, no running values in evaluation. TypeError: integers.

    torch counterpart: `torch.nn.functional.batch_norm`, which updates the running values in place. Source:
    torch/nn/functional.py, torch/nn/modules/_functions.py.
    """
    if x.ndim < 2:
        raise ValueError(f"expected at least 2D input (got {x.ndim}D input)")
    if training and not eps:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    C = x.shape[-1]
    for name, vector in (("scale", scale), ("bias", bias), ("running_mean", running_mean)):
        if vector is not None and vector.shape != (C,):
            raise ValueError(
                f"BatchNorm: the last axis of {x.shape} is not num_features={vector.shape[0]} ({name})."
            )
    wide = widened("batch_norm", x)
    if mask is not None:
        mask = _aligned(mask, x)
        # Masked rows become 0, as `global_moments` requires.
        wide = jnp.where(mask, wide, 0)
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("Expected running_mean and running_var to be defined when training=False")
        mean, var = running_mean, running_var
    else:
        axes = tuple(range(x.ndim - 1))
        count = global_count(wide, mask, axes, axis_name)
        # With several replicas one row each is enough; a mask's count is only known on the device.
        alone = axis_name is None or _fewest(axis_name) == 1
        if mask is None and alone and math.prod(x.shape[:-1]) == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {x.shape}"
            )
        mean, var = (m.reshape(C) for m in global_moments(wide, mask, 1.0 * count, axes, axis_name))
        if running_mean is not None and running_var is not None:
            unbiased = var * (count / (count - 1))
            # A batch whose rows are all masked must not change the running values.
            nonempty = jnp.asarray(count > 0)
            running_mean = jnp.where(nonempty, update_running(running_mean, mean, momentum), running_mean)
            running_var = jnp.where(nonempty, update_running(running_var, unbiased, momentum), running_var)
    return standardize(wide, mean, var, scale, bias, eps).astype(x.dtype), running_mean, running_var


def _fewest(axis_name: Axis) -> int:
    """Number of replicas in the smallest group."""
    if isinstance(axis_name, ReplicaGroups):
        return min(collections.Counter(axis_name.numbers).values())
    return jax.lax.axis_size(axis_name)


def _aligned(mask: jax.Array, x: jax.Array) -> jax.Array:
    if mask.dtype != jnp.bool_ or mask.ndim >= x.ndim or mask.shape != x.shape[: mask.ndim]:
        raise ValueError(
            f"batch_norm: mask is {mask.dtype}{list(mask.shape)}; booleans of the shape of the first axes "
            f"of {x.shape} are needed, the last one left out."
        )
    return mask.reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim))


def group_norm(
    x: jax.Array,
    num_groups: int,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: NonNegative = 1e-5,
) -> jax.Array:
    """Normalise each row over its space and C / num_groups neighbouring channels.

    Args:
      x: [N, ..., C].
      num_groups: of channels; it divides C.
      scale, bias: [C]; None for 1 and for 0.
      eps: added to the variance under the root.

    Raises: ValueError: a single value per group, or a number of groups that does not divide C. RuntimeError:
    fewer than two axes, or parameters whose length is not C. TypeError: integers.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.group_norm(jnp.ones((2, 4, 4, 6)), 3).shape
    (2, 4, 4, 6)

    torch counterpart: `torch.nn.functional.group_norm`. Source: ATen/native/group_norm.cpp.
    """
    if x.ndim < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {x.ndim}")
    C = x.shape[-1]
    check_groups(num_groups, C)
    for name, vector in (("scale", scale), ("bias", bias)):
        if vector is not None and vector.shape != (C,):
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, but got "
                f"{name} of shape {list(vector.shape)} and input of shape {list(x.shape)}"
            )
    # torch's condition: it counts the values of all rows together, although each row has its own statistics.
    if math.prod(x.shape) == num_groups:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
    grouped = (num_groups, C // num_groups)
    wide = widened("group_norm", x).reshape(*x.shape[:-1], *grouped)
    mean, var = moments(wide, (*range(1, x.ndim - 1), x.ndim))
    scale, bias = (v if v is None else v.reshape(grouped) for v in (scale, bias))
    return standardize(wide, mean, var, scale, bias, eps).reshape(x.shape).astype(x.dtype)


def instance_norm(
    x: jax.Array,
    running_mean: jax.Array | None = None,
    running_var: jax.Array | None = None,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    use_input_stats: bool = True,
    momentum: NonNegative = 0.1,
    eps: NonNegative = 1e-5,
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Normalise each channel of each row over its space.

    Args:
      x: [N, ..., C], at least three axes.
      running_mean, running_var: [C], or None.
      scale, bias: [C]; None for 1 and for 0.
      use_input_stats: normalise by x's own statistics; otherwise by the running ones.
      momentum, eps: as in `batch_norm`.

    Returns: y of x's shape and type, and the running mean and variance, updated if `use_input_stats`: with
    the mean over all rows of their means and unbiased variances. Raises: ValueError: fewer than three axes,
    parameters whose length is not C, a space of one element, no running values where they are needed.
    TypeError: integers.

    torch counterpart: `torch.nn.functional.instance_norm`, which updates the running values in place. Source:
    ATen/native/Normalization.cpp.
    """
    if x.ndim < 3:
        raise ValueError(f"expected at least 3D input (got {x.ndim}D input)")
    C = x.shape[-1]
    for vector in (running_mean, running_var, scale, bias):
        if vector is not None and vector.shape != (C,):
            raise ValueError(
                f"expected the last axis of {x.shape} to match num_features ({vector.shape[0]}), but got {C}"
            )
    wide = widened("instance_norm", x)
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise ValueError(
                "Expected running_mean and running_var to be defined when use_input_stats is false"
            )
        return (
            standardize(wide, running_mean, running_var, scale, bias, eps).astype(x.dtype),
            running_mean,
            running_var,
        )
    space = tuple(range(1, x.ndim - 1))
    n = math.prod(x.shape[1:-1])
    if n == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {x.shape}")
    mean, var = moments(wide, space)
    # Without rows the mean of their means is NaN, which must not be stored.
    if running_mean is not None and running_var is not None and x.size:
        rows = tuple(range(x.ndim - 1))
        running_mean = update_running(running_mean, mean.mean(rows), momentum)
        running_var = update_running(running_var, var.mean(rows) * (n / (n - 1)), momentum)
    return standardize(wide, mean, var, scale, bias, eps).astype(x.dtype), running_mean, running_var
