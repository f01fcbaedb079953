"""GroupNorm and InstanceNorm with torch's defaults; InstanceNorm with running statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from ._batch_norm import check_channels, normalize_and_track
from ._checks import check_groups
from ._layer import Layer
from ._variable import arrays, cast, constant
from .functional import group_norm, instance_norm


class GroupNorm(Layer):
    """Normalise each row of [N, ..., C] over its space and each group of neighbouring channels.

    Args:
      num_groups: of channels; it divides num_channels.
      num_channels: C.
      eps, affine, bias, dtype, param_dtype, rngs: as in `BatchNorm`.

    Raises: ValueError: at construction, if the groups do not divide the channels; when called, for a single
    value per group. RuntimeError: a different number of channels.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.GroupNorm(2, 4)(jnp.ones((3, 5, 4))).shape
    (3, 5, 4)

    torch counterpart: `torch.nn.GroupNorm`, channels last; `weight` is `scale`. Source:
    torch/nn/modules/normalization.py.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        check_groups(num_groups, num_channels)
        self.scale = constant(affine, 1, (num_channels,), param_dtype)
        self.bias = constant(affine and bias, 0, (num_channels,), param_dtype)
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        scale, bias = arrays(self.scale, self.bias)
        return cast(group_norm(x, self.num_groups, scale, bias, self.eps), self.dtype)


class InstanceNorm(Layer):
    """Normalise each channel of each row over its space.

    Args:
      num_features: C.
      momentum: the fraction of a running value that one batch replaces; None for nothing, as in torch.
      track_running_stats: whether there are running statistics `mean` and `var`, both [C]. They are used in
        evaluation; without them every call normalises with its own statistics.
      eps, affine, bias, dtype, param_dtype, rngs: as in `BatchNorm`.

    Input and output: [N, ..., C]; for a single row, which torch takes as well, `layer(x[None])[0]`.
    `use_running_average` is False in training and True after `module.eval()`.

    Raises: ValueError: fewer than three axes, a different number of channels (torch merely warns without
    parameters), a space of one element.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.InstanceNorm(4)(jnp.ones((3, 5, 4))).shape
    (3, 5, 4)

    torch counterpart: `torch.nn.InstanceNorm1d/2d/3d`, channels last, names as in `BatchNorm`; torch's
    `num_batches_tracked`, which stays 0 there, does not exist. Source: torch/nn/modules/instancenorm.py.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        shape = (num_features,)
        self.scale = constant(affine, 1, shape, param_dtype)
        self.bias = constant(affine and bias, 0, shape, param_dtype)
        self.mean = constant(track_running_stats, 0, shape, param_dtype, nnx.BatchStat)
        self.var = constant(track_running_stats, 1, shape, param_dtype, nnx.BatchStat)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.dtype = dtype
        self.use_running_average = False

    def __call__(self, x: jax.Array) -> jax.Array:
        check_channels(self, x)
        return normalize_and_track(self, instance_norm, x, self.momentum or 0.0)
