"""Linen's partitioning metadata in a program over the replicas.

Flax turns the names of `nn.with_partitioning` into a sharding constraint wherever there is a mesh, so a name
that the replicas' mesh does not have would be an error. There is nothing to partition over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import linen

PARAMS = "params"


def without_absent_axes(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables with parameters taken out of boxes whose axes this program's mesh lacks."""
    axes = set(jax.sharding.get_abstract_mesh().axis_names)

    def opened(box: Any) -> Any:
        if not isinstance(box, linen.Partitioned) or box.mesh is not None or _axes(box) <= axes:
            return box
        return box.unbox(apply_constraint=False)

    if not axes or PARAMS not in variables:
        return dict(variables)
    is_box = lambda x: isinstance(x, linen.Partitioned)  # noqa: E731
    return {**variables, PARAMS: jax.tree.map(opened, variables[PARAMS], is_leaf=is_box)}


def _axes(box: linen.Partitioned) -> set[str]:
    names: Any = box.names
    if isinstance(box, linen.LogicallyPartitioned):
        names = linen.logical_to_mesh_axes(box.names, box.rules) or ()
    return {
        axis
        for name in names
        for axis in (name if isinstance(name, tuple) else (name,))
        if isinstance(axis, str)
    }
