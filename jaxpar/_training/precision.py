"""Precision: in which type a step computes, while parameters stay in theirs."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .._typing import PyTree


@dataclasses.dataclass(frozen=True)
class Precision:
    """A policy for `train_step` and `eval_step`.

    >>> import jax.numpy as jnp, jaxpar
    >>> policy = jaxpar.Precision("bfloat16")
    >>> policy.cast({"x": jnp.ones(2), "label": jnp.array([1])})["x"].dtype
    dtype(bfloat16)

    Attributes:
      compute: the type of the forward and the backward pass, `"bfloat16"`, `"float16"`, ...
      loss_scale: the loss is multiplied by this and the gradients divided, so that small ones do not
        vanish; it doubles after `growth_interval` good steps and is halved, and the step left out, when a
        gradient is not finite. If left out, 65536 for float16 and None (off) for all other types.
      growth_interval: in steps.

    Raises:
      TypeError: `compute` is not a floating type; an argument is not a number. ValueError: a number is not
        finite and above 0.

    torch counterpart: `torch.amp.autocast` with `GradScaler`, whose numbers these are.
    """

    compute: DTypeLike = "float32"
    loss_scale: float | None = None
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        dtype = _floating(self.compute)
        if self.loss_scale is not None:
            _check_positive("loss_scale", self.loss_scale, numbers.Real, "a number")
        _check_positive("growth_interval", self.growth_interval, numbers.Integral, "a whole number")
        object.__setattr__(self, "compute", dtype)
        if dtype == jnp.float16 and self.loss_scale is None:
            object.__setattr__(self, "loss_scale", 65536.0)

    def cast(self, tree: PyTree) -> PyTree:
        """Return the tree with floating arrays in the computing type."""
        return jax.tree.map(self._cast, tree)

    def _cast(self, x: PyTree) -> PyTree:
        floating = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(self.compute) if floating else x


def _floating(dtype: DTypeLike) -> jnp.dtype:
    try:
        resolved = jnp.dtype(dtype)
    except TypeError:
        resolved = None
    if resolved is None or not jnp.issubdtype(resolved, jnp.floating):
        raise TypeError(f"Precision: compute must be a floating type, not {resolved or repr(dtype)}.")
    return resolved


def _check_positive(name: str, number: Any, kind: type, what: str) -> None:
    if not isinstance(number, kind) or isinstance(number, bool):
        raise TypeError(f"Precision: {name} must be {what}, not {number!r}.")
    if not 0 < number < math.inf:  # type: ignore[operator]
        raise ValueError(f"Precision: {name} must be finite and above 0, not {number}.")


def check_precision(precision: object, function: str) -> None:
    if precision is not None and not isinstance(precision, Precision):
        shown = repr(precision) if isinstance(precision, str) else getattr(precision, "__name__", precision)
        raise TypeError(
            f"{function}: precision must be a jaxpar.Precision, not {shown}; write "
            'precision=jaxpar.Precision("bfloat16").'
        )
