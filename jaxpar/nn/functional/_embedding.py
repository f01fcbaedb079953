"""embedding and embedding_bag: rows of a table, with torch's rules for the table's gradient and norms."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ..._arguments import Extended, Limit
from .._checks import check_embedding, check_embedding_bag


def embedding(
    x: jax.Array,
    embedding: jax.Array,
    padding_idx: int | None = None,
    max_norm: Limit | None = None,
    norm_type: Extended = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    """Rows of a table, [..., features].

    Args:
      x: integers [...]. An index below 0 or beyond the table raises in a host array, as in torch, and gives a
        row of NaN in an array of JAX.
      embedding: the table [num_embeddings, features].
      padding_idx: a row that gets no gradient; negative counts from the end.
      max_norm: read the rows as if `embedding_renorm` had shortened them. torch also writes the shorter rows
        into the table; call `embedding_renorm` for that.
      norm_type: the p of the norm.
      scale_grad_by_freq: divide a row's gradient by how often it occurs in x.
      sparse: refused.

    Raises: TypeError: x does not hold integers. IndexError: see x. ValueError: a padding_idx outside of the
    table; `sparse`.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.embedding(jnp.array([2, 0]), jnp.arange(6.0).reshape(3, 2)).tolist()
    [[4.0, 5.0], [0.0, 1.0]]

    torch counterpart: `torch.nn.functional.embedding`. Source: ATen/native/Embedding.cpp.
    """
    _check_indices("embedding", x, embedding.shape[0])
    check_embedding("embedding", embedding.shape, padding_idx, sparse)
    if max_norm is not None:
        embedding = embedding_renorm(x, embedding, max_norm, norm_type)
    y = _take_rows(x, embedding)
    if scale_grad_by_freq:
        y = _scaled_by_frequency(y, x, embedding.shape[0])
    if padding_idx is not None:
        y = jnp.where((x == padding_idx % embedding.shape[0])[..., None], jax.lax.stop_gradient(y), y)
    return y


def embedding_renorm(
    x: jax.Array, embedding: jax.Array, max_norm: Limit, norm_type: Extended = 2.0
) -> jax.Array:
    """The table, in which rows that occur in x are shortened to `max_norm` if they are longer.

    A row of norm s > max_norm is multiplied by max_norm / (s + 1e-7). The derivative is the identity: torch
    changes the table in place, outside of autograd.

    torch counterpart: `torch.embedding_renorm_`, which `torch.nn.functional.embedding` calls.
    """
    _check_indices("embedding_renorm", x, embedding.shape[0])
    return _renormed(x, embedding, max_norm, norm_type)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _renormed(x: jax.Array, embedding: jax.Array, max_norm: Limit, norm_type: Extended) -> jax.Array:
    rows = _take_rows(x, embedding)
    norm = jnp.linalg.norm(rows, norm_type, axis=-1, keepdims=True)
    shorter = jnp.where(norm > max_norm, rows * (max_norm / (norm + 1e-7)), rows)
    # Repeated indices write equal rows, so the order in which XLA's scatter applies them does not matter.
    return embedding.at[_index(x, embedding)].set(shorter, mode="drop")


@_renormed.defjvp
def _(max_norm: Limit, norm_type: Extended, primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return _renormed(*primals, max_norm, norm_type), tangents[1]


def _take_rows(x: jax.Array, embedding: jax.Array) -> jax.Array:
    """embedding[x]; NaN for indices outside of the table."""
    return jnp.take(embedding, _index(x, embedding), axis=0)


def _scaled_by_frequency(rows: jax.Array, x: jax.Array, num_embeddings: int) -> jax.Array:
    """rows = embedding[x] unchanged, their gradient divided by how often each index occurs in x."""
    counts = jnp.zeros(num_embeddings, rows.dtype).at[x].add(1)
    return _gradient_scaled(rows, 1 / counts[x][..., None])


def _index(x: jax.Array, embedding: jax.Array) -> jax.Array:
    # JAX would count negative indices from the end; beyond the end they are invalid.
    return jnp.where(x < 0, embedding.shape[0], x)


@jax.custom_jvp
def _gradient_scaled(y: jax.Array, by: jax.Array) -> jax.Array:
    return y


@_gradient_scaled.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return primals[0], tangents[0] * primals[1]


def embedding_bag(
    x: jax.Array,
    embedding: jax.Array,
    offsets: jax.Array | None = None,
    max_norm: Limit | None = None,
    norm_type: Extended = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> jax.Array:
    """The sum, mean or maximum of a table's rows for each of B bags, [B, features].

    Args:
      x: integers [B, n], a bag in each row; or [n], all bags in one row, with `offsets`.
      embedding: the table [num_embeddings, features].
      offsets: where each bag begins, [B], rising from 0. An empty bag gives 0.
      max_norm, norm_type, scale_grad_by_freq: as in `embedding`.
      mode: "sum", "mean" or "max".
      sparse: refused.
      per_sample_weights: of x's shape, multiplied with the rows; for "sum" only.
      include_last_offset: whether `offsets` is [B + 1] and ends with the end of the last bag.
      padding_idx: an index that counts for no bag.

    Raises: ValueError: options or shapes that do not go together. TypeError: x does not hold integers.

    torch counterpart: `torch.nn.functional.embedding_bag`. Source: ATen/native/EmbeddingBag.cpp.
    """
    _check_indices("embedding_bag", x, embedding.shape[0])
    check_embedding_bag(embedding.shape, mode, scale_grad_by_freq, sparse, padding_idx)
    _check_call(x, offsets, per_sample_weights, mode)
    if max_norm is not None:
        embedding = embedding_renorm(x, embedding, max_norm, norm_type)
    # The bag of each index, and how many bags there are.
    if offsets is None:
        bags, B = jnp.repeat(jnp.arange(x.shape[0]), x.shape[1], total_repeat_length=x.size), x.shape[0]
    else:
        # side="right" skips empty bags: of equal offsets the last one owns the index.
        bags = jnp.searchsorted(offsets, jnp.arange(x.size), side="right") - 1
        B = offsets.size - include_last_offset
    indices = x.reshape(-1)
    rows = _take_rows(indices, embedding)
    if scale_grad_by_freq:
        rows = _scaled_by_frequency(rows, indices, embedding.shape[0])
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1).astype(rows.dtype)
    counted = jnp.ones(x.size, bool)
    if padding_idx is not None:
        counted = indices != padding_idx % embedding.shape[0]
    if mode == "max":
        return _largest(rows, counted, bags, B)
    total = jax.ops.segment_sum(jnp.where(counted[:, None], rows, 0), bags, B, indices_are_sorted=True)
    if mode == "sum":
        return total
    sizes = jax.ops.segment_sum(counted.astype(rows.dtype), bags, B, indices_are_sorted=True)
    return total / jnp.maximum(sizes, 1)[:, None]


def _check_call(
    x: jax.Array, offsets: jax.Array | None, per_sample_weights: jax.Array | None, mode: str
) -> None:
    if x.ndim not in (1, 2):
        raise ValueError(f"input has to be 1D or 2D, but has shape {x.shape}")
    if x.ndim == 2 and offsets is not None:
        raise ValueError(
            "if input is 2D, then offsets has to be None, as input is treated as a mini-batch of "
            "sequences of fixed length"
        )
    if x.ndim == 1 and (offsets is None or offsets.ndim != 1):
        raise ValueError(f"offsets has to be 1D but got {None if offsets is None else offsets.shape}")
    if offsets is not None and not isinstance(offsets, jax.core.Tracer) and offsets.size:
        # Under jit the values are not available.
        if offsets[0] != 0:
            raise ValueError(f"offsets[0] has to be 0, but got {offsets[0]}")
        begins = np.asarray(offsets)
        # Before JAX would wrap a 64-bit offset to a different one.
        if begins.max() > x.size:
            raise ValueError(
                f"offsets[-1] can not be greater than input's length {x.size} but got {begins.max()}"
            )
        if (falls := np.flatnonzero(begins[1:] < begins[:-1])).size:
            before, at = begins[falls[0]], begins[falls[0] + 1]
            raise ValueError(
                f"embedding_bag: offsets fall from {before} to {at}; each bag begins where the one before it "
                "does, or later. Sort the bags."
            )
    if per_sample_weights is None:
        return
    if mode != "sum":
        raise ValueError(f"per_sample_weights is only supported for mode='sum' (got mode='{mode}')")
    if per_sample_weights.shape != x.shape:
        raise ValueError(
            f"If per_sample_weights ({per_sample_weights.shape}) is not None, then it must have the same "
            f"shape as the input ({x.shape})"
        )


def _largest(rows: jax.Array, counted: jax.Array, bags: jax.Array, B: int) -> jax.Array:
    """The maximum of each bag; of equal elements the first gets the gradient."""
    n = len(rows)
    if n == 0:
        return jnp.zeros((B, rows.shape[1]), rows.dtype)
    # Only compared: the gradient goes through `take_along_axis`, to the first of equal elements.
    # Indices that do not count go to bag B, which is out of range and dropped.
    largest = jax.ops.segment_max(rows, jnp.where(counted, bags, B), B)
    position = jnp.where((rows == largest[bags]) & counted[:, None], jnp.arange(n)[:, None], n)
    first = jax.ops.segment_min(jax.lax.stop_gradient(position), bags, B, indices_are_sorted=True)
    maxima = jnp.take_along_axis(rows, jnp.minimum(first, n - 1), 0)
    # first == n: no index of the bag counts.
    return jnp.where(first < n, maxima, 0)


def _check_indices(function: str, x: jax.Array | np.ndarray, rows: int) -> None:
    dtype = getattr(x, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.integer):
        got = dtype or f"a {type(x).__name__}"
        raise TypeError(f"{function}: Expected 'indices' to be integers; but got {got} instead.")
    # An array of JAX may still be computed, and to look at it would be to wait. On the host the look is
    # cheap, and needed: an index of 64 bits would wrap to another row.
    if isinstance(x, np.ndarray | np.generic) and x.size and (x.min() < 0 or x.max() >= rows):
        bad = x[(x < 0) | (x >= rows)].flat[0]
        raise IndexError(f"{function}: index out of range in self: {bad} of a table with {rows} rows.")
