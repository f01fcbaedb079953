"""Losses. The classes of cross_entropy and nll_loss are axis 1, as in torch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ... import functional as last
from ..._array_types import Finite
from ...functional import binary_cross_entropy as binary_cross_entropy
from ...functional import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from ...functional import cosine_embedding_loss as cosine_embedding_loss
from ...functional import ctc_loss as ctc_loss
from ...functional import gaussian_nll_loss as gaussian_nll_loss
from ...functional import hinge_embedding_loss as hinge_embedding_loss
from ...functional import huber_loss as huber_loss
from ...functional import kl_div as kl_div
from ...functional import l1_loss as l1_loss
from ...functional import margin_ranking_loss as margin_ranking_loss
from ...functional import mse_loss as mse_loss
from ...functional import multi_margin_loss as multi_margin_loss
from ...functional import multilabel_margin_loss as multilabel_margin_loss
from ...functional import multilabel_soft_margin_loss as multilabel_soft_margin_loss
from ...functional import poisson_nll_loss as poisson_nll_loss
from ...functional import smooth_l1_loss as smooth_l1_loss
from ...functional import soft_margin_loss as soft_margin_loss
from ...functional import triplet_margin_loss as triplet_margin_loss
from ...functional import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss


def cross_entropy(
    x: jax.Array,
    target: ArrayLike,
    weight: Finite | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> jax.Array:
    """`jaxpar.nn.functional.cross_entropy` for [C] or [N, C, *S]; the other arguments are the same.

    Args:
      target: classes, [] or [N, *S]; or probabilities of the shape of `x`.

    torch counterpart: `F.cross_entropy`.
    """
    target = jnp.asarray(target)
    rows = _classes_last(target) if target.shape == x.shape else target
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    return last.cross_entropy(_classes_last(x), rows, weight, reduction=reduction, **options)


def nll_loss(
    x: jax.Array,
    target: ArrayLike,
    weight: Finite | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> jax.Array:
    """`jaxpar.nn.functional.nll_loss` for [C] or [N, C, *S]; the other arguments are the same.

    torch counterpart: `F.nll_loss`.
    """
    options: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
    return last.nll_loss(_classes_last(x), target, weight, **options)


def _classes_last(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(x, 1, -1) if x.ndim > 2 else x
