"""Modules: an NNX module, a bound Linen module or a plain function, in one form.

The only file that knows Flax's insides. A `View` splits a module into a `definition`, which is part of the
program, and `values`, which are its arrays; running the definition gives outputs and the values
that changed.

What counts as a parameter is `nnx.Param` (Linen: the collections that are not mutable). Everything
else is what torch calls a buffer: it is the same on all replicas when they start, and what replica
0 makes of it comes back (torch-semantics 1.3 #39). Attributes that a forward rebinds are lost, as in
torch (#37), and so are changes to parameters.
"""

from __future__ import annotations

import copy
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from flax import errors as flax_errors
from flax import linen, nnx, traverse_util

from . import _devices
from ._placement import Placement
from ._tree import check_alive, is_array, is_real, is_staged
from ._typing import PyTree, Static
from .errors import LeafError, MisplacedError, UninitializedError

Module = Callable[..., Any]
Changes = dict[Any, PyTree]
Definition = Callable[[PyTree, jax.Array | None, tuple, dict], tuple[PyTree, Changes]]


class View(Protocol):
    """A module, split."""

    @property
    def definition(self) -> Definition:
        """Hashable. `definition(values, replica, args, kwargs)` runs the module on one replica and
        returns its outputs and the values that changed. `replica` is folded into every random
        stream, unless it is None."""

    def values(self, placement: Placement) -> PyTree:
        """The arrays, on every device of the placement."""

    def commit(self, changes: Changes) -> None:
        """Writes changed values back into the module."""


def view(module: Module) -> View:
    """The view of a module; for NNX, the one made before if the module has not changed since.

    Raises:
      UninitializedError: a Linen module without variables.
      TypeError: something that cannot be called, or a function that hides an NNX module.
    """
    if isinstance(module, nnx.Module):
        return _nnx_view(module)
    if isinstance(module, linen.Module):
        return _LinenView(module)
    return _FunctionView(module)


# ---------------------------------------------------------------------------------------------- NNX


class _NNXDefinition:
    def __init__(self, graphdef: Any, paths: Sequence[Any], kinds: Sequence[str]):
        self.graphdef, self.paths, self.kinds = Static(graphdef), tuple(paths), tuple(kinds)
        self._hash = hash((self.graphdef, self.paths, self.kinds))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _NNXDefinition)
            and self._hash == other._hash
            and self.kinds == other.kinds
            and self.paths == other.paths
            and self.graphdef == other.graphdef
        )

    def __call__(
        self, values: list, replica: jax.Array | None, args: tuple, kwargs: dict
    ) -> tuple[PyTree, Changes]:
        started = [
            fold(value, replica) if kind == "key" and replica is not None else value
            for value, kind in zip(values, self.kinds, strict=True)
        ]
        state = nnx.from_flat_state(zip(self.paths, started, strict=True))
        module = nnx.merge(self.graphdef.value, state)
        leaves = _leaves(module)
        outputs = module(*args, **kwargs)
        return outputs, {
            i: leaves[i].get_raw_value()
            for i, kind in enumerate(self.kinds)
            if kind in ("buffer", "key") and not _same(leaves[i].get_raw_value(), started[i])
        }


class _NNXView:
    def __init__(self, module: nnx.Module):
        graphdef, state = nnx.split(module)
        flat = list(nnx.to_flat_state(state))
        self.leaves = _leaves(module)
        self.names = ["module." + ".".join(map(str, path)) for path, _ in flat]
        self.definition = _NNXDefinition(
            graphdef, [path for path, _ in flat], [_kind(leaf) for leaf in self.leaves]
        )
        self._placed: list[Any] = []
        self._placement: Placement | None = None

    def values(self, placement: Placement) -> list:
        values = [leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf for leaf in self.leaves]
        check_alive(values, self.names, "DataParallel")
        if placement is self._placement and all(map(operator.is_, values, self._placed)):
            return values
        if is_staged() or any(isinstance(v, jax.core.Tracer) for v in jax.tree.leaves(values)):
            return values
        placed = spread(values, self.names, placement)
        self._remember(placed, placement)
        return placed

    def _remember(self, placed: list, placement: Placement) -> None:
        try:
            for leaf, value in zip(self.leaves, placed, strict=True):
                if isinstance(leaf, nnx.Variable):
                    leaf.set_raw_value(value)
        except flax_errors.TraceContextError:
            return  # inside a gradient with respect to something else; the next eager call stores them
        self._placed, self._placement = placed, placement

    def commit(self, changes: Changes) -> None:
        try:
            for i, value in changes.items():
                self.leaves[i].set_raw_value(value)
                if self._placed:
                    self._placed[i] = value
        except flax_errors.TraceContextError as error:
            error.add_note(
                f"jaxpar: {self.names[i]} comes back from replica 0 and the module was made outside of "
                "the function being traced; pass the module to that function as an argument (nnx.jit, "
                "nnx.grad), or call module.eval()."
            )
            raise


Snapshots = list[tuple[Any, Any]]
_views: weakref.WeakKeyDictionary[nnx.Module, tuple[Snapshots, _NNXView]] = weakref.WeakKeyDictionary()


def _nnx_view(module: nnx.Module) -> _NNXView:
    """nnx.split costs 40 us for each variable; seeing that nothing has changed costs half of one."""
    if module in _views:
        snapshots, found = _views[module]
        if _unchanged(snapshots):
            return found
    made = _NNXView(module)
    _views[module] = (_snapshots(module), made)
    return made


def _unchanged(snapshots: Snapshots) -> bool:
    try:
        return all(now == then for now, then in snapshots)
    except Exception:  # an attribute that is another one now, and whose == is no truth value
        return False


def _snapshots(module: nnx.Module) -> Snapshots:
    """Every attribute dict and container in a module, each with a copy of what is in it now.

    Dicts compare their values by identity first, so comparing costs no look into Variables. The
    dicts are kept, not the modules, so that the module can be collected.
    """
    found: Snapshots = []
    seen: set[int] = set()
    todo: list[Any] = [module]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        content = vars(node) if isinstance(node, nnx.Pytree) else node
        found.append((content, copy.copy(content)))
        children = content.values() if isinstance(content, dict) else content
        todo += [c for c in children if isinstance(c, nnx.Pytree) or type(c) in (list, tuple, dict)]
    return found


def _leaves(module: nnx.Module) -> list[Any]:
    """The module's own Variables (and bare arrays) in the order of its flat state."""
    return [leaf for _, leaf in nnx.to_flat_state(nnx.state(module))]


def _kind(leaf: Any) -> str:
    if not isinstance(leaf, nnx.Variable):
        return "array"
    if isinstance(leaf, nnx.Param):
        return "parameter"
    return "key" if isinstance(leaf, nnx.RngKey) else "buffer"


def _same(a: PyTree, b: PyTree) -> bool:
    if a is b:
        return True
    one, two = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(one) == len(two) and all(map(operator.is_, one, two))


# -------------------------------------------------------------------------------------------- Linen


class _LinenDefinition:
    def __init__(self, module: linen.Module, mutable: Any):
        self.module, self.mutable = Static(module), Static(mutable)

    def __hash__(self) -> int:
        return hash((self.module, self.mutable))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _LinenDefinition) and (self.module, self.mutable) == (
            other.module,
            other.mutable,
        )

    def __call__(
        self, values: dict, replica: jax.Array | None, args: tuple, kwargs: dict
    ) -> tuple[PyTree, Changes]:
        variables, rngs = values["variables"], values["rngs"]
        if replica is not None:
            rngs = {name: rng.replace(rng=fold(rng.rng, replica)) for name, rng in rngs.items()}
        outputs, updates = self.module.value.apply(
            variables, *args, rngs=rngs, mutable=self.mutable.value or [], **kwargs
        )
        before = traverse_util.flatten_dict(dict(variables))
        after = traverse_util.flatten_dict(dict(updates))
        return outputs, {path: x for path, x in after.items() if not _same(x, before.get(path))}


class _LinenView:
    """A bound Linen module: `module.bind(variables)`, or a submodule while its parent runs."""

    def __init__(self, module: linen.Module):
        if module.scope is None:
            raise UninitializedError(
                f"{type(module).__name__} has no variables. Bind them, module.bind(variables), or wrap it, "
                "jaxpar.DataParallel(module), and use .init and .apply."
            )
        self.scope = module.scope
        inner, variables = module.unbind()
        self._values = {
            "variables": variables,
            "rngs": {name: self._next_rng(name) for name in self.scope.rngs},
        }
        self.definition = _LinenDefinition(inner, self.scope.mutable)

    def _next_rng(self, name: str) -> Any:
        """The module's stream, and another one at its next call in the same apply (see commit)."""
        calls, stream = self.scope.rng_counters[name], self.scope.rngs[name]
        return stream.create(stream, calls) if calls else stream

    def values(self, placement: Placement) -> dict:
        leaves = jax.tree.leaves_with_path(self._values)
        names = ["".join(jax.tree_util.keystr((k,)) for k in path) for path, _ in leaves]
        arrays = [leaf for _, leaf in leaves]
        check_alive(arrays, names, "DataParallel")
        if is_staged() or any(isinstance(v, jax.core.Tracer) for v in arrays):
            return self._values
        return jax.tree.unflatten(jax.tree.structure(self._values), spread(arrays, names, placement))

    def commit(self, changes: Changes) -> None:
        for name in self.scope.rngs:
            self.scope.rng_counters[name] += 1
        for (collection, *path), value in changes.items():
            name, *rest = path
            if rest:
                value = _put(self.scope.get_variable(collection, name) or {}, rest, value)
            self.scope.put_variable(collection, name, value)


def _put(tree: Any, path: list[str], value: Any) -> dict:
    name, *rest = path
    return {**tree, name: _put(tree.get(name, {}), rest, value) if rest else value}


# ---------------------------------------------------------------------------------------- functions


class _FunctionDefinition:
    def __init__(self, function: Module):
        self.function = Static(function)

    def __hash__(self) -> int:
        return hash(self.function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FunctionDefinition) and self.function == other.function

    def __call__(
        self, values: tuple, replica: jax.Array | None, args: tuple, kwargs: dict
    ) -> tuple[PyTree, Changes]:
        del values, replica
        return self.function.value(*args, **kwargs), {}


class _FunctionView:
    """A function is a module without parameters."""

    def __init__(self, function: Module):
        if not callable(function):
            raise TypeError(f"{type(function).__name__} cannot be called; give a Flax module or a function.")
        hidden = _hidden_module(function)
        if hidden is not None:
            raise TypeError(
                f"{getattr(function, '__qualname__', function)!r} holds the NNX module "
                f"{type(hidden).__name__}; "
                "its arrays would be frozen into the compiled program. Pass the module itself (give it a "
                "__call__), so that jaxpar sees its variables."
            )
        self.definition = _FunctionDefinition(function)

    def values(self, placement: Placement) -> tuple:
        del placement
        return ()

    def commit(self, changes: Changes) -> None:
        del changes


def _hidden_module(function: Any) -> nnx.Module | None:
    held = [
        getattr(function, "__self__", None),
        *getattr(function, "args", ()),
        getattr(function, "func", None),
    ]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # a name that is not bound yet
            continue
    return next((h for h in held if isinstance(h, nnx.Module)), None)


# --------------------------------------------------------------------------------------- all of them


def fold(key: jax.Array, replica: jax.Array) -> jax.Array:
    """The stream of one replica. torch gives every device its own generator (torch-semantics 1.4 #57)."""
    typed = jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    batch = key.ndim if typed else key.ndim - 1
    fold_in = jax.random.fold_in
    for _ in range(batch):
        fold_in = jax.vmap(fold_in, in_axes=(0, None))
    return fold_in(key, replica)


def spread(values: list, names: Sequence[str], placement: Placement) -> list:
    """The same values, each on all devices of the placement.

    torch copies the parameters from device_ids[0] at every forward (torch-semantics 1.3 #34); here
    they stay where they are and this returns at once when they are there already.
    """
    for value, name in zip(values, names, strict=True):
        for leaf in jax.tree.leaves(value):
            check_place(leaf, name, placement)
    return jax.device_put(values, placement.replicated)


def check_place(leaf: Any, name: str, placement: Placement) -> None:
    """torch's rule that all parameters and buffers are on device_ids[0] (torch-semantics 1.2 #14)."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise UninitializedError(
            f"DataParallel: Attempted to use an uninitialized parameter: {name} is a shape "
            f"({leaf.dtype}{list(leaf.shape)}) without values. Build the module before it is called."
        )
    if not is_array(leaf) and not isinstance(leaf, (int, float, complex, np.generic)):
        raise LeafError(f"DataParallel: {name} holds a {type(leaf).__name__}, which no device can hold.")
    if not is_real(leaf) or not leaf.committed:
        return
    home = leaf.sharding.device_set
    # On several devices it is what a program left there, this one or one on other devices before.
    if home == {placement.devices[0]} or len(home) > 1:
        return
    where = ", ".join(sorted(_devices.name(d) for d in home))
    first = _devices.name(placement.devices[0])
    raise MisplacedError(
        f"module must have its parameters and buffers on device {first} (device_ids[0]) but found one of "
        f"them on device: {where}. It is {name}; move it with jax.device_put(..., jaxpar.device({first!r}))."
    )
