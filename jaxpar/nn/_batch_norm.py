"""BatchNorm with torch's running statistics; SyncBatchNorm, over all replicas.

Flax's layer differs in four ways that matter to a port: `momentum` is the part that is kept (torch:
the part that is replaced), the running variance is the biased one (torch stores the unbiased), the
default variance is E[x^2] - E[x]^2, which loses digits when the mean is large, and a batch of one
value per channel passes silently. With `axis_name` it takes the mean of the replicas' means, which
is another number than the mean of the batch when `mask` leaves them different numbers of rows.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ._variable import filled, values
from .functional import batch_norm
from .functional._batch_norm import check_eps


class BatchNorm(nnx.Module):
    """Normalises [..., C] over all axes but the last, per replica.

    Args:
      num_features: C.
      eps: added to the variance under the root.
      momentum: how much of a running value one batch replaces; None for the average of all batches.
      affine: whether there are `scale` and `bias`, both [C].
      track_running_stats: whether there are running statistics; without them every call normalises
        with its own batch.
      bias: whether there is a `bias` where there is a `scale`.
      dtype: of the output; the input's if left out, as in torch.
      param_dtype: of parameters and statistics.
      rngs: unused, for Flax's habit of passing it.

    `use_running_average` is False in training and True after `module.eval()`.

    Raises:
      ValueError: in training, with a single value per channel or eps = 0; when it is made, with a
        negative eps.

    torch counterpart: `torch.nn.BatchNorm1d/2d/3d` with channels last: `weight` is `scale`,
    `running_mean` is `mean`, `running_var` is `var`. Source: torch/nn/modules/batchnorm.py.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        check_eps(eps, training=False)
        shape = (num_features,)
        self.scale = filled(affine, 1, shape, param_dtype)
        self.bias = filled(affine and bias, 0, shape, param_dtype)
        self.mean = filled(track_running_stats, 0, shape, param_dtype, nnx.BatchStat)
        self.var = filled(track_running_stats, 1, shape, param_dtype, nnx.BatchStat)
        self.num_batches_tracked = filled(track_running_stats, 0, (), jnp.int32, nnx.BatchStat)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.dtype = dtype
        self.use_running_average = False

    def __call__(self, x: jax.Array) -> jax.Array:
        return self._normalize(x)

    def _normalize(self, x: jax.Array, **over: Any) -> jax.Array:
        if x.shape[-1:] != (self.num_features,):
            raise ValueError(
                f"{type(self).__name__}: the last axis of {x.shape} is not num_features={self.num_features}."
            )
        own = self.mean is None or not self.use_running_average
        tracking = self.mean is not None and not self.use_running_average
        momentum: Any = self.momentum
        if tracking:
            self.num_batches_tracked[...] += 1
            if momentum is None:
                wide = jnp.promote_types(self.mean[...].dtype, jnp.float32)
                momentum = 1 / self.num_batches_tracked[...].astype(wide)
        mean, var, scale, bias = values(self.mean, self.var, self.scale, self.bias)
        momentum = 0.0 if momentum is None else momentum  # nothing is tracked
        y, mean, var = batch_norm(x, mean, var, scale, bias, own, momentum, self.eps, **over)
        if tracking:
            self.mean.set_value(mean)
            self.var.set_value(var)
        return y if self.dtype is None else y.astype(self.dtype)
