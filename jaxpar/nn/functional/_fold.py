"""unfold, fold and the shuffles: an image's windows as rows, and its channels as pixels or in groups."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from .._checks import check_factor, check_shuffle_groups
from .._window import Ints, Window, per_axis, spatial_rank, window_elements, windows


def unfold(
    x: jax.Array, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
) -> jax.Array:
    """Every window as one row.

    Args:
      x: [..., *S, C]. With plain numbers as options it is [N, *S, C].
      kernel_size, dilation, padding, stride: a number, or one for each spatial axis. Padding is 0.

    Returns: [..., L, C K]: L windows of K elements each; the channel is the slower index, as in torch.
    Raises: ValueError: a number below 1 (0 for padding); an axis shorter than its window.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.unfold(jnp.ones((2, 4, 4, 3)), 2, stride=2).shape
    (2, 4, 12)

    torch counterpart: `torch.nn.functional.unfold`, which gives [N, C K, L].
    """
    rank = spatial_rank("unfold", x, kernel_size, dilation, padding, stride)
    over = windows("unfold", rank, kernel_size, stride, padding, dilation)
    _check_blocks("unfold", x.shape[-1 - rank : -1], over)
    return _unfold(x, over)


def fold(
    x: jax.Array,
    output_size: Ints,
    kernel_size: Ints,
    dilation: Ints = 1,
    padding: Ints = 0,
    stride: Ints = 1,
) -> jax.Array:
    """Adds each row to the image at its window: the transpose of `unfold`, [..., *output_size, C].

    Args:
      x: [..., L, C K], as `unfold` returns it.
      output_size: the spatial sizes of the result; an int means two equal sizes.
      kernel_size, dilation, padding, stride: as given to `unfold`.

    Raises: ValueError: rows that are not the windows of such an image.

    torch counterpart: `torch.nn.functional.fold`.
    """
    rank = len(output_size) if isinstance(output_size, Sequence) else 2
    sizes = per_axis("fold", "output_size", output_size, rank)
    over = windows("fold", rank, kernel_size, stride, padding, dilation)
    _check_blocks("fold", sizes, over)
    *batch, L, CK = x.shape
    K = math.prod(w.size for w in over)
    counts = [w.count(n) for w, n in zip(over, sizes, strict=True)]
    if CK % K:
        raise ValueError(
            "fold: Expected size of input's last dimension to be divisible by the product of kernel_size, "
            f"but got {CK} and kernel_size={tuple(w.size for w in over)}."
        )
    if math.prod(counts) != L:
        raise ValueError(
            f"fold: Given output_size={sizes}, expected {' * '.join(map(str, counts))} = {math.prod(counts)} "
            f"sliding blocks, but got {L}."
        )
    like = jax.ShapeDtypeStruct((*batch, *sizes, CK // K), x.dtype)
    # JAX transposes the slices of `_unfold` to padded arrays, whose sum has a fixed order. A scatter adds
    # overlapping windows in any order on accelerators.
    (y,) = jax.linear_transpose(functools.partial(_unfold, over=over), like)(x)
    return y


@functools.partial(jax.jit, static_argnums=1, static_argnames="over", inline=True)
def _unfold(x: jax.Array, over: tuple[Window, ...]) -> jax.Array:
    parts = [x]
    for axis, window in enumerate(over, x.ndim - 1 - len(over)):
        parts = [element for part in parts for element in window_elements(part, axis, window, 0)]
    y = jnp.stack(parts, -1)
    return y.reshape(*x.shape[: -1 - len(over)], -1, x.shape[-1] * len(parts))


def _check_blocks(function: str, sizes: Sequence[int], over: Sequence[Window]) -> None:
    counts = tuple(w.count(n) for w, n in zip(over, sizes, strict=True))
    if min(counts) < 1:
        raise ValueError(
            f"{function}: Given spatial size {tuple(sizes)}, calculated shape of the array of sliding blocks "
            f"as {counts}, but its components must be at least one."
        )


def pixel_shuffle(x: jax.Array, upscale_factor: int) -> jax.Array:
    """[..., H, W, C r^2] to [..., H r, W r, C], r being `upscale_factor`.

    Raises: ValueError: a factor below 1; r^2 does not divide the channels.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.pixel_shuffle(jnp.ones((1, 4, 4, 12)), 2).shape
    (1, 8, 8, 3)

    torch counterpart: `torch.nn.functional.pixel_shuffle`; channel c r^2 + i r + j goes to (i, j).
    """
    r = upscale_factor
    check_factor("pixel_shuffle", "upscale_factor", r)
    *batch, H, W, C = x.shape
    if C % r**2:
        raise ValueError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
            f"upscale_factor, but {C} is not divisible by {r**2}"
        )
    x = x.reshape(*batch, H, W, C // r**2, r, r)
    n = len(batch)
    x = x.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return x.reshape(*batch, H * r, W * r, C // r**2)


def pixel_unshuffle(x: jax.Array, downscale_factor: int) -> jax.Array:
    """[..., H r, W r, C] to [..., H, W, C r^2], r being `downscale_factor`: the inverse of `pixel_shuffle`.

    Raises: ValueError: a factor below 1; r does not divide height and width.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.pixel_unshuffle(jnp.ones((1, 8, 8, 3)), 2).shape
    (1, 4, 4, 12)

    torch counterpart: `torch.nn.functional.pixel_unshuffle`.
    """
    r = downscale_factor
    check_factor("pixel_unshuffle", "downscale_factor", r)
    *batch, H, W, C = x.shape
    for name, size in {"height": H, "width": W}.items():
        if size % r:
            raise ValueError(
                f"pixel_unshuffle expects {name} to be divisible by downscale_factor, but {size} is not "
                f"divisible by {r}"
            )
    x = x.reshape(*batch, H // r, r, W // r, r, C)
    n = len(batch)
    x = x.transpose(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return x.reshape(*batch, H // r, W // r, C * r**2)


def channel_shuffle(x: jax.Array, groups: int) -> jax.Array:
    """[..., C]: the first channels of all groups, then the second ones, and so on.

    Raises: ValueError: groups below 1, or not a divisor of the channels.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.channel_shuffle(jnp.arange(4.0), 2).tolist()
    [0.0, 2.0, 1.0, 3.0]

    torch counterpart: `torch.nn.functional.channel_shuffle`.
    """
    check_shuffle_groups(groups)
    *batch, C = x.shape
    if C % groups:
        raise ValueError(
            f"Number of channels must be divisible by groups. Got {C} channels and {groups} groups."
        )
    return x.reshape(*batch, groups, C // groups).swapaxes(-1, -2).reshape(x.shape)
