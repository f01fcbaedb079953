"""Embedding and EmbeddingBag: tables of vectors with torch's padding_idx, max_norm and scale_grad_by_freq."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._arguments import Extended, Limit, Size
from .._upstream import promote_dtype
from . import functional
from ._checks import check_embedding, check_embedding_bag
from ._layer import TypedLayer


@dataclasses.dataclass(eq=False, repr=False)
class Embedding(TypedLayer):
    """Rows of a table: integers [...] to [..., embedding_dim].

    Args:
      num_embeddings, embedding_dim: the table's shape.
      padding_idx: a row that starts as zeros and receives no gradient; negative counts from the end.
      max_norm: rows longer than this are shortened to it before they are read; in the table itself, in
        training and in evaluation.
      norm_type: the p of that norm.
      scale_grad_by_freq: divide a row's gradient by how often it occurs in the input.
      sparse: refused; JAX has no sparse gradients.
      dtype, param_dtype: of the output (the table's if left out) and of the table.
      rngs: draws the table from N(0, 1).

    Raises: ValueError: at construction, for a padding_idx outside of the table, or `sparse`. Indices outside
    of the table give NaN, where torch raises.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from jaxpar import nn
    >>> nn.Embedding(10, 4, rngs=nnx.Rngs(0))(jnp.array([1, 2])).shape
    (2, 4)

    torch counterpart: `torch.nn.Embedding`; `weight` is `embedding`, of the same shape.
    """

    num_embeddings: Size
    embedding_dim: Size
    padding_idx: int | None = None
    max_norm: Limit | None = None
    norm_type: Extended = 2.0
    scale_grad_by_freq: bool = False
    sparse: bool = False

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        shape = self.num_embeddings, self.embedding_dim
        check_embedding("Embedding", shape, self.padding_idx, self.sparse)
        self.embedding = _table(self, rngs)

    @classmethod
    def from_pretrained(cls, embeddings: jax.Array, freeze: bool = True, **options: Any) -> Embedding:
        """Make a layer of a table that is there: a constant, or a parameter with freeze=False.

        torch counterpart: `torch.nn.Embedding.from_pretrained`, which also keeps the row of `padding_idx`.

        >>> import jax.numpy as jnp
        >>> from jaxpar import nn
        >>> nn.Embedding.from_pretrained(jnp.eye(3))(jnp.array([2])).tolist()
        [[0.0, 0.0, 1.0]]
        """
        table = jnp.asarray(embeddings)
        if table.ndim != 2:
            raise ValueError(f"Embedding.from_pretrained: embeddings has {table.ndim} axes; it needs two")
        layer = cls(*table.shape, **options, param_dtype=table.dtype, rngs=nnx.Rngs(0))
        layer.embedding = (nnx.Variable if freeze else nnx.Param)(table)
        return layer

    def __call__(self, x: jax.Array) -> jax.Array:
        table = _renormalized(self, x)
        return functional.embedding(x, table, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq)


@dataclasses.dataclass(eq=False, repr=False)
class EmbeddingBag(TypedLayer):
    """The sum, mean or maximum of a table's rows, for each bag of integers.

    Args:
      num_embeddings, embedding_dim: the table's shape.
      max_norm, norm_type, scale_grad_by_freq, sparse, dtype, param_dtype, rngs: as in `Embedding`.
      mode: "sum", "mean" or "max".
      include_last_offset: whether the last of `offsets` is the end of the last bag.
      padding_idx: an index that counts for no bag; its row starts as zeros.

    Called with `(x, offsets=None, per_sample_weights=None)`; for the shapes see `functional.embedding_bag`.

    Raises: ValueError: at construction, for an unknown mode, scale_grad_by_freq or sparse with "max", a
    padding_idx outside of the table.

    torch counterpart: `torch.nn.EmbeddingBag`; `weight` is `embedding`, of the same shape.
    """

    num_embeddings: Size
    embedding_dim: Size
    max_norm: Limit | None = None
    norm_type: Extended = 2.0
    scale_grad_by_freq: bool = False
    mode: str = "mean"
    sparse: bool = False
    include_last_offset: bool = False
    padding_idx: int | None = None

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        shape = self.num_embeddings, self.embedding_dim
        check_embedding_bag(shape, self.mode, self.scale_grad_by_freq, self.sparse, self.padding_idx)
        self.embedding = _table(self, rngs)

    def __call__(
        self, x: jax.Array, offsets: jax.Array | None = None, per_sample_weights: jax.Array | None = None
    ) -> jax.Array:
        return functional.embedding_bag(
            x,
            _renormalized(self, x),
            offsets,
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )


def _table(layer: Embedding | EmbeddingBag, rngs: nnx.Rngs) -> nnx.Param:
    shape = (layer.num_embeddings, layer.embedding_dim)
    # The padding row is drawn with the others, so they do not depend on padding_idx.
    table = jax.random.normal(rngs.params(), shape, layer.param_dtype)
    return nnx.Param(table if layer.padding_idx is None else table.at[layer.padding_idx].set(0))


def _renormalized(layer: Embedding | EmbeddingBag, x: jax.Array) -> jax.Array:
    table = layer.embedding
    if layer.max_norm is not None:
        table.set_value(functional.embedding_renorm(x, table[...], layer.max_norm, layer.norm_type))
    return promote_dtype((table[...],), dtype=layer.dtype)[0]
