"""Embedding and EmbeddingBag: tables of vectors with torch's padding_idx, max_norm and frequencies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from . import functional
from .functional._embedding import check_options
from .functional._embedding_bag import check_bag_options


class Embedding(nnx.Module):
    """Rows of a table: integers [...] to [..., embedding_dim].

    Args:
      num_embeddings, embedding_dim: the table's shape.
      padding_idx: a row that begins as zeros and gets no gradient; negative counts from the end.
      max_norm: before they are read, rows longer than this are shortened to it, in the table, in
        training and in evaluation.
      norm_type: the p of that norm.
      scale_grad_by_freq: divide a row's gradient by how often the input has it.
      sparse: refused; JAX has no sparse gradients.
      dtype: of the output; the table's if left out.
      param_dtype: of the table.
      rngs: the table begins with normal numbers.

    Raises:
      ValueError: when it is made, with a padding_idx outside of the table, or `sparse`. Indices
        outside of the table, which torch raises for, give NaN.

    torch counterpart: `torch.nn.Embedding`; `weight` is `embedding`, of the same shape. The function
    is `functional.embedding`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_options("Embedding", num_embeddings, padding_idx, sparse)
        self.embedding = _table(num_embeddings, embedding_dim, padding_idx, param_dtype, rngs)
        self.padding_idx = padding_idx
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.max_norm is not None:
            _renorm(self.embedding, x, self.max_norm, self.norm_type)
        (table,) = dtypes.promote_dtype((self.embedding[...],), dtype=self.dtype)
        return functional.embedding(x, table, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq)


class EmbeddingBag(nnx.Module):
    """Sums, means or maxima of rows of a table, one for each bag of integers.

    Args:
      num_embeddings, embedding_dim: the table's shape.
      max_norm, norm_type, scale_grad_by_freq, sparse: as in `Embedding`.
      mode: "sum", "mean", "max".
      include_last_offset: whether the last of `offsets` is the end of the last bag.
      padding_idx: an index that is in no bag; its row begins as zeros.
      dtype, param_dtype, rngs: as in `Embedding`.

    Called with `(x, offsets=None, per_sample_weights=None)`; the shapes are those of
    `functional.embedding_bag`, which it calls.

    Raises:
      ValueError: when it is made, with an unknown mode, scale_grad_by_freq or sparse with "max", a
        padding_idx outside of the table.

    torch counterpart: `torch.nn.EmbeddingBag`; `weight` is `embedding`, of the same shape.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_bag_options(num_embeddings, mode, scale_grad_by_freq, sparse, padding_idx)
        self.embedding = _table(num_embeddings, embedding_dim, padding_idx, param_dtype, rngs)
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.mode = mode
        self.include_last_offset = include_last_offset
        self.padding_idx = padding_idx
        self.dtype = dtype

    def __call__(
        self,
        x: jax.Array,
        offsets: jax.Array | None = None,
        per_sample_weights: jax.Array | None = None,
    ) -> jax.Array:
        if self.max_norm is not None:
            _renorm(self.embedding, x, self.max_norm, self.norm_type)
        (table,) = dtypes.promote_dtype((self.embedding[...],), dtype=self.dtype)
        return functional.embedding_bag(
            x,
            table,
            offsets,
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )


def _table(
    num_embeddings: int, embedding_dim: int, padding_idx: int | None, dtype: Any, rngs: nnx.Rngs
) -> nnx.Param:
    table = jax.random.normal(rngs.params(), (num_embeddings, embedding_dim), dtype)
    return nnx.Param(table if padding_idx is None else table.at[padding_idx].set(0))


def _renorm(embedding: nnx.Param, x: jax.Array, max_norm: float, norm_type: float) -> None:
    embedding.set_value(functional.embedding_renorm(x, embedding[...], max_norm, norm_type))
