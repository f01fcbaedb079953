"""parallel_apply: every replica runs on its own rows, all in one compiled program."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import jax
from flax import linen, nnx

from .._devices import devices as _devices
from .._devices.context import outside
from .._tree import LazyPaths, check_alive, is_array, is_real, is_staged
from .._typing import DeviceLike, PyTree
from ..errors import CountError
from . import program as _program
from .backends import Backend
from .backends import backend as _backend
from .branch import Kind, Local
from .compiling import Compiling, begun
from .modules import Definition
from .modules.bundle import nets_of
from .modules.records import Records
from .placement import Placement, place
from .programs import Programs, shared
from .reduce import from_replica_zero
from .replicate import Replicas
from .replicated import plain_arguments, unmarked, with_output_marks
from .shards import Shards


@outside
def parallel_apply(
    modules: Replicas | Sequence[Any],
    inputs: Shards | Sequence[Any],
    kwargs_tup: Shards | Sequence[dict[str, Any]] | None = None,
    devices: Iterable[DeviceLike] | None = None,
    *,
    backend: str = "shard_map",
) -> Shards | list[Any]:
    """Apply module i to inputs i, for all i at once.

    >>> import jax.numpy as jnp, jaxpar
    >>> double, square = lambda x: 2 * x, lambda x: x**2
    >>> [int(y) for y in jaxpar.parallel_apply([double, square], [jnp.array(3), jnp.array(4)])]
    [6, 16]

    Args:
      modules: what `replicate` returned, or a sequence of any modules.
      inputs: what `scatter` returned, or a sequence. A tuple or list is a module's positional
        arguments, anything else its only one.
      kwargs_tup: keyword arguments likewise.
      devices: for a sequence of modules, where each of them runs; where it is if left out.
      backend: `"shard_map"` or `"pmap"`; equal results.

    Returns:
      Shards for replicas; for a sequence of modules, the list of their outputs, each on its own device.

    Raises:
      CountError: not as many inputs, keyword arguments or devices as modules. DeletedError: a donated array.
      Whatever a module raises, with a note that names the replica and the device.

    torch counterpart: `torch.nn.parallel.parallel_apply` (docs/semantics.md section 1.4).
    """
    if not isinstance(modules, (Replicas, Sequence)):
        raise TypeError(
            f"parallel_apply: modules are {type(modules).__name__}; give jaxpar.Replicas, or a list of "
            "modules."
        )
    for what, argument in (("inputs", inputs), ("kwargs_tup", kwargs_tup), ("devices", devices)):
        if isinstance(argument, Sized) and len(argument) != len(modules):
            raise CountError(
                f"The number of modules {len(modules)} is not equal to the number of {what} {len(argument)}"
            )
    _check_alive(inputs=inputs, kwargs_tup=kwargs_tup)
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
    return apply_replicas(modules, inputs, kwargs_tup, backend, programs)[0]


def apply_replicas(
    replicas: Replicas, inputs: Shards, kwargs: Shards | None, backend: str, programs: Programs
) -> tuple[Shards, Shards]:
    """Return the outputs, and what the forward pass recorded in its module (`modules.records`)."""
    split = replicas.split()
    program = programs(split.definition, _backend(backend), inputs.placement, _type.get())

    def describe() -> str:
        module = type(nets_of(replicas.module)[0]).__name__
        return f"{replicas.function} ({module}) for {len(replicas)} devices"

    values = replicas.values(split)
    if is_staged():
        # Part of the enclosing program: as a program of its own it would be differentiated as one, by JAX's
        # rule for programs, which goes through all equations three more times.
        program = program.__wrapped__
    with Compiling(describe):
        outputs, records, changes = program(values, inputs, kwargs)
    split.commit(changes)
    return outputs, records


_type: contextvars.ContextVar[Any] = contextvars.ContextVar("type", default=None)


@contextlib.contextmanager
def cast_on_replicas(dtype: Any) -> Iterator[None]:
    """While tracing inside this context, replicas cast floating parameters to `dtype`."""
    # So that gradients are summed in the parameters' own type. Cast earlier, they would be summed in 16 bits.
    token = _type.set(dtype)
    try:
        yield
    finally:
        _type.reset(token)


def _check_alive(**arguments: Any) -> None:
    trees = {name: tree.tree if isinstance(tree, Shards) else tree for name, tree in arguments.items()}
    check_alive(jax.tree.leaves(list(trees.values())), LazyPaths(*trees.items()), "parallel_apply")


def _names(placement: Placement) -> str:
    return "[" + ", ".join(map(_devices.name, placement.devices)) + "]"


def _arguments(inputs: Any) -> tuple:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def _one_by_one(modules: Sequence[Any], inputs: Any, kwargs_tup: Any, devices: Any) -> list[Any]:
    where = (
        place(devices, function="parallel_apply").devices if devices is not None else (None,) * len(modules)
    )
    outputs = []
    for i, module in enumerate(modules):
        args, kwargs = unmarked((_arguments(inputs[i]), dict(kwargs_tup[i]) if kwargs_tup else {}))
        d = where[i]
        if d is not None and not is_staged():
            args, kwargs = jax.tree.map(
                lambda x, d=d: jax.device_put(x, d) if is_array(x) else x, (args, kwargs)
            )
        try:
            with plain_arguments((args, kwargs)) as (args, kwargs):  # where `replicated` returns plain arrays
                outputs.append(module(*args, **kwargs))
        except Exception as error:
            on = " and ".join(map(_devices.name, [d] if d else _homes(module, args, kwargs)))
            error.add_note(f"Caught {type(error).__name__} in replica {i}{on and f' on device {on}'}.")
            raise
    return outputs


def _homes(module: Any, *inputs: Any) -> list[jax.Device]:
    for tree in (_arrays(module), inputs):
        devices = {d for x in jax.tree.leaves(tree) if is_real(x) and not x.is_deleted() for d in x.devices()}
        if devices:
            return sorted(devices, key=lambda d: d.id)
    # Without an array of JAX's, its functions run on the current device. Tracers have no devices yet.
    return [] if is_staged() else [_devices.device()]


def _arrays(module: Any) -> PyTree:
    if isinstance(module, nnx.Module):
        return nnx.state(module, graph=True)
    bound = isinstance(module, linen.Module) and module.scope is not None
    return module.variables if bound else ()


class WithRecords(NamedTuple):
    outputs: PyTree
    records: Records


def compiled(definition: Definition, run: Backend, placement: Placement, dtype: Any = None) -> Any:
    """Return a program `(values, inputs, kwargs) -> (outputs, records, changes)`.

    `dtype`: see `cast_on_replicas`.
    """

    def program(values: PyTree, inputs: Shards, kwargs: Shards | None) -> tuple[Shards, Shards, PyTree]:
        begun()
        return _run(definition, run, placement, dtype, values, inputs, kwargs)

    return jax.jit(program)


programs = shared(compiled)


def _run(
    definition: Definition,
    run: Backend,
    placement: Placement,
    dtype: Any,
    values: PyTree,
    inputs: Shards,
    kwargs: Shards | None,
) -> tuple[Shards, Shards, PyTree]:
    def replica(
        values: PyTree, replica_state: PyTree, index: jax.Array | None, args: tuple, named: dict
    ) -> Local:
        del replica_state
        if dtype is not None:
            values = definition.cast(values, dtype)
        outputs, changes, records = definition.recorded(values, index, _arguments(args), named)
        outputs = with_output_marks(outputs)
        return Local(WithRecords(outputs, records) if records else outputs, (), changes)

    def finish(
        index: jax.Array, values: PyTree, replica_state: PyTree, local: Local, again: Any
    ) -> tuple[PyTree, PyTree]:
        del values, again
        return from_replica_zero(local.changes, index), replica_state

    batch = (inputs.tree, {} if kwargs is None else kwargs.tree)
    done = _program.run(replica, finish, run, placement, values, batch, _kinds(inputs, kwargs))
    both = done.outputs if isinstance(done.outputs, WithRecords) else WithRecords(done.outputs, Records())
    n = len(jax.tree.leaves(both.outputs))
    shapes = done.shapes[:n], done.shapes[n:]
    outputs, records = (
        Shards(x, inputs.sizes, s, inputs.placement) for x, s in zip(both, shapes, strict=True)
    )
    return outputs, records, done.shared


def _kinds(inputs: Shards, kwargs: Shards | None) -> list[Kind | None]:
    leaves = inputs.shapes + (() if kwargs is None else kwargs.shapes)
    used = [tuple(shapes[i] for shapes in leaves) for i in range(len(inputs))]
    return used + [None] * (inputs.placement.N - len(inputs))
