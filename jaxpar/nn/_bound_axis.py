"""bound_axis: whether a program runs over the mesh axis of a normalisation."""

from __future__ import annotations

import jax

from .._statistics.linen_batch_norm import is_bound
from .._typing import AxisName


def bound_axis(function: str, axis_name: AxisName) -> AxisName:
    """Return the axis, or None outside of any mapped program. Raises ValueError in one over other axes."""
    if axis_name is None or is_bound(axis_name):
        return axis_name
    # An unbound name is a mistake in a program over other axes; outside of any program there is one replica.
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if not axes:
        return None
    raise ValueError(
        f"{function}: this program runs over the mesh axes {tuple(axes)}, and axis_name={axis_name!r} is "
        "none of them. Pass the axis over which the batch is spread, or axis_name=None to let every replica "
        "take its own statistics."
    )
