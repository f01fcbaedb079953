"""Computes the tables of constructors, such as sines of positions, in float64 on both sides.

In float32 the last digit of a table depends on the library's sine, so a proof at 1e-10 needs more digits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import nn

from .._sides import flax_float64, torch_float64


def of_torch(make: Callable[[], nn.Module], net: nn.Module) -> nn.Module:
    """Return a copy of `net` with the tables of what `make` makes in float64."""
    exact, state = copy.deepcopy(net), net.state_dict()
    with torch_float64.in_float64():
        modules = dict(make().named_modules())
    for path, layer in exact.named_modules():
        for name, x in {**vars(modules[path]), **modules[path]._buffers}.items():
            narrow = getattr(layer, name, None)
            if not isinstance(x, torch.Tensor) or not isinstance(narrow, torch.Tensor):
                continue
            if narrow.dtype is torch.float32 and f"{path}.{name}".lstrip(".") not in state:
                # As a buffer, because `float` and `double` leave other attributes as they are.
                vars(layer).pop(name, None)
                layer.register_buffer(name, x.detach(), persistent=False)
    return exact


def of_flax(build: Callable[[], nnx.Module], module: nnx.Module) -> nnx.Module:
    """Return a copy of `module` with the tables of what `build` makes in float64."""

    def tables(module: nnx.Module) -> dict[str, Any]:
        # `nnx.state` leaves out traced arrays.
        return {
            f"{path}{name}": x
            for path, layer in nnx.iter_modules(module, graph=True)
            for name, x in vars(layer).items()
            if isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)
        }

    exact = nnx.clone(module, graph=True)
    with jax.enable_x64(True):
        values = jax.jit(flax_float64.in_float64(lambda: tables(build())))()
        for path, layer in nnx.iter_modules(exact, graph=True):
            for name in [name for name in vars(layer) if f"{path}{name}" in values]:
                setattr(layer, name, values[f"{path}{name}"])
    return exact
