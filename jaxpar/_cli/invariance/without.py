"""Remove a suspect from a training, draws or batch statistics: if the worlds then agree, it is named."""

from __future__ import annotations

import atexit
import functools
import inspect
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._upstream import is_traced

DRAWS, STATISTICS = "draws", "statistics"
FUNCTIONS = ("bernoulli", "normal", "uniform", "truncated_normal", "gumbel", "randint", "categorical")

Function = Callable[..., Any]
StandIn = Callable[[Function, inspect.BoundArguments], Any]


def remove(suspects: Collection[str], folder: Path) -> None:
    """Replace the functions of the suspects; one that a traced step calls leaves a file, `uses-<suspect>`."""
    from flax.linen import normalization as of_linen
    from flax.nnx.nn import normalization as of_nnx

    from ..._statistics import moments

    for name in FUNCTIONS:
        _replace(jax.random, name, DRAWS, _drawn, suspects, folder)
    atexit.register(_write_keys, folder)
    for module, name in (
        (of_linen, "_compute_stats"),
        (of_nnx, "_compute_stats"),
        (moments, "global_moments"),
    ):
        _replace(module, name, STATISTICS, _computed, suspects, folder)


def _replace(
    module: Any, name: str, suspect: str, stand_in: StandIn, suspects: Collection[str], folder: Path
) -> None:
    original = getattr(module, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        # Initial values are drawn outside of a step, and layers normalise a row alone.
        if not is_traced() or (suspect == STATISTICS and not _over_rows(bound)):
            return original(*args, **kwargs)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"uses-{suspect}").touch()
        return stand_in(original, bound) if suspect in suspects else original(*args, **kwargs)

    setattr(module, name, function)


def _over_rows(bound: inspect.BoundArguments) -> bool:
    axes, ndim = bound.arguments["axes"], np.ndim(bound.arguments["x"])
    return any(axis % ndim == 0 for axis in ([axes] if isinstance(axes, int) else axes))


KEYS: set[bytes] = set()
"""The keys from which the devices of this process drew."""


def _drawn(original: Function, bound: inspect.BoundArguments) -> Any:
    """Draw from one key, and one row that all rows repeat where the other arguments are numbers."""
    data = jax.random.key_data(bound.arguments["key"])
    jax.debug.callback(lambda key: KEYS.add(np.asarray(key).tobytes()), data)
    options = dict(bound.arguments) | {"key": jax.random.key(0)}
    shape = options.get("shape")
    others = [np.ndim(x) for name, x in options.items() if name not in ("key", "shape", "dtype", "mode")]
    if not isinstance(shape, tuple | list) or not shape or any(others):
        return original(**options)
    return jnp.broadcast_to(original(**(options | {"shape": (1, *shape[1:])})), tuple(shape))


def _write_keys(folder: Path) -> None:
    jax.effects_barrier()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"keys-{os.environ['RANK']}.txt").write_text(" ".join(key.hex() for key in KEYS))


def _computed(original: Function, bound: inspect.BoundArguments) -> Any:
    mean, var = original(*bound.args, **bound.kwargs)
    return jnp.zeros_like(mean), jnp.ones_like(var)
