"""Margin losses: of two inputs, of a label, and of several classes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._array_types import Finite
from ._reduction import clamp_min, reduce, targets


def margin_ranking_loss(
    input1: jax.Array, input2: jax.Array, target: ArrayLike, margin: float = 0.0, *, reduction: str = "mean"
) -> jax.Array:
    """max(0, -target (input1 - input2) + margin).

    Args:
      input1, input2: shapes that broadcast, of equally many axes. target: 1 or -1, of as many axes.
      reduction: "none", "mean" or "sum".

    Raises: RuntimeError: different numbers of axes.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> float(F.margin_ranking_loss(jnp.array([1.0]), jnp.array([3.0]), jnp.array([1.0])))
    2.0

    torch counterpart: `torch.nn.functional.margin_ranking_loss`. Source: aten/src/ATen/native/Loss.cpp.
    """
    target = targets(target)
    if not input1.ndim == input2.ndim == target.ndim:
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.shape}, input2: {input2.shape}, target: {target.shape} "
        )
    return reduce(clamp_min(-target * (input1 - input2) + margin, 0), reduction)


def hinge_embedding_loss(
    input: jax.Array, target: ArrayLike, margin: float = 1.0, *, reduction: str = "mean"
) -> jax.Array:
    """input for target 1, max(0, margin - input) for target -1.

    Args:
      input, target: shapes that broadcast. reduction: "none", "mean" or "sum".

    torch counterpart: `torch.nn.functional.hinge_embedding_loss`; as there, for a target that is neither both
    terms count. Source: aten/src/ATen/native/Loss.cpp.
    """
    target = targets(target)
    zero = jnp.zeros_like(input)
    far = jnp.where(target != 1, clamp_min(margin - input, 0), zero)
    return reduce(far + jnp.where(target != -1, input, zero), reduction)


def soft_margin_loss(input: jax.Array, target: ArrayLike, *, reduction: str = "mean") -> jax.Array:
    """log(1 + exp(-target input)).

    Args:
      input, target: shapes that broadcast. reduction: "none", "mean" or "sum".

    torch counterpart: `torch.nn.functional.soft_margin_loss`; it is infinite where exp overflows, as there.
    Source: aten/src/ATen/native/Loss.cpp.
    """
    return reduce(jnp.log1p(jnp.exp(-targets(target) * input)), reduction)


def multilabel_soft_margin_loss(
    input: jax.Array, target: ArrayLike, weight: Finite | None = None, *, reduction: str = "mean"
) -> jax.Array:
    """The mean over the classes of `binary_cross_entropy_with_logits`.

    Args:
      input: logits, [..., C]. target: 0 or 1, of the same shape. weight: broadcasts to it.
      reduction: "none", "mean" or "sum", over [...].

    torch counterpart: `torch.nn.functional.multilabel_soft_margin_loss`. Source: torch/nn/functional.py.
    """
    target = targets(target)
    loss = -(target * jax.nn.log_sigmoid(input) + (1 - target) * jax.nn.log_sigmoid(-input))
    loss = loss if weight is None else loss * jnp.asarray(weight)
    return reduce(loss.sum(-1) / input.shape[-1], reduction)


def multi_margin_loss(
    input: jax.Array,
    target: ArrayLike,
    p: int = 1,
    margin: float = 1.0,
    weight: Finite | None = None,
    *,
    reduction: str = "mean",
) -> jax.Array:
    """The sum over the other classes i of max(0, margin - input[target] + input[i])^p, divided by C.

    Args:
      input: [B, C] or [C]. target: classes, integers [B] or [].
      p: 1 or 2. weight: of the target's class, [C].
      reduction: "none", "mean" or "sum".

    Raises: ValueError: p is neither 1 nor 2. RuntimeError: shapes that do not fit, or an unknown class;
    inside `jax.jit` its loss is NaN.

    torch counterpart: `torch.nn.functional.multi_margin_loss`. Source:
    aten/src/ATen/native/LossMultiMargin.cpp.
    """
    target = targets(target, RuntimeError, "target out of range")
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and np.ndim(weight) != 1:
        raise ValueError("weight must be one-dimensional")
    C = input.shape[-1]
    if input.ndim not in (1, 2) or target.shape != input.shape[:-1]:
        raise RuntimeError(f"inconsistent target size, got: {target.shape} for input of {input.shape}")
    valid = (target >= 0) & (target < C)
    if not isinstance(target, jax.core.Tracer) and not valid.all():
        raise RuntimeError("target out of range")
    classes = jnp.where(valid, target, 0)[..., None]
    # relu's derivative at 0 is 0, as in torch's kernel; with jnp.maximum it would be one half.
    short = jax.nn.relu(margin - jnp.take_along_axis(input, classes, axis=-1) + input)
    loss = jnp.where(jnp.arange(C) == classes, 0, short if p == 1 else jnp.square(short))
    if weight is not None:
        loss = loss * jnp.asarray(weight)[classes]
    return reduce(jnp.where(valid, loss.sum(-1) / C, jnp.nan), reduction)


def multilabel_margin_loss(input: jax.Array, target: ArrayLike, *, reduction: str = "mean") -> jax.Array:
    """The sum over labels j and other classes i of max(0, 1 - input[j] + input[i]), divided by C.

    Args:
      input: [B, C] or [C]. target: the labels, integers of input's shape; those after the first -1 are
        ignored.
      reduction: "none", "mean" or "sum".

    Raises: RuntimeError: different shapes, or, outside of `jax.jit`, a label outside of -1 to C - 1.

    torch counterpart: `torch.nn.functional.multilabel_margin_loss`. Source:
    aten/src/ATen/native/LossMultiLabelMargin.cpp.
    """
    C = input.shape[-1]
    target = targets(target, RuntimeError, f"target has a label outside of -1 to {C - 1}")
    if input.ndim not in (1, 2) or target.shape != input.shape:
        raise RuntimeError(f"inconsistent target size: {target.shape} for input of size: {input.shape}")
    if not isinstance(target, jax.core.Tracer) and not ((target >= -1) & (target < C)).all():
        raise RuntimeError(f"target has a label outside of -1 to {C - 1}")
    read = jnp.cumsum(target == -1, axis=-1) == 0
    labels = jnp.where(read, target, 0)
    is_label = ((labels[..., None] == jnp.arange(C)) & read[..., None]).any(-2)
    of_labels = jnp.take_along_axis(input, labels, axis=-1)
    short = jax.nn.relu(1 - of_labels[..., :, None] + input[..., None, :])
    loss = jnp.where(read[..., :, None] & ~is_label[..., None, :], short, 0)
    return reduce(loss.sum((-2, -1)) / C, reduction)
