"""branch: a replica's function, traced for one number of rows; checks that the branches fit together."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._devices import devices as _devices
from .._tree import is_array, paths
from .._typing import PyTree, Shape, TreeDef
from .._upstream import ClosedJaxpr, jaxpr_as_fun
from ..errors import GatherError, GatherTypeError
from .lift import communicates, traced
from .placement import Placement
from .shards import crop

Kind = tuple[Shape, ...]  # the shapes of one replica's pieces; replicas of one kind share a branch


class Local(NamedTuple):
    """One replica's results."""

    outputs: PyTree  # of any shapes
    terms: PyTree  # of sums over all replicas, of equal shapes; a replica without rows adds zeros
    changes: PyTree  # to shared values; only the source replica's are kept


@dataclasses.dataclass(frozen=True)
class Branch:
    """The function traced for one kind of pieces, which it takes without padding; `local` holds shapes."""

    jaxpr: ClosedJaxpr
    local: Local
    kind: Kind

    def __call__(self, flat: list[jax.Array]) -> list[jax.Array]:
        """Return the results for operands of which the last are the pieces, with their padding."""
        # Cropped inside the branch, because a switch passes the same operands to all branches.
        first = len(flat) - len(self.kind)
        pieces = [crop(x, shape) for x, shape in zip(flat[first:], self.kind, strict=True)]
        return list(jaxpr_as_fun(self.jaxpr)(*flat[:first], *pieces))


def run_branch(
    one: Callable[..., Local], data: PyTree, kind: Kind, placement: Placement, marks: Sequence[bool]
) -> Local:
    """Run the function where all replicas have pieces of one kind: no program has to be compared."""
    # In place, which saves passes over all equations, and `jax.debug_nans` finds the user's line.
    with _noted(placement, 0, kind, marks):
        return jax.tree.map(jnp.asarray, one(*_cropped(data, kind)))


def trace_branch(
    one: Callable[..., Local],
    data: PyTree,
    kind: Kind,
    placement: Placement,
    marks: Sequence[bool],
    replica: int,
    k: int,
) -> Branch:
    data = _cropped(data, kind)
    with _noted(placement, replica, kind, marks):
        # To a jaxpr, not straight into the switch: its output shapes and collectives must be known first.
        jaxpr, local = jax.make_jaxpr(one, return_shape=True)(*data)
        if communicates(jaxpr):
            jaxpr = traced(one, data, k)
    return Branch(jaxpr, local, kind)


def _cropped(data: PyTree, kind: Kind) -> PyTree:
    *context, pieces = data
    return (*context, [crop(x, shape) for x, shape in zip(pieces, kind, strict=True)])


@contextlib.contextmanager
def _noted(placement: Placement, replica: int, kind: Kind, marks: Sequence[bool]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        device, dim = _devices.name(placement.devices[replica]), placement.dim
        # Marked arrays are complete, and keys without axes have no rows.
        pieces = [shape for shape, mark in zip(kind, marks, strict=True) if shape and not mark]
        rows = f", which has {pieces[0][dim]} rows along dim={dim}" if pieces else ""
        error.add_note(
            f"Caught {type(error).__name__} in replica {replica} on device {device}{rows}"
            " (replicas with the same number of rows are traced once)."
        )
        if len(pieces) > 1 and isinstance(error, (TypeError, ValueError)) and "shape" in str(error):
            error.add_note(
                f"Arguments were cut into rows: {', '.join(str(list(shape)) for shape in pieces)}. Mark one "
                "that has none, such as a mask or a table as long as the batch: jaxpar.replicated(...)."
            )
        raise


def check_outputs(outputs: PyTree, function: str = "parallel_apply") -> None:
    """Raise GatherTypeError for a leaf that no program can return."""
    for path, leaf in jax.tree.leaves_with_path(outputs):
        if not is_array(leaf):
            raise GatherTypeError(
                f"{function}: outputs{jax.tree_util.keystr(path)} is of type {type(leaf).__name__} "
                f"({leaf!r:.40}), which cannot be gathered. Return arrays, None, or containers of these."
            )


def output_shapes(branches: list[Branch], table: list[int]) -> tuple[tuple[Shape, ...], ...]:
    first = branches[0].local.outputs
    # Compared here, where an error can name the replicas: a switch gets flat lists of padded arrays.
    used = [(i, branches[j].local.outputs) for i, j in enumerate(table) if j < len(branches)]
    form: TreeDef = jax.tree.structure(first)
    for i, other in used:
        if (its := jax.tree.structure(other)) != form:
            raise GatherError(
                f"parallel_apply: replica {used[0][0]} returned {form} and replica {i} returned {its}; all "
                "replicas must return the same structure. Does forward depend on the number of rows?"
            )
        for a, b, name in zip(
            jax.tree.leaves(first), jax.tree.leaves(other), paths(first, "outputs"), strict=True
        ):
            if (a.ndim, a.dtype) != (b.ndim, b.dtype):
                raise GatherError(
                    f"parallel_apply: {name} is {a.dtype} with {a.ndim} axes on replica {used[0][0]} and "
                    f"{b.dtype} with {b.ndim} axes on replica {i}; all replicas must return the same kind of "
                    "array."
                )
    return tuple(zip(*([x.shape for x in jax.tree.leaves(other)] for _, other in used), strict=True))
