"""CTC: the log-likelihood of a label sequence under every way of stretching it over time, in one scan."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ._reduction import reduce, wrapped
from ._reduction import targets as classes


def ctc_loss(
    log_probs: jax.Array,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> jax.Array:
    """Connectionist temporal classification, [B] ([] without a batch) or [].

    Args:
      log_probs: log-probabilities, [T, B, C] or [T, C].
      targets: labels, integers [B, S], or all rows concatenated along one axis.
      input_lengths, target_lengths: how many steps and labels count, [B] or one number.
      blank: the class without a label.
      reduction: "none", "sum", or "mean": the mean over B of the loss divided by the target's length.
      zero_infinity: whether a target too long for its steps gives 0 instead of infinity.

    Raises: RuntimeError: shapes that do not fit, or a blank that is not a class; outside of `jax.jit` also
    lengths beyond T or S. IndexError: a label on the host that JAX would wrap to a different one.

    torch counterpart: `torch.nn.functional.ctc_loss`. As there, the gradient assumes that log_probs is the
    result of a log_softmax: it is exp(log_probs) minus the posterior, and NaN where the loss is infinite.
    Source: aten/src/ATen/native/LossCTC.cpp; Graves et al., 2006.
    """
    if log_probs.ndim not in (2, 3):
        raise RuntimeError(f"log_probs is [T, B, C] or [T, C], not {log_probs.shape}")
    batched = log_probs.ndim == 3
    x = log_probs if batched else log_probs[:, None]
    T, B, C = x.shape
    if not 0 <= blank < C:
        raise RuntimeError("blank must be in label range")
    steps = _lengths(input_lengths, B, "input_lengths")
    counts = _lengths(target_lengths, B, "target_lengths")
    # Labels after a target's end do not change the loss: paths only move forward, and `ends` precedes them.
    labels = _padded(classes(targets), counts, B, batched)
    _check_lengths(steps, T, "input_lengths")
    _check_lengths(counts, labels.shape[1], "target_lengths")
    loss = _negative_log_likelihood(zero_infinity, blank, x, labels, steps, counts)
    if reduction == "mean":
        return (loss / jnp.maximum(counts, 1)).mean()
    return reduce(loss if batched else loss[0], reduction)


def _lengths(lengths: ArrayLike, B: int, name: str) -> jax.Array:
    worst = wrapped(lengths)
    if worst is not None:
        raise RuntimeError(f"Expected {name} to be lengths, but got value {worst}")
    lengths = jnp.asarray(lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise RuntimeError(f"{name} must be integral")
    if lengths.size != B:
        raise RuntimeError(f"{name} must be of size batch_size: {lengths.shape} for {B}")
    return lengths.reshape(B)


def _check_lengths(lengths: jax.Array, most: int, name: str) -> None:
    if isinstance(lengths, jax.core.Tracer):
        return
    largest = int(np.max(np.asarray(lengths), initial=0))
    if largest > most:
        raise RuntimeError(f"Expected {name} to have value at most {most}, but got value {largest}")


def _padded(targets: jax.Array, counts: jax.Array, B: int, batched: bool) -> jax.Array:
    """Return targets as [B, S], with arbitrary values after a target's end."""
    if not batched:
        return targets.reshape(1, -1)
    if targets.ndim == 2:
        if targets.shape[0] != B:
            raise RuntimeError(f"Expected targets of {B} rows, got {targets.shape}")
        return targets
    if targets.ndim != 1:
        raise RuntimeError(f"targets should be 1- or 2-dimensional, got {targets.shape}")
    total = targets.shape[0]
    concrete = not isinstance(counts, jax.core.Tracer)
    if concrete and int(counts.sum()) != total:
        raise RuntimeError(f"Expected targets of {int(counts.sum())} labels in all, got {total}")
    S = int(np.max(np.asarray(counts), initial=0)) if concrete else total
    first = jnp.cumsum(counts) - counts
    # Short rows read on into the next one. At the end of `targets` there is nothing to read: clip.
    return jnp.take(targets, first[:, None] + jnp.arange(S), mode="clip") if total else targets.reshape(B, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _negative_log_likelihood(
    zero_infinity: bool, blank: int, x: jax.Array, labels: jax.Array, steps: jax.Array, counts: jax.Array
) -> jax.Array:
    loss = _likelihood(blank, x, labels, steps, counts)
    return jnp.where(jnp.isinf(loss), 0, loss) if zero_infinity else loss


def _forward(
    zero_infinity: bool, blank: int, x: jax.Array, labels: jax.Array, steps: jax.Array, counts: jax.Array
) -> Any:
    # The backward pass needs the vjp anyway, so it is taken here rather than running the scan twice.
    loss, pull = jax.vjp(lambda x: _likelihood(blank, x, labels, steps, counts), x)
    infinite = jnp.isinf(loss)
    return jnp.where(infinite, 0, loss) if zero_infinity else loss, (pull, infinite, x, steps)


def _backward(zero_infinity: bool, blank: int, residuals: Any, g: jax.Array) -> Any:
    pull, infinite, x, steps = residuals
    (minus_posterior,) = pull(jnp.ones_like(g))
    # As in torch's kernel, exp(x) - posterior: the gradient by the logits of a log_softmax, not by x.
    gradient = jnp.where(infinite[:, None], 0 if zero_infinity else jnp.nan, jnp.exp(x) + minus_posterior)
    # Steps past input_lengths have the gradient 0 although exp(x) is not.
    read = jnp.arange(x.shape[0])[:, None] < steps
    return jnp.where(read[..., None], gradient * g[:, None], 0), None, None, None


_negative_log_likelihood.defvjp(_forward, _backward)


def _likelihood(
    blank: int, x: jax.Array, labels: jax.Array, steps: jax.Array, counts: jax.Array
) -> jax.Array:
    """Return minus the log-likelihood, [B]; infinite where no path exists."""
    T, B, _ = x.shape
    S = labels.shape[1]
    # Labels with blanks around them, [B, 2S + 1].
    path = jnp.full((B, 2 * S + 1), blank, labels.dtype).at[:, 1::2].set(labels)
    emitted = jnp.take_along_axis(x, jnp.broadcast_to(path, (T, B, 2 * S + 1)), axis=-1)
    # Between two different labels the blank may be skipped; between equal ones it keeps them apart.
    skips = jnp.pad(path[:, 2:] != path[:, :-2], ((0, 0), (2, 0)))[:, : 2 * S + 1]
    # A path starts at the first blank or the first label; without labels only the blank exists.
    start = jnp.arange(2 * S + 1) <= jnp.where(counts > 0, 1, 0)[:, None]
    never = jnp.full((B, 2 * S + 1), -jnp.inf, x.dtype)

    def step(state: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        emitted, read = now
        # From the same state, from the one before, or past a blank from two before.
        one = jnp.pad(state, ((0, 0), (1, 0)), constant_values=-jnp.inf)[:, :-1]
        two = jnp.pad(state, ((0, 0), (2, 0)), constant_values=-jnp.inf)[:, : 2 * S + 1]
        new = _log_sum(jnp.stack([state, one, jnp.where(skips, two, -jnp.inf)])) + emitted
        return jnp.where(read[:, None], new, state), None

    first = jnp.where(start, emitted[0], never) if T else never
    read = jnp.arange(1, T)[:, None] < steps
    last, _ = jax.lax.scan(step, first, (emitted[1:], read))
    ends = jnp.stack([2 * counts, jnp.maximum(2 * counts - 1, 0)], axis=-1)
    at_end = jnp.take_along_axis(last, ends, axis=-1)
    # Without labels there is one end, not two.
    at_end = jnp.where((counts == 0)[:, None] & jnp.array([False, True]), -jnp.inf, at_end)
    # A path ends at the last label or at the blank after.
    loss = -_log_sum(at_end.T)
    return jnp.where(steps == 0, jnp.where(counts == 0, 0, jnp.inf), loss)


def _log_sum(x: jax.Array) -> jax.Array:
    """logsumexp over the first axis; -inf without a gradient, not NaN, where all are -inf."""
    largest = jax.lax.stop_gradient(x.max(0))
    largest = jnp.where(largest == -jnp.inf, 0, largest)
    total = jnp.exp(x - largest).sum(0)
    # log(1) in the unused branch keeps its derivative finite, since `where` multiplies it by 0.
    none = total == 0
    return jnp.where(none, -jnp.inf, jnp.log(jnp.where(none, 1, total)) + largest)
