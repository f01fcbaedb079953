"""spread: the same values on all devices, where torch would find them all on device_ids[0]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .._devices import devices as _devices
from .._devices.context import brought, use_mesh
from .._devices.topology import refuse_topology
from .._tree import has_tracers, is_array, is_real
from .._typing import PyTree
from .._upstream import concrete
from ..errors import LeafError, MisplacedError, UninitializedError
from .placement import Placement


def spread(values: list, names: Sequence[str], placement: Placement, function: str = "DataParallel") -> list:
    """Return the same values, each on all devices; at once if they are already (docs/semantics.md row 34).

    `function` is the wrapper that errors name.
    """
    refuse_topology(placement.devices, "replicate")
    for value, name in zip(values, names, strict=True):
        for leaf in jax.tree.leaves(value):
            underlying = concrete(leaf)
            if underlying is not None:
                _check_place(underlying, name, placement, function)
    use_mesh(placement.outer_mesh)
    if not has_tracers(values):
        if placement.outer_mesh is None:
            return jax.device_put(values, placement.replicated)
        values = [
            jax.tree.map(lambda leaf: placement.own_part(leaf, name, function), value)  # noqa: B023
            for value, name in zip(values, names, strict=True)
        ]
        return jax.device_put(values, jax.tree.map(placement.for_value, values))
    return jax.tree.map(lambda leaf: _spread_under_derivative(leaf, placement), values)


def staged(values: PyTree, placement: Placement) -> PyTree:
    """Return tracers of values for a program; where they live, the enclosing program decides."""
    return jax.tree.map(
        lambda x: brought(x, placement.mesh, lambda: placement.replicated) if is_array(x) else x, values
    )


def _spread_under_derivative(leaf: Any, placement: Placement) -> Any:
    """Copy like torch's Broadcast: what flows back is summed, and returns to the value's original devices."""
    underlying = concrete(leaf)
    if (
        not is_real(underlying)
        or not underlying.committed
        or underlying.sharding.device_set == set(placement.devices)
    ):
        return brought(leaf, placement.mesh, lambda: placement.replicated)
    # Without `src` a gradient would stay on all devices, and could not be added to a parameter on one.
    return jax.device_put(leaf, placement.replicated, src=underlying.sharding)


def _check_place(leaf: object, name: str, placement: Placement, function: str) -> None:
    """Enforce torch's rule: all parameters and buffers are on device_ids[0] (docs/semantics.md row 14)."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise UninitializedError(
            f"{function}: Attempted to use an uninitialized parameter: {name} is a shape "
            f"({leaf.dtype}{list(leaf.shape)}) without values. Build the module before it is called."
        )
    if not is_array(leaf) and not isinstance(leaf, (int, float, complex, np.generic)):
        raise LeafError(f"{function}: {name} holds a {type(leaf).__name__}, which no device can hold.")
    if not is_real(leaf) or not leaf.committed:
        return
    home = leaf.sharding.device_set
    # An array on several devices is the result of a program: this one, or one on different devices before.
    if home == {placement.devices[0]} or len(home) > 1:
        return
    where = ", ".join(sorted(_devices.name(d) for d in home))
    first = _devices.name(placement.devices[0])
    raise MisplacedError(
        f"module must have its parameters and buffers on device {first} (device_ids[0]) but found one of "
        f"them on device: {where}. It is {name}; move it with jax.device_put(..., jaxpar.device({first!r}))."
    )
