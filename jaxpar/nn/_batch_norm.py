"""BatchNorm with torch's running statistics.

Flax's layer differs in four ways that matter to a port: `momentum` is the part that is kept (torch:
the part that is replaced), the running variance is the biased one (torch stores the unbiased), the
default variance is E[x^2] - E[x]^2, which loses digits when the mean is large, and a batch of one
value per channel passes silently.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes


class BatchNorm(nnx.Module):
    """Normalises [..., C] over all axes but the last, per replica.

    Args:
      num_features: C.
      eps: added to the variance under the root.
      momentum: how much of a running value one batch replaces; None for the average of all batches.
      affine: whether there are `scale` and `bias`, both [C].
      track_running_stats: whether there are running statistics; without them every call normalises
        with its own batch.
      dtype: of the output; the input's and parameters' common type if left out.
      param_dtype: of parameters and statistics.
      rngs: unused, for Flax's habit of passing it.

    `use_running_average` is False in training and True after `module.eval()`.

    Raises:
      ValueError: in training, with a single value per channel.

    torch counterpart: `torch.nn.BatchNorm1d/2d/3d` with channels last: `weight` is `scale`,
    `running_mean` is `mean`, `running_var` is `var`. Source: torch/nn/modules/batchnorm.py.
    """

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        shape = (num_features,)
        self.scale = nnx.Param(jnp.ones(shape, param_dtype)) if affine else nnx.data(None)
        self.bias = nnx.Param(jnp.zeros(shape, param_dtype)) if affine else nnx.data(None)
        self.mean = nnx.BatchStat(jnp.zeros(shape, param_dtype)) if track_running_stats else nnx.data(None)
        self.var = nnx.BatchStat(jnp.ones(shape, param_dtype)) if track_running_stats else nnx.data(None)
        self.num_batches_tracked = (
            nnx.BatchStat(jnp.zeros((), jnp.int32)) if track_running_stats else nnx.data(None)
        )
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.dtype = dtype
        self.use_running_average = False

    def __call__(self, x: jax.Array) -> jax.Array:
        if x.shape[-1] != self.num_features:
            raise ValueError(
                f"BatchNorm: the last axis of {x.shape} is not num_features={self.num_features}."
            )
        if self.use_running_average and self.mean is not None:
            mean, var = self.mean[...], self.var[...]
        else:
            mean, var = self._batch_statistics(x)
        y = (x - mean) * jax.lax.rsqrt(var + self.eps)
        if self.scale is not None:
            y = y * self.scale[...] + self.bias[...]
        kept = [v[...] for v in (self.scale, self.bias) if v is not None]
        return y.astype(dtypes.canonicalize_dtype(x, *kept, dtype=self.dtype))

    def _batch_statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        n = x.size // self.num_features
        if n == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {x.shape}"
            )
        axes = tuple(range(x.ndim - 1))
        # Statistics of half-precision inputs are taken in float32, as torch does.
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        mean = wide.mean(axes)
        var = jnp.square(wide - mean).mean(axes)
        if self.mean is not None and n > 0:
            self._track(mean, var * (n / (n - 1)))
        return mean, var

    def _track(self, mean: jax.Array, unbiased: jax.Array) -> None:
        self.num_batches_tracked[...] += 1
        momentum: Any = self.momentum
        if momentum is None:
            momentum = 1 / self.num_batches_tracked[...].astype(self.mean[...].dtype)
        for running, batch in ((self.mean, mean), (self.var, unbiased)):
            new = (1 - momentum) * running[...] + momentum * jax.lax.stop_gradient(batch)
            running.set_value(new.astype(running[...].dtype))
