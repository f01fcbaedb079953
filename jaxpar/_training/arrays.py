"""arrays: what a step reads and writes, taken out of the user's objects before it and put back afterwards.

In a group of several processes, the user sees arrays on this process's devices only, and the program sees
them on all devices.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from .._parallel.modules import Changes, Definition
from .._parallel.modules.bundle import Bundle, BundleFunction, nets_of
from .._parallel.modules.function_view import AppliedView, with_arrays
from .._parallel.modules.linen_view import LinenView
from .._parallel.modules.nnx_view import NNXDefinition, NNXView, view_nnx
from .._parallel.placement import Placement
from .._tree import check_alive, is_array, shape_of, sharding_of
from .._typing import PyTree, Static, TreeDef
from .._upstream import address
from .function_state import is_trainable
from .world import ALONE, World


class Arrays(abc.ABC):
    """A module's arrays, as a step reads and writes them."""

    function: str = "value_and_grad"  # the function that the user calls
    groups: tuple[tuple[int, ...], ...] = ()  # for several networks, each one's positions in `parameters`
    definition: Definition  # the module without its arrays
    form: TreeDef  # the arrays' tree structure
    names: list[str]  # for errors
    sums: tuple[int, ...] = ()  # which of the arrays are sums over rows, as in metrics
    parameters: tuple[int, ...]  # which of the arrays get gradients
    world: World

    @property
    def numbers(self) -> dict[str, float]:
        """Hyperparameters set in the optimizer's state, such as its rate, by name. Waits for no device."""
        return {}

    @property
    def definitions(self) -> Any:
        """The key of a compiled program: a change requires a new one."""
        return self.definition

    def loss_of(self, function: Callable[..., Any]) -> Static:
        return Static(function)

    @abc.abstractmethod
    def read(self) -> list: ...

    def take(self) -> tuple[list, dict[str, Any]]:
        """Return the module's arrays and the step's extra state on all devices."""
        return self.world.shared(self.read()), {}

    def program_extra(self, extra: dict[str, Any], keep: bool) -> dict[str, Any]:
        """Return the part of the extra state that a program takes. `keep`: no update follows."""
        return extra

    def replace(self, values: list, changes: Changes) -> list:
        """Commit changes between `take` and the program; return the program's values with the changes."""
        raise NotImplementedError("only a module that holds its arrays receives values in mid-step")

    def shapes(self, keep: bool) -> tuple[list, dict[str, Any]]:
        """Return what `take` would return, as shapes with shardings, of arrays anywhere or of shapes."""
        return self._shapes(self.read()), {}

    def _shapes(self, tree: PyTree) -> PyTree:
        local = self.world.local
        return self.world.shared(jax.tree.map(lambda x: shape_of(x, local.for_value(x)), tree))

    def put(self, after: list, extra: dict[str, Any], changes: Changes) -> PyTree:
        """Put the results back, or return those that no object holds."""
        return self.commit(changes)

    @abc.abstractmethod
    def commit(self, changes: Changes) -> PyTree:
        """Put changed values of the module back, or return them."""

    @abc.abstractmethod
    def gradients(self, flat: list) -> PyTree:
        """Return the list of gradients in the structure that the user expects."""


class ObjectArrays:
    """The arrays of one NNX object, a module or an optimizer; `placement=None` leaves them where they are."""

    def __init__(
        self,
        thing: nnx.Module,
        placement: Placement | None,
        world: World = ALONE,
        function: str = "train_step",
    ):
        self.thing, self.placement, self.world, self.function = thing, placement, world, function
        self.clean = False
        self.view: NNXView = view_nnx(thing)
        self._object_values: list[Any] = []  # the object's values after the last write
        self._written: list[Any] = []  # the same on all devices, as the program takes them

    def read(self) -> list:
        self.view = view = view_nnx(self.thing)
        if self.placement is not None:
            values = view.values(self.placement, self.function)
        else:
            values = view.current_values()
            check_alive(values, view.names, self.function)
        self.clean = self._is_written(values)
        return values

    def _is_written(self, values: list) -> bool:
        # By identity: an array that the user has replaced is a new object, and equality would wait.
        return len(self._object_values) == len(values) and all(map(operator.is_, self._object_values, values))

    def current_values(self) -> list:
        self.view = view_nnx(self.thing)
        return self.view.current_values()

    def for_program(self, values: list) -> list:
        """Return the arrays that were read, on the devices of all processes."""
        return self._written if self.clean else self.world.shared(values)

    def shaped(self, values: list, shared: Callable[[list], list]) -> list:
        return shared(values)

    def write(self, values: list) -> None:
        local = self.world.local_shared(values)
        self._object_values = self.view.put(local)
        self._written = values


class ModuleArrays(ObjectArrays, Arrays):
    """The arrays of an NNX module; `wrt` selects the trained ones, and `net` gives gradients their form."""

    def __init__(
        self,
        net: nnx.Module,
        module: nnx.Module,
        wrt: nnx.filterlib.Filter,
        placement: Placement | None,
        world: World,
        structures: dict[Any, Any],
        function: str = "train_step",
    ):
        super().__init__(module, placement, world, function)
        self._net, self._wrt, self._structures = net, Static(wrt), structures

    @property
    def definition(self) -> NNXDefinition:  # type: ignore[override]
        return self.view.definition

    @property
    def form(self) -> TreeDef:
        return jax.tree.structure(self.view.current_values())

    @property
    def names(self) -> list[str]:  # type: ignore[override]
        return self.view.names

    @property
    def parameters(self) -> tuple[int, ...]:  # type: ignore[override]
        return self._structure()[0]

    def take(self) -> tuple[list, dict[str, Any]]:
        return self.for_program(self.read()), {}

    def replace(self, values: list, changes: Changes) -> list:
        self.commit(changes)
        # A bare array stays in the module, and so does the program's copy.
        put = self.world.shared({i: x for i, x in changes.items() if self.view.are_variables[i]})
        return [put.get(i, x) for i, x in enumerate(values)]

    def shapes(self, keep: bool) -> tuple[list, dict[str, Any]]:
        return self._shapes(self.current_values()), {}

    def _shapes(self, tree: PyTree) -> PyTree:
        if self.world.N:
            return super()._shapes(tree)
        sharding = sharding_of if self.placement is None else self.placement.for_value
        return jax.tree.map(lambda x: shape_of(x, sharding(x)), tree)

    def commit(self, changes: Changes) -> None:
        self.view.commit(changes)

    def gradients(self, flat: list) -> PyTree:
        _, form, order = self._structure()
        return jax.tree.unflatten(form, [flat[i] for i in order])

    def _structure(self) -> tuple[tuple[int, ...], TreeDef, list[int]]:
        key = self.definition, self._wrt
        if key not in self._structures:
            root = 0 if self._net is self.thing else 1
            ordered = order_of_gradients(self._net, self._wrt.value, self.view, root)
            self._structures[key] = self.view.parameters(self._wrt.value), *ordered
        return self._structures[key]


def order_of_gradients(net: nnx.Module, wrt: Any, split: NNXView, root: int) -> tuple[Any, list[int]]:
    """Return the structure of `nnx.state(net, wrt)`, and the index of the gradient at each of its leaves."""
    paths = [split.definition.paths[i] for i in split.parameters(wrt)]
    state = nnx.from_flat_state(
        (path, leaf)
        for path, leaf in nnx.to_flat_state(nnx.state(net, wrt, graph=True))
        if path[root:] in paths
    )
    form: TreeDef = jax.tree.structure(state)
    # Flax orders a flat state differently from a tree's leaves, so the leaves are numbered to match them.
    numbered = nnx.to_flat_state(form.unflatten(range(form.num_leaves)))
    at = {variable.get_raw_value(): path[root:] for path, variable in numbered}
    return form, [paths.index(at[i]) for i in range(form.num_leaves)]


class LinenArrays(Arrays):
    """The arrays of a Linen module; gradients have the structure of `variables["params"]`."""

    def __init__(self, module: linen.Module, variables: PyTree, rngs: Any, mutable: Any, world: World):
        self._view, self.world = LinenView(module.bind(variables, rngs=rngs, mutable=mutable)), world
        self.definition = self._view.definition
        self._tree = self._view.values(world.local, "DistributedDataParallel")
        paths, self.form = jax.tree.flatten_with_path(self._tree)
        self.names = [jax.tree_util.keystr(path[1:]) for path, _ in paths]
        self.parameters = tuple(
            i for i, (path, _) in enumerate(paths) if [k.key for k in path[:2]] == ["variables", "params"]
        )

    def read(self) -> list:
        return jax.tree.leaves(self._tree)

    def commit(self, changes: Changes) -> PyTree:
        self._view.commit(changes)
        return self._view.scope.mutable_variables()

    def gradients(self, flat: list) -> PyTree:
        return jax.tree.unflatten(jax.tree.structure(self._tree["variables"]["params"]), flat)


class FunctionArrays(Arrays):
    """The parameters of `function(parameters, *inputs)`, or of a callable pytree where the function is None.

    Gradients have their structure, with None for what is not trained.
    """

    def __init__(self, function: Callable[..., Any] | None, parameters: PyTree, world: World):
        view, self.world = AppliedView(function, parameters), world
        self.definition, self.names = view.definition, view.names
        self._values = view.values(world.local, "DistributedDataParallel")
        self.form = jax.tree.structure(self._values)
        self.parameters = tuple(i for i, x in enumerate(self._values) if is_trainable(x))
        self._tree = parameters if function is None else with_arrays(parameters)

    def read(self) -> list:
        return self._values

    def commit(self, changes: Changes) -> None:
        del changes  # a function has no buffers

    def gradients(self, flat: list) -> PyTree:
        remaining = iter(flat)
        return jax.tree.map(lambda x: next(remaining) if is_trainable(x) else None, self._tree)


def take_distinct(*objects: ObjectArrays) -> list[list]:
    """Return the arrays of each object, no buffer twice: donating one twice kills the process by a signal."""
    read = [arrays.read() for arrays in objects]
    # An NNX object may hold one array twice, and a user may have put one into two objects. Arrays that a
    # program returned have separate buffers, so those written last need no check.
    if not all(arrays.clean for arrays in objects):
        buffers: set[Any] = set()
        read = [_distinct(values, arrays.view, buffers) for values, arrays in zip(read, objects, strict=True)]
    return [arrays.for_program(values) for values, arrays in zip(read, objects, strict=True)]


def _distinct(values: list, view: NNXView, buffers: set[Any]) -> list:
    values = list(values)
    for i, (x, is_variable) in enumerate(zip(values, view.are_variables, strict=True)):
        if not is_array(x):  # optax.MaskedNode, an empty tree
            continue
        if not isinstance(x, jax.Array):  # nnx.update puts the host's arrays into a module as they are
            values[i] = x = jnp.array(x)
        # An array that is no Variable stays in the object, so the program gets a copy that it may consume.
        if not is_variable or _buffer(x) in buffers:
            values[i] = x = jnp.copy(x)
        buffers.add(_buffer(x))
    return values


def _buffer(x: jax.Array) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return id(x)
    return address(x.addressable_data(0))


MOST = 4  # cached bundles, which hold the objects of a call


class CallArrays(ModuleArrays):
    """The arrays of `module` and of the objects among a call's arguments; `net` may be its wrapper."""

    def __init__(
        self,
        net: nnx.Module,
        module: nnx.Module,
        placement: Placement | None,
        world: World,
        function: str = "train_step",
    ):
        super().__init__(net, module, nnx.Nothing(), placement, world, {}, function)
        self.net, self._alone = net, (net, module)
        self.objects: tuple[Any, ...] = ()
        self._bundles: dict[tuple[int, ...], tuple[tuple[Any, ...], Bundle, Bundle]] = {}

    def loss_of(self, function: Callable[..., Any]) -> Static:
        return Static(BundleFunction(function) if isinstance(self.thing, Bundle) else function)

    def bring(self, objects: tuple[Any, ...]) -> None:
        if len(objects) == len(self.objects) and all(map(operator.is_, objects, self.objects)):
            return
        self.objects = objects
        self.net, self.thing = self._bundled(objects) if objects else self._alone
        self.read()

    def _bundled(self, objects: tuple[Any, ...]) -> tuple[Bundle, Bundle]:
        key = tuple(map(id, objects))  # of objects that the entry keeps alive
        if key not in self._bundles:
            if len(self._bundles) == MOST:
                del self._bundles[next(iter(self._bundles))]
            bases = (nets_of(x) if isinstance(x, Bundle) else x for x in self._alone)
            net, module = (Bundle(base, objects) for base in bases)
            self._bundles[key] = objects, net, module
        return self._bundles[key][1:]
