"""cross_entropy, nll_loss and the two binary cross entropies; classes are the last axis of the input.

As in torch, the mean over integer targets is not the mean of the losses: it divides by the sum of the
targets' weights, ignored targets having none, and is NaN if that is 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from .._array_types import Finite
from ._reduction import reduce, targets

SMALLEST = float(np.float32(1e-12))
"""torch's lower bound for x (1 - x), a float32 constant in its kernels."""


def cross_entropy(
    input: jax.Array,
    target: ArrayLike,
    weight: Finite | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> jax.Array:
    """The cross entropy of logits with classes, or with probabilities of classes.

    Args:
      input: logits, [..., C].
      target: classes, integers [...]; or probabilities, floats [..., C].
      weight: of the classes, [C].
      ignore_index: the class that does not count; it may be outside of [0, C). Not for probabilities.
      reduction: "none", "mean" or "sum". The mean is weighted for classes, unweighted for probabilities.
      label_smoothing: how much of each target is spread evenly over all classes, in [0, 1].

    Returns: [...] or []; NaN for "mean" if no target counts. Raises: ValueError: shapes that do not fit.
    RuntimeError: as torch. IndexError: a class that is neither one of the C nor `ignore_index`; inside
    `jax.jit`, where it cannot raise, its loss is NaN.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> round(float(F.cross_entropy(jnp.zeros((2, 4)), jnp.array([1, 3]))), 4)
    1.3863

    torch counterpart: `torch.nn.functional.cross_entropy`, whose classes are on axis 1. Source:
    aten/src/ATen/native/LossNLL.cpp.
    """
    target = targets(target)
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    log_probabilities = jax.nn.log_softmax(input)
    if target.shape == input.shape:
        if not jnp.issubdtype(target.dtype, jnp.floating):
            raise RuntimeError(
                f"Expected floating point type for target with class probabilities, got {target.dtype}"
            )
        if ignore_index >= 0:
            raise RuntimeError("ignore_index is not supported for floating point target")
        return _of_probabilities(log_probabilities, target, weight, reduction, label_smoothing)
    loss = nll_loss(log_probabilities, target, weight, ignore_index=ignore_index, reduction=reduction)
    if not label_smoothing:
        return loss
    weights = 1 if weight is None else jnp.asarray(weight)
    counted = target != ignore_index
    evenly = jnp.where(counted, -(log_probabilities * weights).sum(-1), 0)
    if reduction != "none":
        evenly = evenly.sum()
    if reduction == "mean":
        evenly = evenly / _counts(target, counted, weight, input.dtype).sum()
    return (1 - label_smoothing) * loss + evenly * (label_smoothing / input.shape[-1])


def _of_probabilities(
    log_probabilities: jax.Array,
    target: jax.Array,
    weight: ArrayLike | None,
    reduction: str,
    label_smoothing: float,
) -> jax.Array:
    C = target.shape[-1]
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / C
    weights = 1 if weight is None else _class_weights(weight, C)
    return reduce(-(log_probabilities * target * weights).sum(-1), reduction)


def nll_loss(
    input: jax.Array,
    target: ArrayLike,
    weight: Finite | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> jax.Array:
    """The negative log likelihood: minus the input at the target, [...] or [].

    Args:
      input: log-probabilities, [..., C]. target: classes, integers [...].
      weight, ignore_index, reduction: as for `cross_entropy`.

    Raises: As `cross_entropy`.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> float(F.nll_loss(jnp.array([[-0.5, -1.5]]), jnp.array([1])))
    1.5

    torch counterpart: `torch.nn.functional.nll_loss`, whose classes are on axis 1. Source:
    aten/src/ATen/native/LossNLL.cpp.
    """
    target = targets(target)
    C = input.shape[-1]
    if target.shape != input.shape[:-1]:
        raise ValueError(
            f"Expected target of shape {input.shape[:-1]} for input of shape {input.shape}, got "
            f"{target.shape}. The classes are the last axis; torch has them on axis 1."
        )
    if not jnp.issubdtype(target.dtype, jnp.integer):
        raise RuntimeError(f"expected scalar type Long but found {target.dtype}")
    counted = target != ignore_index
    valid = (target >= 0) & (target < C)
    if not isinstance(target, jax.core.Tracer):
        # In NumPy: inside jit, JAX traces what is computed from a constant.
        classes = np.asarray(target)
        wrong = classes[(classes != ignore_index) & ((classes < 0) | (classes >= C))]
        if wrong.size:
            raise IndexError(f"Target {wrong[0]} is out of bounds.")
    # Read class 0 in place of an invalid one such as ignore_index; the loss there is replaced below.
    at = jnp.take_along_axis(input, jnp.where(valid, target, 0)[..., None], axis=-1)[..., 0]
    counts = _counts(target, counted, weight, input.dtype)
    loss = jnp.where(counted, jnp.where(valid, -at * counts, jnp.nan), 0)
    if reduction == "mean":
        return loss.sum() / counts.sum()
    return reduce(loss, reduction)


def _counts(target: jax.Array, counted: jax.Array, weight: ArrayLike | None, dtype: DTypeLike) -> jax.Array:
    """The weight of each target in a mean."""
    if weight is None:
        return counted.astype(dtype)
    return jnp.where(counted, jnp.asarray(weight, dtype)[jnp.where(counted, target, 0)], 0)


def _class_weights(weight: ArrayLike, C: int) -> jax.Array:
    weight = jnp.asarray(weight)
    if weight.shape != (C,):
        raise RuntimeError(
            f"weight tensor should be defined either for all {C} classes or no classes but got weight tensor "
            f"of shape: {weight.shape}"
        )
    return weight


# ---------------------------------------------------------------------------- binary cross entropies


def binary_cross_entropy(
    input: jax.Array, target: ArrayLike, weight: ArrayLike | None = None, *, reduction: str = "mean"
) -> jax.Array:
    """-(t log x + (1 - t) log(1 - x)), logarithms clamped to -100.

    Args:
      input: probabilities, any shape. target: the same shape.
      weight: broadcasts to it; unlike in `cross_entropy`, the mean is not divided by its sum.
      reduction: "none", "mean" or "sum".

    Raises: ValueError: different shapes. RuntimeError: an input outside of [0, 1]; not inside `jax.jit`.

    torch counterpart: `torch.nn.functional.binary_cross_entropy`. As there, the gradient divides by x (1 -
    x), clamped to 1e-12. Source: aten/src/ATen/native/Loss.cpp.
    """
    target = targets(target)
    if target.shape != input.shape:
        raise ValueError(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}) is "
            "deprecated. Please ensure they have the same size."
        )
    if not isinstance(input, jax.core.Tracer) and not ((input >= 0) & (input <= 1)).all():
        raise RuntimeError("all elements of input should be between 0 and 1")
    loss = _clamped_bce(input, target.astype(input.dtype))
    return reduce(loss if weight is None else loss * jnp.asarray(weight), reduction)


# JAX's derivative would be 0 where a logarithm is clamped; torch's formula is not, see below.
@jax.custom_jvp
def _clamped_bce(x: jax.Array, t: jax.Array) -> jax.Array:
    return (t - 1) * jnp.maximum(jnp.log1p(-x), -100) - t * jnp.maximum(jnp.log(x), -100)


@_clamped_bce.defjvp
def _clamped_bce_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x, t), (dx, dt) = primals, tangents
    # Not clamped, as in torch.
    by_target = jnp.log1p(-x) - jnp.log(x)
    return _clamped_bce(x, t), dx * (x - t) / jnp.maximum((1 - x) * x, SMALLEST) + dt * by_target


def binary_cross_entropy_with_logits(
    input: jax.Array,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Finite | None = None,
) -> jax.Array:
    """`binary_cross_entropy` of sigmoid(input), without its bounds.

    Args:
      input: logits, any shape. target, weight, reduction: as for `binary_cross_entropy`.
      pos_weight: of the positive class, broadcasts to the shape.

    Raises: ValueError: different shapes.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> round(float(F.binary_cross_entropy_with_logits(jnp.zeros(3), jnp.ones(3))), 4)
    0.6931

    torch counterpart: `torch.nn.functional.binary_cross_entropy_with_logits`. Source:
    aten/src/ATen/native/Loss.cpp.
    """
    target = targets(target)
    if target.shape != input.shape:
        raise ValueError(f"Target size ({target.shape}) must be the same as input size ({input.shape})")
    positive = 1 if pos_weight is None else (jnp.asarray(pos_weight) - 1) * target + 1
    loss = (1 - target) * input - positive * jax.nn.log_sigmoid(input)
    return reduce(loss if weight is None else loss * jnp.asarray(weight), reduction)
