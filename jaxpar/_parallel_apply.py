"""parallel_apply: every replica runs on its own rows, all of them in one compiled program.

torch starts a thread for each replica. Here one program is compiled for all devices. When the
replicas have different numbers of rows it holds one branch for each number that occurs, and every
device takes its own; so a module never sees padding, and no mask is needed for BatchNorm, for a
loss inside of forward, or for anything else that looks at more than one row
(torch-semantics 1.2 #15, 1.6 #75).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from . import _devices
from ._backends import Backend
from ._backends import backend as _backend
from ._convolution import for_branch
from ._placement import Placement, place
from ._reduce import from_replica_zero
from ._replicate import Replicas
from ._shards import Shards, combine, crop, separate
from ._tree import is_array, is_staged, paths
from ._typing import REPLICA, DeviceLike, PyTree, Shape
from .errors import CollectiveError, CountError, GatherError, GatherTypeError


def parallel_apply(
    modules: Replicas | Sequence[Any],
    inputs: Shards | Sequence[Any],
    kwargs_tup: Shards | Sequence[dict[str, Any]] | None = None,
    devices: Iterable[DeviceLike] | None = None,
    *,
    backend: str = "shard_map",
) -> Shards | list[Any]:
    """Apply module i to inputs i, for all i at once.

    Args:
      modules: what `replicate` returned, or a sequence of any modules.
      inputs: what `scatter` returned, or a sequence. A tuple or list is a module's positional
        arguments, anything else its only one.
      kwargs_tup: keyword arguments likewise.
      devices: for a sequence of modules, where each of them runs; where it is if left out.
      backend: `"shard_map"` or `"pmap"`; equal results.

    Returns:
      Shards for replicas; for a sequence of modules, the list of their outputs, each computed
      eagerly on its own device.

    Raises:
      CountError: as many inputs, keyword arguments and devices as modules are needed.
      Whatever a module raises, with a note that names the replica and the device.

    torch counterpart: `torch.nn.parallel.parallel_apply` (torch-semantics 1.4).
    """
    _check_counts(len(modules), inputs, kwargs_tup, devices)
    if not isinstance(modules, Replicas):
        return _one_by_one(modules, inputs, kwargs_tup, devices)
    if not isinstance(inputs, Shards):
        raise TypeError(
            "parallel_apply: replicas need inputs from jaxpar.scatter; for a list of inputs pass "
            "list(replicas)."
        )
    if inputs.placement.devices != modules.placement.devices:
        raise ValueError(
            f"parallel_apply: the inputs were scattered to {_names(inputs.placement)} and the module "
            f"replicated to {_names(modules.placement)}; give both the same devices."
        )
    assert kwargs_tup is None or isinstance(kwargs_tup, Shards)
    split = modules.split()
    run: Any = _backend(backend)
    program = _program(split.definition, run, inputs.placement)
    outputs, changes = program(modules.values(split), inputs, kwargs_tup)
    split.commit(changes)
    return outputs


def _check_counts(m: int, inputs: Any, kwargs_tup: Any, devices: Any) -> None:
    for what, given in (("inputs", inputs), ("kwargs_tup", kwargs_tup), ("devices", devices)):
        if given is not None and len(given) != m:
            raise CountError(f"The number of modules {m} is not equal to the number of {what} {len(given)}")


def _names(placement: Placement) -> str:
    return "[" + ", ".join(map(_devices.name, placement.devices)) + "]"


def _arguments(inputs: Any) -> tuple:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


# ------------------------------------------------------------------------------------- one by one


def _one_by_one(modules: Sequence[Any], inputs: Any, kwargs_tup: Any, devices: Any) -> list[Any]:
    where = (
        place(devices, function="parallel_apply").devices if devices is not None else (None,) * len(modules)
    )
    outputs = []
    for i, module in enumerate(modules):
        args, kwargs, d = _arguments(inputs[i]), dict(kwargs_tup[i]) if kwargs_tup else {}, where[i]
        if d is not None and not is_staged():
            args, kwargs = jax.tree.map(
                lambda x, d=d: jax.device_put(x, d) if is_array(x) else x, (args, kwargs)
            )
        try:
            outputs.append(module(*args, **kwargs))
        except Exception as error:
            on = f" on device {_devices.name(d)}" if d else ""
            error.add_note(f"Caught {type(error).__name__} in replica {i}{on}.")
            raise
    return outputs


# ------------------------------------------------------------------------------------ as one program


@functools.lru_cache(maxsize=1024)
def _program(definition: Any, run: Backend, placement: Placement) -> Any:
    return jax.jit(functools.partial(_run, definition, run, placement))


def _run(
    definition: Any, run: Backend, placement: Placement, values: PyTree, inputs: Shards, kwargs: Shards | None
) -> tuple[Shards, PyTree]:
    kinds = _kinds(inputs, kwargs)
    order = list(dict.fromkeys(kinds))
    table = [order.index(kind) for kind in kinds]
    found: list[tuple[Any, tuple[tuple[Shape, ...], ...]]] = []

    def body(index: jax.Array, values: PyTree, rows: list[jax.Array]) -> tuple[list[jax.Array], PyTree]:
        # The module is traced here, inside of the backend, because what is traced holds its mesh.
        data = (index, values, rows)
        branches = [_trace(definition, data, inputs, kwargs, kind, kinds.index(kind)) for kind in order]
        if placement.devices[0].platform == "cpu" and (len(order) > 1 or len(kinds) < placement.N):
            branches = [dataclasses.replace(b, jaxpr=for_branch(b.jaxpr)) for b in branches]
        shapes = _output_shapes(branches, table)
        found.append((branches[0].form, shapes))
        return _choose(branches, table, placement.N, shapes, data)

    stacks, _, _ = separate((inputs.tree, {} if kwargs is None else kwargs.tree))
    rows, changes = run(body, placement, values, stacks)
    form, shapes = found[-1]
    return Shards(jax.tree.unflatten(form, rows), inputs.sizes, shapes, inputs.placement), changes


@dataclasses.dataclass(frozen=True)
class _Branch:
    """The module traced for one combination of piece shapes."""

    jaxpr: ClosedJaxpr
    form: Any
    outputs: list[jax.ShapeDtypeStruct]
    changes: PyTree


def _kinds(inputs: Shards, kwargs: Shards | None) -> list[tuple[Shape, ...]]:
    """For every replica, the shapes of its pieces; replicas of one kind share a branch."""
    leaves = inputs.shapes + (() if kwargs is None else kwargs.shapes)
    return [tuple(shapes[i] for shapes in leaves) for i in range(len(inputs))]


def _trace(
    definition: Any,
    data: PyTree,
    inputs: Shards,
    kwargs: Shards | None,
    kind: tuple[Shape, ...],
    replica: int,
) -> _Branch:
    placement, alone = inputs.placement, len(inputs) == 1
    _, statics, treedef = separate((inputs.tree, {} if kwargs is None else kwargs.tree))

    def one(index: jax.Array, values: PyTree, rows: list[jax.Array]) -> tuple[PyTree, PyTree]:
        pieces = [crop(x, shape) for x, shape in zip(rows, kind, strict=True)]
        args, named = combine(pieces, statics, treedef)
        outputs, changes = definition(values, None if alone else index, _arguments(args), named)
        check_outputs(outputs)
        return outputs, changes

    try:
        jaxpr, (outputs, changes) = jax.make_jaxpr(one, return_shape=True)(*data)
    except Exception as error:
        where = _devices.name(placement.devices[replica])
        error.add_note(
            f"Caught {type(error).__name__} in replica {replica} on device {where}"
            " (replicas with the same number of rows are traced once)."
        )
        raise
    leaves, form = jax.tree.flatten(outputs)
    return _Branch(jaxpr, form, leaves, changes)


def check_outputs(outputs: PyTree, function: str = "parallel_apply") -> None:
    """Raises GatherTypeError for a leaf that no program can return."""
    for path, leaf in jax.tree.leaves_with_path(outputs):
        if not is_array(leaf):
            raise GatherTypeError(
                f"{function}: outputs{jax.tree_util.keystr(path)} is of type {type(leaf).__name__} "
                f"({leaf!r:.40}), which cannot be gathered. Return arrays, None, or containers of these."
            )


def _output_shapes(branches: list[_Branch], table: list[int]) -> tuple[tuple[Shape, ...], ...]:
    first = branches[0]
    for i, j in enumerate(table):
        other = branches[j]
        if other.form != first.form:
            raise GatherError(
                f"parallel_apply: replica 0 returned {first.form} and replica {i} returned {other.form}; all "
                "replicas must return the same structure. Does forward depend on the number of rows?"
            )
        for a, b, name in zip(
            first.outputs,
            other.outputs,
            paths(jax.tree.unflatten(first.form, first.outputs), "outputs"),
            strict=True,
        ):
            if (a.ndim, a.dtype) != (b.ndim, b.dtype):
                raise GatherError(
                    f"parallel_apply: {name} is {a.dtype} with {a.ndim} axes on replica 0 and {b.dtype} with "
                    f"{b.ndim} axes on replica {i}; all replicas must return the same kind of array."
                )
    return tuple(tuple(branches[j].outputs[leaf].shape for j in table) for leaf in range(len(first.outputs)))


def _choose(
    branches: list[_Branch], table: list[int], N: int, shapes: tuple[tuple[Shape, ...], ...], data: PyTree
) -> tuple[list[jax.Array], PyTree]:
    """One device's part: take its branch, pad what it returns, share replica 0's changes."""
    first = branches[0]
    # At least 1: XLA's partitioner fails on arrays without elements at a shard_map's border.
    common = [tuple(max(1, *sizes) for sizes in zip(*s, strict=True)) for s in shapes]
    changed, form = jax.tree.flatten(first.changes)

    def run(branch: _Branch, flat: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        out = jaxpr_as_fun(branch.jaxpr)(*flat)
        n = len(branch.outputs)
        rows = [_pad(x, shape) for x, shape in zip(out[:n], common, strict=True)]
        return rows, list(out[n:]) if branch is first else [_zeros(a.shape, a.dtype) for a in changed]

    def idle(flat: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        del flat
        rows = [_zeros(shape, a.dtype) for shape, a in zip(common, first.outputs, strict=True)]
        return rows, [_zeros(a.shape, a.dtype) for a in changed]

    choices = [functools.partial(run, branch) for branch in branches] + [idle] * (len(table) < N)
    flat = jax.tree.leaves(data)
    if len(choices) == 1:
        rows, changes = run(first, flat)
    else:
        _check_no_collective(branches)
        choice = jnp.array(table + [len(branches)] * (N - len(table)))
        rows, changes = jax.lax.switch(choice[data[0]], choices, flat)
    # Outside of the branches, where every device passes: only here do the replicas meet.
    return rows, from_replica_zero(jax.tree.unflatten(form, changes), data[0])


def _check_no_collective(branches: list[_Branch]) -> None:
    for effect in (effect for branch in branches for effect in branch.jaxpr.effects):
        if getattr(effect, "name", None) == REPLICA:
            raise CollectiveError(
                "parallel_apply: the module uses a collective over the replicas (psum, all_gather, "
                "BatchNorm with axis_name) and the replicas have different numbers of rows, so they would "
                "wait for each other for ever. Make B a multiple of the number of devices."
            )


def _zeros(shape: Shape, dtype: Any) -> jax.Array:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0, impl=jax.random.key_impl(dtype)), shape)
    return jnp.zeros(shape, dtype)


def _pad(x: jax.Array, shape: Shape) -> jax.Array:
    if x.shape == shape:
        return x
    return jnp.pad(x, [(0, want - have) for have, want in zip(x.shape, shape, strict=True)])
