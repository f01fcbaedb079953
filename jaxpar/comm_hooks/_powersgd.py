"""powersgd: send two thin matrices whose product approximates each large gradient.

M = P Q^T with r columns in P and Q: (n + m) r numbers instead of n m. The approximation error is added to the
replica's next gradient. [n, m] is torch's [out, in]; Flax's kernels have the output last, so their axes are
permuted.

Sources: Vogels et al. 2019, and torch's distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, whose numbers
this reproduces (docs/semantics.md rows H5, H6).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._arguments import Count, NonNegative, Positive
from .._typing import Shape
from ..random import Generator
from ._default_hooks import allreduce
from .hook import Bucket, CommHook


def powersgd(
    matrix_approximation_rank: Positive = 1,
    start_powersgd_iter: Count = 1000,
    min_compression_rate: NonNegative = 2,
    use_error_feedback: bool = True,
    warm_start: bool = True,
    orthogonalization_epsilon: NonNegative = 0,
    random_seed: int = 0,
    *,
    order: Sequence[int] | None = None,
) -> CommHook:
    """Low-rank gradients, as torch's PowerSGD.

    Args:
      matrix_approximation_rank: r, the number of columns of P and Q.
      start_powersgd_iter: the number of initial calls that average gradients uncompressed.
      min_compression_rate: a gradient is compressed if its size shrinks by more than this factor.
      use_error_feedback: whether the approximation error is added to the next gradient.
      warm_start: whether Q starts from the previous one, instead of from new random numbers, which the host
        draws at each call.
      orthogonalization_epsilon: added to norms before division; required for gradients that are zero.
      random_seed: the seed of the random Q.
      order: the parameters' positions in torch's bucket, in which torch draws random numbers. Needed only to
        reproduce torch's numbers exactly: torch orders gradients by when they were ready, mostly from the
        last layer to the first.

    Raises:
      ValueError: `start_powersgd_iter` is not above 1 with error feedback or warm start.

    torch counterpart: `PowerSGDState` and `powerSGD_hook` (docs/semantics.md rows H5, H6).

    >>> import jax.numpy as jnp
    >>> from jaxpar.comm_hooks import powersgd
    >>> state = powersgd(matrix_approximation_rank=2).init([jnp.ones((64, 32)), jnp.ones(32)])
    >>> [q.shape for q in state.queries]
    [(64, 2)]
    """
    if (use_error_feedback or warm_start) and start_powersgd_iter <= 1:
        raise ValueError(
            "Expect `start_powersgd_iter` > 1 if `use_error_feedback` or `warm_start` is enabled, because "
            "PowerSGD can only be applied after the first two iterations in DDP."
        )
    settings = _PowerSGDSettings(
        matrix_approximation_rank,
        start_powersgd_iter,
        min_compression_rate,
        use_error_feedback,
        warm_start,
        orthogonalization_epsilon,
        random_seed,
        None if order is None else tuple(order),
    )
    return CommHook(functools.partial(_init, settings), functools.partial(_reduce, settings))


@dataclasses.dataclass(frozen=True)
class _PowerSGDSettings:
    rank: int
    start: int
    rate: float
    feedback: bool
    warm: bool
    epsilon: float
    seed: int
    order: tuple[int, ...] | None


class _PowerSGDState(NamedTuple):
    """The number of calls, the approximation error by parameter, and Q of the compressed gradients."""

    calls: jax.Array
    errors: list[jax.Array]
    queries: list[jax.Array]


class _Compressed(NamedTuple):
    """A compressed gradient: the index of its parameter, and the shape of its Q, [m, r]."""

    parameter: int
    shape: tuple[int, int]


def _init(settings: _PowerSGDSettings, parameters: list[jax.Array]) -> _PowerSGDState:
    large = _large(settings, [p.shape for p in parameters])
    drawn = _draw(settings, tuple(large), tuple(parameters[i].dtype for i, _ in large), 0)
    return _PowerSGDState(
        jnp.zeros((), jnp.int32),
        [jnp.zeros_like(p) for p in parameters] if settings.feedback else [],
        [jnp.asarray(q) for q in drawn] if settings.warm else [],
    )


def _reduce(
    settings: _PowerSGDSettings, state: _PowerSGDState, bucket: Bucket
) -> tuple[_PowerSGDState, list[jax.Array]]:
    # The loss and the buffers cannot be sent from inside lax.cond, so they need a separate message.
    bucket = dataclasses.replace(bucket, message=bucket.message.alone())

    def early() -> tuple[_PowerSGDState, list[jax.Array]]:
        _, reduced = allreduce.reduce((), bucket)
        return state._replace(calls=state.calls + 1), reduced

    # All replicas have made the same number of calls, so they all take the same branch, with its collectives.
    return lax.cond(state.calls < settings.start, early, lambda: _compressed(settings, state, bucket))


def _compressed(
    settings: _PowerSGDSettings, state: _PowerSGDState, bucket: Bucket
) -> tuple[_PowerSGDState, list[jax.Array]]:
    gradients = bucket.gradients
    if settings.feedback:
        gradients = [g + e for g, e in zip(gradients, state.errors, strict=True)]
    large = _large(settings, [g.shape for g in gradients])
    reduced = list(gradients)
    small = sorted(set(range(len(gradients))) - {i for i, _ in large})
    matrices = [_matrix(gradients[i]) for i, _ in large]
    orthogonal = functools.partial(_orthogonal, settings.epsilon)
    queries = [orthogonal(q) for q in _queries(settings, state, large, gradients)]
    sums = bucket.sum([gradients[i] for i in small] + [m @ q for m, q in zip(matrices, queries, strict=True)])
    for i, s in zip(small, sums, strict=False):
        reduced[i] = s / bucket.replicas
    # P is not divided by the number of replicas: only its directions are used.
    ps = [orthogonal(p) for p in sums[len(small) :]]
    sums = bucket.sum([m.T @ p for m, p in zip(matrices, ps, strict=True)])
    queries = [q / bucket.replicas for q in sums]
    for (i, _), p, q in zip(large, ps, queries, strict=True):
        reduced[i] = _kernel(p @ q.T, gradients[i].shape)
    errors = [g - r for g, r in zip(gradients, reduced, strict=True)] if settings.feedback else []
    return _PowerSGDState(state.calls + 1, errors, queries if settings.warm else []), reduced


# ---------------------------------------------------------------------------------------- matrices


def _axes(ndim: int) -> tuple[int, ...]:
    """Return the permutation from Flax's [..., in, out] to torch's [out, in, ...]."""
    return (ndim - 1, ndim - 2, *range(ndim - 2))


def _matrix(kernel: jax.Array) -> jax.Array:
    torch_like = kernel.transpose(_axes(kernel.ndim))
    return torch_like.reshape(torch_like.shape[0], -1)


def _kernel(matrix: jax.Array, shape: Shape) -> jax.Array:
    axes = _axes(len(shape))
    return matrix.reshape([shape[a] for a in axes]).transpose(np.argsort(axes))


def _large(settings: _PowerSGDSettings, shapes: Sequence[Shape]) -> list[_Compressed]:
    """Select the gradients worth compressing, in torch's order: grouped by the shape of the matrix."""
    order = range(len(shapes)) if settings.order is None else settings.order
    by_shape: dict[tuple[int, int], list[_Compressed]] = {}
    for i in order:
        if len(shapes[i]) > 1 and 0 not in shapes[i]:
            n = shapes[i][-1]
            m = int(np.prod(shapes[i][:-1]))
            r = min(n, m, settings.rank)
            if (n + m) * r * settings.rate < n * m:
                by_shape.setdefault((n, m), []).append(_Compressed(i, (m, r)))
    return [one for same in by_shape.values() for one in same]


def _orthogonal(epsilon: float, x: jax.Array) -> jax.Array:
    r = x.shape[1]
    if r > 2 and x.dtype not in (jnp.float16, jnp.bfloat16):
        return jnp.linalg.qr(x)[0]
    # Gram-Schmidt as in torch, whose `epsilon` has no counterpart in QR.
    columns: list[jax.Array] = []
    remaining = x
    for _ in range(r):
        column = remaining[:, :1]
        column = column / (jnp.sqrt(jnp.sum(column * column, 0, keepdims=True)) + epsilon)
        remaining = remaining[:, 1:]
        remaining = remaining - jnp.sum(column * remaining, 0, keepdims=True) * column
        columns.append(column)
    return jnp.concatenate(columns, 1)


# ---------------------------------------------------------------------------------- random numbers


def _queries(
    settings: _PowerSGDSettings, state: _PowerSGDState, large: list[_Compressed], gradients: list[jax.Array]
) -> Sequence[jax.Array]:
    if settings.warm:
        return state.queries
    dtypes = tuple(gradients[i].dtype for i, _ in large)
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for (_, shape), dtype in zip(large, dtypes, strict=True)]
    # A callback, because torch's generator runs on the host and the call number is only known at run time.
    draw = functools.partial(_draw, settings, tuple(large), dtypes)
    return jax.pure_callback(draw, shapes, state.calls - settings.start)


def _draw(
    settings: _PowerSGDSettings, large: tuple[_Compressed, ...], dtypes: tuple[Any, ...], number: Any
) -> list:
    seeds = np.random.RandomState(settings.seed).randint(1_000_000_000, size=int(number) + 1)
    generator = Generator(int(seeds[-1]))
    return [generator.randn(1, *q, dtype=dtype)[0] for (_, q), dtype in zip(large, dtypes, strict=True)]
