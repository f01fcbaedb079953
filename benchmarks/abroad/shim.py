"""What transformers' Flax models still call, and this JAX has dropped. Only the processes of `ask` see it."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp


def installed() -> None:
    """`jnp.clip(x, a_min=..., a_max=...)`, which are `min` and `max` now."""
    own = jnp.clip

    @functools.wraps(own)
    def clip(x: Any, *args: Any, **kwargs: Any) -> Any:
        names = {"a_min": "min", "a_max": "max"}
        return own(x, *args, **{names.get(name, name): value for name, value in kwargs.items()})

    jnp.clip = clip
