"""pixel_shuffle, pixel_unshuffle and channel_shuffle; channels are numbered as in torch."""

from __future__ import annotations

import jax

from .._checks import check_factor, check_shuffle_groups


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
