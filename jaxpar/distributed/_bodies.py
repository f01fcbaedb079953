"""Per-rank programs of the collectives: functions of this rank's array [...] and the number of ranks W."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from .._typing import PyTree


class ReduceOp(enum.StrEnum):
    """Reductions, with torch's names and short string values; `"mean"` equals `ReduceOp.AVG`.

    >>> from jaxpar.distributed import ReduceOp
    >>> ReduceOp.AVG == "mean"
    True

    torch counterpart: `torch.distributed.ReduceOp`. Instead of its PREMUL_SUM (NCCL only), multiply before
    the sum.
    """

    SUM = "sum"
    AVG = "mean"
    MAX = "max"
    MIN = "min"
    PRODUCT = "product"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


RANK = "rank"
"""Name of the mesh axis over the ranks."""
Body = Callable[[jax.Array, int, str], PyTree]
"""A function of this rank's array, the number of ranks, and an option, run inside `jax.shard_map`."""
BITWISE = {"band": jnp.bitwise_and, "bor": jnp.bitwise_or, "bxor": jnp.bitwise_xor}


def one_per_rank(body: Body) -> Body:
    """Mark a body whose result differs between ranks: this rank's own rows of a global array."""
    # An attribute, not a wrapper: compiled programs are cached under the body itself.
    setattr(body, "one_per_rank", True)  # noqa: B010
    return body


def reduce(x: jax.Array, W: int, op: str) -> jax.Array:
    if op in BITWISE:
        return functools.reduce(BITWISE[op], gather(x, W, ""))
    # XLA's psum has no booleans. Counting keeps "any" and "all" one all-reduce.
    if x.dtype == bool:
        counts = jax.lax.psum(x.astype(jnp.int32), RANK)
        return counts > 0 if op in ("sum", "max") else counts == W
    if op in ("max", "min"):
        return (jax.lax.pmax if op == "max" else jax.lax.pmin)(x, RANK)
    # JAX has no `pprod`.
    if op == "product":
        return jnp.prod(jax.lax.all_gather(x, RANK), 0, dtype=x.dtype)
    total = jax.lax.psum(x, RANK)
    return _divided(total, W) if op == "mean" else total


def _divided(total: jax.Array, W: int) -> jax.Array:
    if jnp.issubdtype(total.dtype, jnp.complexfloating):
        return jax.lax.complex(_divided(total.real, W), _divided(total.imag, W))
    # If XLA saw the constant, it would multiply by 1 / W, which is rounded itself.
    return total / jax.lax.optimization_barrier(jnp.full(total.shape, W, total.dtype))


def gather(x: jax.Array, W: int, option: str) -> list[jax.Array]:
    together = jax.lax.all_gather(x, RANK)
    return [together[rank] for rank in range(W)]


def send(x: jax.Array, W: int, src: str) -> jax.Array:
    # A sum of integers of which all but one are 0 is exact, also for the bits of -0.0 and NaN. A sum of the
    # floats would turn -0.0 into 0.0 and could change the bits of a NaN.
    bits = _bits(x)
    bits = jax.lax.psum(jnp.where(jax.lax.axis_index(RANK) == int(src), bits, jnp.zeros_like(bits)), RANK)
    return _from_bits(bits, x.dtype)


@one_per_rank
def reduce_scatter(x: jax.Array, W: int, op: str) -> jax.Array:
    if op in ("sum", "mean") and x.dtype != bool:
        total = jax.lax.psum_scatter(x, RANK, scatter_dimension=0, tiled=True)
        return _divided(total, W) if op == "mean" else total
    # `psum_scatter` only adds, so every other reduction is made in full and cut.
    k = x.shape[0] // W
    return jax.lax.dynamic_slice_in_dim(reduce(x, W, op), jax.lax.axis_index(RANK) * k, k)


@one_per_rank
def scatter(x: jax.Array, W: int, src: str) -> jax.Array:
    """Return piece r of rank `src`'s array [W, ...] on rank r, as [1, ...], bit for bit like `send`."""
    bits = _bits(x)
    bits = jnp.where(jax.lax.axis_index(RANK) == int(src), bits, jnp.zeros_like(bits))
    return _from_bits(jax.lax.psum_scatter(bits, RANK, scatter_dimension=0, tiled=True), x.dtype)


def _bits(x: jax.Array) -> jax.Array:
    if x.dtype == bool:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _bits(jnp.stack([x.real, x.imag], -1))
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _from_bits(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.bool_) or jnp.issubdtype(dtype, jnp.integer):
        return bits.astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        halves = jax.lax.bitcast_convert_type(bits, f"float{4 * dtype.itemsize}")
        return jax.lax.complex(halves[..., 0], halves[..., 1])
    return jax.lax.bitcast_convert_type(bits, dtype)
