"""embedding_bag: sums, means or maxima of rows of a table, one for each bag of indices."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._embedding import check_indices, check_options, embedding_renorm, scaled_by_frequency, take_rows

MODES = ("sum", "mean", "max")


def embedding_bag(
    x: jax.Array,
    embedding: jax.Array,
    offsets: jax.Array | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> jax.Array:
    """The sum, mean or maximum of a table's rows for each of B bags.

    Args:
      x: integers [B, n], a bag in each row; or [n], all bags in one row, with `offsets`.
      embedding: the table [num_embeddings, features].
      offsets: where each bag begins, [B], rising from 0; the bags [i, i) are empty and give 0.
      max_norm, norm_type, scale_grad_by_freq: as in `embedding`.
      mode: "sum", "mean", "max".
      sparse: refused.
      per_sample_weights: of x's shape, what rows are multiplied by; for "sum" only.
      include_last_offset: whether `offsets` is [B + 1], its last number being the end of the last bag.
      padding_idx: an index that is in no bag.

    Returns:
      [B, features].

    Raises:
      ValueError: options or shapes that do not go together. TypeError: x is not of integers.

    torch counterpart: `torch.nn.functional.embedding_bag`. Source: ATen/native/EmbeddingBag.cpp.
    """
    check_indices("embedding_bag", x)
    check_bag_options(embedding.shape[0], mode, scale_grad_by_freq, sparse, padding_idx)
    _check_call(x, offsets, per_sample_weights, mode)
    if max_norm is not None:
        embedding = embedding_renorm(x, embedding, max_norm, norm_type)
    if x.ndim == 2:
        bags, B = jnp.repeat(jnp.arange(x.shape[0]), x.shape[1], total_repeat_length=x.size), x.shape[0]
    else:
        bags, B = _bags(x, offsets, include_last_offset)
    indices = x.reshape(-1)
    rows = take_rows(indices, embedding)
    if scale_grad_by_freq:
        rows = scaled_by_frequency(rows, indices, embedding.shape[0])
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


def check_bag_options(
    num_embeddings: int, mode: str, scale_grad_by_freq: bool, sparse: bool, padding_idx: int | None
) -> None:
    if mode not in MODES:
        raise ValueError(f"mode has to be one of sum, mean or max, but is {mode!r}")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if mode == "max" and sparse:
        raise ValueError("max mode does not support sparse weights")
    check_options("embedding_bag", num_embeddings, padding_idx, sparse)


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
        # Values can only be looked at outside of jit.
        if offsets[0] != 0:
            raise ValueError(f"offsets[0] has to be 0, but got {offsets[0]}")
        if offsets[-1] > x.size:
            raise ValueError(
                f"offsets[-1] can not be greater than input's length {x.size} but got {offsets[-1]}"
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


def _bags(x: jax.Array, offsets: jax.Array | None, include_last_offset: bool) -> tuple[jax.Array, int]:
    """The number of every index's bag, and how many bags there are."""
    assert offsets is not None
    bags = jnp.searchsorted(offsets, jnp.arange(x.size), side="right") - 1
    return bags, offsets.size - include_last_offset


def _largest(rows: jax.Array, counted: jax.Array, bags: jax.Array, B: int) -> jax.Array:
    """The maximum of each bag; the first of equal ones has the gradient."""
    n = len(rows)
    if n == 0:
        return jnp.zeros((B, rows.shape[1]), rows.dtype)
    largest = jax.ops.segment_max(rows, jnp.where(counted, bags, B), B)
    place = jnp.where((rows == largest[bags]) & counted[:, None], jnp.arange(n)[:, None], n)
    first = jax.ops.segment_min(jax.lax.stop_gradient(place), bags, B, indices_are_sorted=True)
    found = jnp.take_along_axis(rows, jnp.minimum(first, n - 1), 0)
    return jnp.where(first < n, found, 0)
