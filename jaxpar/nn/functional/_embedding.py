"""embedding: rows of a table, with torch's rules for the table's gradient and norms.

Flax's `Embed` takes rows and no more: it has no padding_idx, no max_norm, no scale_grad_by_freq.
`sparse` gradients have no counterpart in JAX and are refused.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


def embedding(
    x: jax.Array,
    embedding: jax.Array,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    """Rows of a table.

    Args:
      x: integers [...]. Outside of the table, and below 0, a row is NaN; torch raises.
      embedding: the table [num_embeddings, features].
      padding_idx: a row that gets no gradient; negative counts from the end.
      max_norm: take the rows as if `embedding_renorm` had shortened them. torch writes the shorter
        rows into the table as well; here that is `embedding_renorm`'s result.
      norm_type: the p of the norm.
      scale_grad_by_freq: divide a row's gradient by how often x has it.
      sparse: refused.

    Returns:
      [..., features].

    Raises:
      TypeError: x is not of integers. ValueError: a padding_idx outside of the table; `sparse`.

    torch counterpart: `torch.nn.functional.embedding`. Source: ATen/native/Embedding.cpp.
    """
    check_indices("embedding", x)
    check_options("embedding", embedding.shape[0], padding_idx, sparse)
    if max_norm is not None:
        embedding = embedding_renorm(x, embedding, max_norm, norm_type)
    y = take_rows(x, embedding)
    if scale_grad_by_freq:
        y = scaled_by_frequency(y, x, embedding.shape[0])
    if padding_idx is not None:
        y = jnp.where((x == padding_idx % embedding.shape[0])[..., None], jax.lax.stop_gradient(y), y)
    return y


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def embedding_renorm(
    x: jax.Array, embedding: jax.Array, max_norm: float, norm_type: float = 2.0
) -> jax.Array:
    """The table with the rows that x has shortened to `max_norm`, where they are longer.

    A row of norm s > max_norm is multiplied by max_norm / (s + 1e-7). The derivative is that of the
    identity: torch does this to the table itself and leaves no trace for the gradient.

    torch counterpart: `torch.embedding_renorm_`, which `torch.nn.functional.embedding` calls.
    """
    rows = take_rows(x, embedding)
    norm = jnp.linalg.norm(rows, norm_type, axis=-1, keepdims=True)
    shorter = jnp.where(norm > max_norm, rows * (max_norm / (norm + 1e-7)), rows)
    return embedding.at[_numbers(x, embedding)].set(shorter, mode="drop")


@embedding_renorm.defjvp
def _(max_norm: float, norm_type: float, primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return embedding_renorm(*primals, max_norm, norm_type), tangents[1]


def take_rows(x: jax.Array, embedding: jax.Array) -> jax.Array:
    """embedding[x]; NaN for indices that are none."""
    return jnp.take(embedding, _numbers(x, embedding), axis=0)


def scaled_by_frequency(rows: jax.Array, x: jax.Array, num_embeddings: int) -> jax.Array:
    """rows = embedding[x] as they are, with a gradient divided by how often x has each index."""
    counts = jnp.zeros(num_embeddings, rows.dtype).at[x].add(1)
    return _gradient_scaled(rows, 1 / counts[x][..., None])


def _numbers(x: jax.Array, embedding: jax.Array) -> jax.Array:
    return jnp.where(x < 0, embedding.shape[0], x)  # JAX would count from the end


@jax.custom_jvp
def _gradient_scaled(y: jax.Array, by: jax.Array) -> jax.Array:
    return y


@_gradient_scaled.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return primals[0], tangents[0] * primals[1]


def check_indices(function: str, x: jax.Array) -> None:
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"{function}: Expected 'indices' to be integers; but got {x.dtype} instead.")


def check_options(function: str, num_embeddings: int, padding_idx: int | None, sparse: bool) -> None:
    if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
        raise ValueError(
            f"{function}: padding_idx must be within num_embeddings, but is {padding_idx} for "
            f"{num_embeddings} rows."
        )
    if sparse:
        raise ValueError(f"{function}: JAX has no sparse gradients; leave sparse=True out.")
