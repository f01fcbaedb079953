"""GroupNorm and InstanceNorm with torch's defaults; InstanceNorm with running statistics.

Flax's layers have an epsilon of 1e-6 (torch: 1e-5) and E[x^2] - E[x]^2 for a variance; its
InstanceNorm always has parameters unless told otherwise and never running statistics.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ._variable import filled, values
from .functional import group_norm, instance_norm
from .functional._group_norm import check_groups


class GroupNorm(nnx.Module):
    """Normalises each row [..., C] over its space and each group of neighbouring channels.

    Args:
      num_groups: of channels; it divides num_channels.
      num_channels: C.
      eps: added to the variance under the root.
      affine: whether there are `scale` and `bias`, both [C].
      bias: whether there is a `bias` where there is a `scale`.
      dtype: of the output; the input's if left out, as in torch.
      param_dtype: of the parameters.
      rngs: unused, for Flax's habit of passing it.

    Input and output: [N, ..., C].

    Raises:
      ValueError: when it is made, with groups that do not divide the channels; when it is called,
        with a single value per group. RuntimeError: another number of channels.

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
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        check_groups(num_groups, num_channels)
        shape = (num_channels,)
        self.scale = filled(affine, 1, shape, param_dtype)
        self.bias = filled(affine and bias, 0, shape, param_dtype)
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        scale, bias = values(self.scale, self.bias)
        y = group_norm(x, self.num_groups, scale, bias, self.eps)
        return y if self.dtype is None else y.astype(self.dtype)


class InstanceNorm(nnx.Module):
    """Normalises each channel of each row over its space.

    Args:
      num_features: C.
      eps: added to the variance under the root.
      momentum: how much of a running value one batch replaces; None for nothing, as in torch.
      affine: whether there are `scale` and `bias`, both [C].
      track_running_stats: whether there are running statistics `mean` and `var`, both [C]. They are
        used in evaluation; without them every call normalises with its own statistics.
      bias: whether there is a `bias` where there is a `scale`.
      dtype: of the output; the input's if left out, as in torch.
      param_dtype: of parameters and statistics.
      rngs: unused, for Flax's habit of passing it.

    Input and output: [N, ..., C]; a single row, which torch takes as well, is `layer(x[None])[0]`.
    `use_running_average` is False in training and True after `module.eval()`.

    Raises:
      ValueError: fewer than three axes, another number of channels (torch only warns of it without
        parameters), space of a single element.

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
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        shape = (num_features,)
        self.scale = filled(affine, 1, shape, param_dtype)
        self.bias = filled(affine and bias, 0, shape, param_dtype)
        self.mean = filled(track_running_stats, 0, shape, param_dtype, nnx.BatchStat)
        self.var = filled(track_running_stats, 1, shape, param_dtype, nnx.BatchStat)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.dtype = dtype
        self.use_running_average = False

    def __call__(self, x: jax.Array) -> jax.Array:
        if x.shape[-1:] != (self.num_features,):
            raise ValueError(
                f"InstanceNorm: the last axis of {x.shape} is not num_features={self.num_features}."
            )
        own = self.mean is None or not self.use_running_average
        mean, var, scale, bias = values(self.mean, self.var, self.scale, self.bias)
        y, mean, var = instance_norm(x, mean, var, scale, bias, own, self.momentum or 0.0, self.eps)
        if self.mean is not None and own:
            self.mean.set_value(mean)
            self.var.set_value(var)
        return y if self.dtype is None else y.astype(self.dtype)
