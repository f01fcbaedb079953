"""arrays: what a step reads and writes, taken out of the user's objects before it and put back after it.

torch's parameters are mutated in place. A compiled program takes arrays and returns others, so something has
to carry them: out of an NNX object and back into it, or, for Linen and for plain functions, out of the
arguments and into the results. An NNX object is matched with its list of arrays once; a step then costs one
look at each.

In a group of several processes the arrays that the user sees lie on this process's devices only, and the
program's on all of them. Both are kept, so that only arrays that somebody has replaced are put together
again.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx
from jax.sharding import Sharding

from .._parallel.modules import Changes, Definition
from .._parallel.modules.function_view import Applied, AppliedView
from .._parallel.modules.linen_view import LinenView
from .._parallel.modules.nnx_view import NNXDefinition, NNXView, view_nnx
from .._parallel.placement import Placement
from .._tree import check_alive, is_array, is_committed, shape_of
from .._typing import PyTree, Static, TreeDef
from .._upstream import address
from .world import ALONE, World


class Arrays(abc.ABC):
    """What a step reads and writes: a module's arrays, and what belongs to them.

    Attributes:
      definition: the module without its arrays; form: the structure that they have.
      names: what each array is called in errors.
      parameters: which of them get gradients.
      function: what the user calls.
      groups: of several networks, which of the parameters are each one's, by their place among these.
    """

    function: str = "value_and_grad"
    groups: tuple[tuple[int, ...], ...] = ()
    definition: Definition
    form: TreeDef
    names: list[str]
    parameters: tuple[int, ...]
    world: World

    @property
    def numbers(self) -> dict[str, float]:
        """What was set in the optimizer's state, by name: its rate. Waits for no device."""
        return {}

    @property
    def definitions(self) -> Any:
        """Of everything that a program is made for; another one needs another program."""
        return self.definition

    def loss_of(self, function: Callable[..., Any]) -> Static:
        """What a program calls with the module, in the place of a user's function."""
        return Static(function)

    @abc.abstractmethod
    def read(self) -> list:
        """The module's arrays on this process's devices."""

    def take(self, keep: bool) -> tuple[list, dict[str, Any]]:
        """The module's arrays and the state beside it, as a program wants them. `keep`: no update follows."""
        return self.world.shared(self.read()), {}

    def shapes(self, keep: bool) -> tuple[list, dict[str, Any]]:
        """What `take` would give, as shapes with shardings. Arrays may be anywhere, or be shapes."""
        return self._shapes(self.read()), {}

    def _shapes(self, tree: PyTree) -> PyTree:
        everywhere = self.world.everywhere
        return jax.tree.map(lambda x: shape_of(x, everywhere.replicated), tree)

    def put(self, after: list, extra: dict[str, Any], changes: Changes) -> PyTree:
        """Puts the results back, or returns those that nothing holds."""
        return self.commit(changes)

    @abc.abstractmethod
    def commit(self, changes: Changes) -> PyTree:
        """Puts changed values of the module back, or returns them."""

    @abc.abstractmethod
    def gradients(self, flat: list) -> PyTree:
        """The list of gradients in the form that the user knows."""


class ObjectArrays:
    """The arrays of one NNX object, a module or an optimizer.

    Args:
      placement: where they belong; None leaves them where they are.
      function: what raises, for errors.

    Attributes:
      clean: whether the arrays that were read last are those that were written last.
    """

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
        self._object_values: list[Any] = []  # what the object holds since the last write
        self._written: list[Any] = []  # the same as the program knows it

    def read(self) -> list:
        """The arrays on this process's devices."""
        self.view = view = view_nnx(self.thing)
        if self.placement is not None:
            values = view.values(self.placement, self.function)
        else:
            values = view.current_values()
            check_alive(values, view.names, self.function)
        self.clean = len(self._object_values) == len(values) and all(
            map(operator.is_, self._object_values, values)
        )
        return values

    def current_values(self) -> list:
        """What the object holds now, wherever it is."""
        self.view = view_nnx(self.thing)
        return self.view.current_values()

    def for_program(self, values: list) -> list:
        """What was read, on the devices of all processes."""
        return self._written if self.clean else self.world.shared(values)

    def write(self, values: list) -> None:
        """All of a program's results at once, into the object."""
        local = self.world.local_shared(values)
        self.view.put(local)
        # An array that is no Variable cannot be put back, so the object keeps its own.
        triples = zip(self.view.leaves, self.view.are_variables, local, strict=True)
        self._object_values = [x if is_variable else leaf for leaf, is_variable, x in triples]
        self._written = values


class ModuleArrays(ObjectArrays, Arrays):
    """Those of an NNX module of which `wrt` says what is trained.

    Args:
      net: the object whose state gives gradients their structure; `module` is it, or its attribute `module`.
      known: a cache of that structure: finding it walks through the whole module.
    """

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
        """The module as it was when its arrays were read."""
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

    def take(self, keep: bool) -> tuple[list, dict[str, Any]]:
        return self.for_program(self.read()), {}

    def shapes(self, keep: bool) -> tuple[list, dict[str, Any]]:
        return self._shapes(self.current_values()), {}

    def _shapes(self, tree: PyTree) -> PyTree:
        if self.world.N:
            return super()._shapes(tree)
        return jax.tree.map(lambda x: shape_of(x, self._where(x)), tree)

    def _where(self, x: Any) -> Sharding | None:
        """Where an array of one process goes; None if that is nobody's choice."""
        if self.placement is not None:
            return self.placement.replicated
        return x.sharding if isinstance(x, jax.ShapeDtypeStruct) or is_committed(x) else None

    def commit(self, changes: Changes) -> None:
        self.view.commit(changes)

    def gradients(self, flat: list) -> PyTree:
        """The list of gradients as `nnx.state(net, wrt)` has them."""
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
    """The structure of `nnx.state(net, wrt)`, and which of the gradients stands where in it.

    `split` is the view of `net`, or of a module in it that is `root` names down.
    """
    paths = [split.definition.paths[i] for i in split.parameters(wrt)]
    state = nnx.from_flat_state(
        (path, leaf)
        for path, leaf in nnx.to_flat_state(nnx.state(net, wrt, graph=True))
        if path[root:] in paths
    )
    form: TreeDef = jax.tree.structure(state)
    # Flax's order of a flat state is not that of a tree's leaves, so places are found by numbering these.
    numbered = nnx.to_flat_state(form.unflatten(range(form.num_leaves)))
    at = {variable.get_raw_value(): path[root:] for path, variable in numbered}
    return form, [paths.index(at[i]) for i in range(form.num_leaves)]


class LinenArrays(Arrays):
    """Those of a Linen module, which its user holds; gradients are a tree like `variables["params"]`."""

    def __init__(self, module: linen.Module, variables: PyTree, rngs: Any, mutable: Any, world: World):
        self._view, self.world = LinenView(module.bind(variables, rngs=rngs, mutable=mutable)), world
        self.definition = self._view.definition
        self._tree = self._view.values(world.local)
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
    """The parameters of `function(parameters, *inputs)`; gradients have their structure."""

    def __init__(self, function: Callable[..., Any], parameters: PyTree, world: World):
        view, self.world = AppliedView(Applied(function, parameters)), world
        self.definition = view.definition
        self._tree = view.values(world.local)
        paths, self.form = jax.tree.flatten_with_path(self._tree)
        self.names = ["parameters" + jax.tree_util.keystr(path) for path, _ in paths]
        self.parameters = tuple(range(len(paths)))

    def read(self) -> list:
        return jax.tree.leaves(self._tree)

    def commit(self, changes: Changes) -> None:
        del changes  # a function has nothing that it could change

    def gradients(self, flat: list) -> PyTree:
        return jax.tree.unflatten(self.form, flat)


def take_distinct(*objects: ObjectArrays) -> list[list]:
    """The arrays of each, no buffer twice: donating one twice ends the process with a signal.

    An NNX object may hold one array in two places, and a user may have put one into two objects. Arrays that
    a program returned lie in buffers of their own, so nothing is looked for where all are those that were
    written.
    """
    read = [arrays.read() for arrays in objects]
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
