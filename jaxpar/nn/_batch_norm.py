"""BatchNorm with torch's running statistics.

In Flax `momentum` is the fraction that is kept, the running variance is the biased one, the variance is
E[x^2] - E[x]^2, and a batch of one value per channel passes silently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from .._arguments import NonNegative, Size
from ._checks import check_groups
from ._layer import Layer, arrays, cast, constant
from .functional import batch_norm, group_norm, instance_norm


class BatchNorm(Layer):
    """Normalise [..., C] over all axes but the last, per replica.

    Args:
      num_features: C.
      eps: added to the variance under the root.
      momentum: the fraction of a running value that one batch replaces; None averages all batches.
      affine: whether there are `scale` and `bias`, both [C].
      track_running_stats: whether there are running statistics; without them every call normalises with its
        own batch.
      bias: whether there is a `bias` where there is a `scale`.
      dtype: of the output; the input's if left out, as in torch.
      param_dtype: of parameters and statistics.
      rngs: unused; accepted as by Flax's layers.

    `use_running_average` is False in training and True after `module.eval()`.

    Raises: ValueError: in training, for a single value per channel or eps = 0; at construction, for a
    negative eps.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> norm = nn.BatchNorm(3)
    >>> norm(jnp.ones((2, 5, 5, 3))).shape, int(norm.num_batches_tracked[...])
    ((2, 5, 5, 3), 1)

    torch counterpart: `torch.nn.BatchNorm1d/2d/3d` with channels last: `weight` is `scale`, `running_mean` is
    `mean`, `running_var` is `var`. Source: torch/nn/modules/batchnorm.py.
    """

    def __init__(
        self,
        num_features: Size,
        eps: NonNegative = 1e-5,
        momentum: NonNegative | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
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
        self.num_batches_tracked = constant(track_running_stats, 0, (), jnp.int32, nnx.BatchStat)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.dtype = dtype
        self.use_running_average = False

    def __call__(self, x: jax.Array) -> jax.Array:
        return self._normalize(x)

    def _normalize(self, x: jax.Array, **options: Any) -> jax.Array:
        check_channels(self, x)
        momentum, count, mean = self.momentum, self.num_batches_tracked, self.mean
        if count is not None and mean is not None and not self.use_running_average:
            # Counted before use, as in torch: the first batch has the weight 1.
            count[...] += 1
            if momentum is None:
                momentum = 1 / count[...].astype(jnp.promote_types(mean[...].dtype, jnp.float32))
        # momentum=None without running statistics: no average is updated.
        return normalize_and_track(self, batch_norm, x, 0.0 if momentum is None else momentum, **options)


def check_channels(layer: Any, x: jax.Array) -> None:
    if x.shape[-1:] != (layer.num_features,):
        raise ValueError(
            f"{type(layer).__name__}: the last axis of {x.shape} is not num_features={layer.num_features}."
        )


def normalize_and_track(
    layer: Any, function: Callable[..., Any], x: jax.Array, momentum: NonNegative | jax.Array, **options: Any
) -> jax.Array:
    # A layer without running statistics normalises by the batch in evaluation, too, as in torch.
    training = layer.mean is None or not layer.use_running_average
    state = arrays(layer.mean, layer.var, layer.scale, layer.bias)
    y, mean, var = function(x, *state, training, momentum, layer.eps, **options)
    if layer.mean is not None and training:
        layer.mean.set_value(mean)
        layer.var.set_value(var)
    return cast(y, layer.dtype)


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
        num_channels: Size,
        eps: NonNegative = 1e-5,
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
        num_features: Size,
        eps: NonNegative = 1e-5,
        momentum: NonNegative | None = 0.1,
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
