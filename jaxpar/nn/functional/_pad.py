"""pad: constant, reflected, replicated or circular borders."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..._arguments import AnyFloat

MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def pad(x: jax.Array, pad: Sequence[int], mode: str = "constant", value: AnyFloat | None = None) -> jax.Array:
    """Extend axes at both ends, to [..., *T, C]; negative numbers cut them.

    Args:
      x: [..., *S, C]. The channels are never padded.
      pad: pairs (before, after), the last spatial axis first, as in torch: (left, right, top, bottom) for [N,
        H, W, C].
      mode: "constant", "reflect" (the border is not repeated), "replicate", "circular".
      value: the constant, 0 if left out.

    Raises: ValueError: an odd number of numbers, or more pairs than axes; a reflection as long as the axis; a
    circle that wraps around twice. NotImplementedError: an unknown mode.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.pad(jnp.ones((1, 4, 4, 3)), (1, 1, 2, 0)).shape
    (1, 6, 6, 3)

    torch counterpart: `torch.nn.functional.pad`. Source: ATen/native/PadNd.cpp.
    """
    _check_mode(mode, value)
    if len(pad) % 2:
        raise ValueError(f"Padding length must be divisible by 2, but got {tuple(pad)}")
    if len(pad) // 2 > x.ndim - 1:
        raise ValueError(
            f"Padding length should be at most two numbers for each axis but the last, but got {tuple(pad)} "
            f"and input of shape {x.shape}"
        )
    pairs = [(0, 0)] * x.ndim
    for i in range(len(pad) // 2):
        pairs[x.ndim - 2 - i] = (pad[2 * i], pad[2 * i + 1])
    for axis, (before, after) in enumerate(pairs):
        if before or after:  # a batch without rows may be padded along its other axes
            _check_pair(x, axis, before, after, mode)
    if mode == "constant":
        fill = jnp.asarray(0 if value is None else value, x.dtype)
        return jax.lax.pad(x, fill, [(before, after, 0) for before, after in pairs])
    longer = [(max(before, 0), max(after, 0)) for before, after in pairs]
    cut, zero = [(min(before, 0), min(after, 0), 0) for before, after in pairs], jnp.zeros((), x.dtype)
    # Negative padding cuts. In circular mode torch cuts first and wraps the remaining elements.
    if mode == "circular":
        return jnp.pad(jax.lax.pad(x, zero, cut), longer, MODES[mode])
    return jax.lax.pad(jnp.pad(x, longer, MODES[mode]), zero, cut)


def _check_mode(mode: str, value: float | None = None) -> None:
    if mode not in MODES:
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if mode != "constant" and value is not None:
        raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')


def _check_pair(x: jax.Array, axis: int, before: int, after: int, mode: str) -> None:
    n = x.shape[axis]
    if n + before + after < 0:
        raise ValueError(f"pad: padding ({before}, {after}) leaves nothing of axis {axis} of {x.shape}")
    if mode == "reflect" and max(before, after) >= n:
        raise ValueError(
            "Padding size should be less than the corresponding input dimension, but got: padding "
            f"({before}, {after}) at dimension {axis} of input {x.shape}"
        )
    if mode == "circular" and max(before, after) > n + min(before, 0) + min(after, 0):
        raise ValueError(
            f"Padding value causes wrapping around more than once: padding ({before}, {after}) at dimension "
            f"{axis} of input {x.shape}"
        )
