"""FlaxNet: a Flax model as pure functions over named leaves, the same for NNX and Linen.

`parameters` and `extra_state` are the model's own pytrees; models are compared as flat dicts by path.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx, traverse_util
from flax.errors import InvalidRngError

import jaxpar

from ..._typing import PyTree
from ...errors import MaskError
from .._keras.model import KerasModel
from .._weights.pytree_model import PytreeModel
from .._weights.tree import FlaxModule, Variables
from .call_arguments import Call
from .flax_calls import Handler, watch
from .flax_dropout import Asked, Injection, is_active_dropout
from .flax_mode import DROPOUT
from .step_data import Task

Arrays = dict[str, jax.Array]
Trees = tuple[PyTree, PyTree]


class FlaxNet(abc.ABC):
    """A copy of a model in one element type; `notes` has a sentence for each change that this required."""

    parameters: PyTree
    extra_state: PyTree
    is_pytree = False  # a function or a pytree, whose layers' library tells only by calls which are layers

    def __init__(self, task: Task):
        self.task = task
        self.notes: list[str] = []

    def apply(
        self,
        parameters: PyTree,
        extra_state: PyTree,
        call: Call,
        masks: tuple,
        handler: Handler | None = None,
    ) -> Trees:
        injection = Injection(masks, handler, not self.task.channels_first)
        after = self._call(parameters, extra_state, call, injection)
        injection.finish()
        return after

    def masks_asked(
        self, parameters: PyTree, extra_state: PyTree, call: Call
    ) -> list[tuple[tuple[int, ...], Any]]:
        """Return the shape of each mask that a call takes, in torch's layout, and its probability."""
        handler = Asked(not self.task.channels_first)

        def run(parameters: PyTree, extra_state: PyTree, call: Call) -> None:
            self._call(parameters, extra_state, call, handler)

        jax.eval_shape(run, parameters, extra_state, call)
        return handler.draws

    def _watching(self, root: FlaxModule, handler: Handler) -> AbstractContextManager:
        # Layers inside a DataParallel cannot be intercepted; dropout is refused there.
        return watch(root, handler) if self.task.replicas == 1 else nullcontext()

    @abc.abstractmethod
    def _call(self, parameters: PyTree, extra_state: PyTree, call: Call, handler: Handler) -> Trees:
        """Return the outputs and the updated `extra_state`."""

    @abc.abstractmethod
    def draws(self, extra_state: PyTree, call: Call) -> bool:
        """Return whether the model has random streams to draw from."""

    @abc.abstractmethod
    def reseeded(self, extra_state: PyTree, call: Call) -> tuple[PyTree, Call]:
        """Return both arguments with different random keys."""

    @abc.abstractmethod
    def named_parameters(self, tree: PyTree) -> Arrays:
        """Return the leaves of a tree with the structure of `parameters`, such as gradients, by path."""

    @abc.abstractmethod
    def named_extra_state(self, tree: PyTree) -> Arrays:
        """Return the leaves of a tree like `extra_state` by path, except random keys and constants."""

    def named_constants(self) -> Arrays:
        return {}

    @abc.abstractmethod
    def filled(self, parameters: PyTree, extra_state: PyTree, named: Mapping[str, np.ndarray]) -> Trees:
        """Return both trees with the leaves in `named` replaced, in the trees' own element types."""


def flax_net(module: FlaxModule, variables: Variables | None, task: Task, dtype: str | None) -> FlaxNet:
    in_dtype = None if dtype is None else jnp.dtype(dtype)
    if isinstance(module, nnx.Module):
        return _NNXNet(module, task, in_dtype)
    if isinstance(module, linen.Module):
        return _LinenNet(module, variables, task, in_dtype)
    raise TypeError(
        f"parity.compare: the Flax side is an nnx.Module or a linen.Module, not {type(module).__name__}."
    )


def cast(tree: PyTree, dtype: np.dtype) -> PyTree:
    def leaf(x: jax.Array) -> jax.Array:
        leaf_dtype = jnp.result_type(x)
        if jnp.issubdtype(leaf_dtype, jnp.complexfloating):
            return x.astype(jnp.promote_types(dtype, jnp.complex64))
        if not jnp.issubdtype(leaf_dtype, jnp.floating):
            return x
        # In NumPy, because JAX compiles a program for each shape. A committed array keeps its devices.
        return x.astype(dtype) if getattr(x, "committed", False) else jnp.asarray(np.asarray(x).astype(dtype))

    return jax.tree.map(leaf, tree)


class _NNXNet(FlaxNet):
    def __init__(self, module: nnx.Module, task: Task, dtype: np.dtype | None):
        super().__init__(task)
        module = nnx.clone(module, graph=True)  # the user's own module keeps its mode, types and statistics
        is_keras, self.is_pytree = isinstance(module, KerasModel), isinstance(module, PytreeModel)
        if is_keras or not task.own_modes:
            module.train() if task.training else module.eval()
        if dtype is not None:
            self.notes += module._compute_in(dtype) if is_keras else self._set_dtype(module, dtype)
            nnx.update(module, cast(nnx.state(module, nnx.Not(nnx.RngState), graph=True), dtype))
        self.prefix = 0
        if task.replicas > 1:
            _refuse_dropout(module)
            module, self.prefix = jaxpar.DataParallel(module, range(task.replicas)), 1
        self.definition, self.parameters, self.extra_state = nnx.split(module, nnx.Param, ..., graph=True)

    def _set_dtype(self, module: nnx.Module, dtype: np.dtype) -> Iterator[str]:
        """An explicit dtype takes precedence over the weights' type."""
        for path, layer in nnx.iter_modules(module, graph=True):
            computed = isinstance(getattr(type(layer), "dtype", None), property)
            fixed = None if computed else getattr(layer, "dtype", None)
            if fixed is not None and jnp.issubdtype(fixed, jnp.floating) and fixed != dtype:
                layer.dtype = dtype
                yield f"{'.'.join(map(str, path))}: dtype={jnp.dtype(fixed)} was set to {dtype}"

    def _call(self, parameters: PyTree, extra_state: PyTree, call: Call, handler: Handler) -> Trees:
        net: Callable[..., PyTree] = nnx.merge(self.definition, parameters, extra_state, copy=True)
        with self._watching(net, handler):
            # Drawing advances a stream's counter, so streams among the arguments are cloned first.
            call = call.map_objects(lambda x: nnx.clone(x, graph=True) if isinstance(x, nnx.Rngs) else x)
            outputs = net(*call.args, **call.kwargs)
        after = nnx.to_flat_state(nnx.state(net, nnx.Not(nnx.Param), graph=True))
        model_paths = {path for path, _ in nnx.to_flat_state(extra_state)}  # drops what `sow` added
        return outputs, nnx.from_flat_state([(path, x) for path, x in after if path in model_paths])

    def draws(self, extra_state: PyTree, call: Call) -> bool:
        has_keys = any(_is_kind(leaf, nnx.RngKey) for _, leaf in nnx.to_flat_state(extra_state))
        return has_keys or _has_streams((call.args, call.kwargs))

    def reseeded(self, extra_state: PyTree, call: Call) -> tuple[PyTree, Call]:
        def leaf(x: Any) -> Any:
            return x.replace(_other_key(x[...])) if _is_kind(x, nnx.RngKey) else x

        def reseeded(tree: PyTree) -> PyTree:
            return nnx.from_flat_state([(path, leaf(x)) for path, x in nnx.to_flat_state(tree)])

        def other(x: Any) -> Any:
            if not isinstance(x, nnx.Rngs):
                return x
            definition, state = nnx.split(x, graph=True)
            return nnx.merge(definition, reseeded(state))

        return reseeded(extra_state), call.map_objects(other)

    def named_parameters(self, tree: PyTree) -> Arrays:
        return {
            self._name(path): variable[...]
            for path, variable in nnx.to_flat_state(tree)
            if _is_kind(variable, nnx.Variable) and not _is_kind(variable, nnx.RngState)
        }

    named_extra_state = named_parameters

    def named_constants(self) -> Arrays:
        # Arrays outside a Variable correspond to plain tensor attributes of a torch module.
        flat = nnx.to_flat_state(self.extra_state)
        return {self._name(path): leaf for path, leaf in flat if not isinstance(leaf, nnx.Variable)}

    def filled(self, parameters: PyTree, extra_state: PyTree, named: Mapping[str, np.ndarray]) -> Trees:
        def leaf(path: tuple, variable: Any) -> Any:
            value = named.get(self._name(path))
            if value is None:
                return variable
            if not isinstance(variable, nnx.Variable):
                return value.astype(variable.dtype)
            old = variable[...]
            # An uncommitted array must stay uncommitted: a sharding is part of jit's cache key.
            where = old.sharding if getattr(old, "committed", False) else None  # NumPy arrays have no device
            return variable.replace(jax.device_put(value.astype(old.dtype), where))

        def filled(tree: PyTree) -> PyTree:
            return nnx.from_flat_state([(path, leaf(path, x)) for path, x in nnx.to_flat_state(tree)])

        return filled(parameters), filled(extra_state)

    def _name(self, path: tuple) -> str:
        return ".".join(map(str, path[self.prefix :]))


def _is_kind(leaf: Any, kind: type[nnx.Variable]) -> bool:
    return isinstance(leaf, nnx.Variable) and issubclass(leaf.type, kind)


def _has_streams(tree: PyTree) -> bool:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, nnx.Rngs))
    return any(isinstance(x, nnx.Rngs) for x in leaves)


def _other_key(key: jax.Array) -> jax.Array:
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key ^ 1
    return jax.random.wrap_key_data(jax.random.key_data(key) ^ 1, impl=jax.random.key_impl(key))


def _refuse_dropout(module: nnx.Module) -> None:
    """In a DataParallel, each replica draws its own masks."""
    for path, layer in nnx.iter_modules(module, graph=True):
        if is_active_dropout(layer, {}):
            raise MaskError(
                f"parity.compare: {'.'.join(map(str, path))} would drop in every replica. Compare replicas "
                "with rate 0 or in evaluation mode, and dropout with replicas=1."
            )


def _mutable(requested: Any, of_mode: list[str]) -> Any:
    if requested is True or isinstance(requested, linen.DenyList):
        return requested
    more = [requested] if isinstance(requested, str) else requested or []
    return [*of_mode, *(name for name in more if name not in of_mode)]


def _known(before: PyTree, after: PyTree) -> PyTree:
    """Drop entries that `sow` or a cache added during the call; they are not state of the model."""
    if not isinstance(before, Mapping):
        return after
    return {name: _known(child, after[name]) if name in after else child for name, child in before.items()}


class _LinenNet(FlaxNet):
    def __init__(self, module: linen.Module, variables: Variables | None, task: Task, dtype: np.dtype | None):
        super().__init__(task)
        if variables is None:
            raise TypeError(
                "parity.compare: a Linen module has no variables of its own; pass variables=..., or "
                "weights='torch'."
            )
        if dtype is not None and getattr(module, "dtype", None) not in (None, dtype):
            self.notes.append(f"dtype={jnp.dtype(module.dtype)} of the module was set to {dtype}")
            module = module.clone(dtype=dtype)
        self.module = module
        self.net = jaxpar.DataParallel(module, range(task.replicas)) if task.replicas > 1 else module
        # Boxes of partitioning metadata have no counterpart in torch.
        bare = linen.meta.unbox(dict(variables))
        self.extra_state: dict[str, PyTree] = bare if dtype is None else cast(bare, dtype)
        self.parameters = self.extra_state.pop("params", {})

    def _call(self, parameters: PyTree, extra_state: PyTree, call: Call, handler: Handler) -> Trees:
        kwargs = dict(call.kwargs)
        # Nothing is mutable in evaluation, so that Flax raises if the module writes to a collection.
        mutable = _mutable(kwargs.pop("mutable", False), list(extra_state) if self.task.training else [])
        try:
            variables = {"params": parameters, **extra_state}
            outputs, changed = self._apply(variables, handler, call.args, {**kwargs, "mutable": mutable})
        except InvalidRngError as error:
            raise MaskError(
                "parity.compare: the Linen module draws random numbers from a stream that it was not given, "
                "and torch's masks reach Dropout layers only. Compare with training=False, set that rate to "
                f"0, or give flax_kwargs={{'rngs': {{...}}}}. Flax says: {error}"
            ) from error
        return outputs, {name: _known(tree, changed.get(name, tree)) for name, tree in extra_state.items()}

    def _apply(self, variables: PyTree, handler: Handler, args: tuple, kwargs: dict[str, Any]) -> Trees:
        if self.net is self.module:
            with self._watching(self.module, handler):
                return self.net.apply(variables, *args, **kwargs)
        if "method" in kwargs:
            raise ValueError(
                "parity.compare: flax_kwargs has method=..., and in DataParallel a module is called by its "
                "__call__. Give it that method as its __call__, or compare with replicas=1."
            )
        # The wrapper holds the module as a submodule, one level deeper.
        nested = {name: {"module": tree} for name, tree in variables.items() if tree}
        outputs, changed = self.net.apply(nested, *args, **kwargs)
        return outputs, {name: tree["module"] for name, tree in changed.items() if "module" in tree}

    def draws(self, extra_state: PyTree, call: Call) -> bool:
        return DROPOUT in call.arrays

    def reseeded(self, extra_state: PyTree, call: Call) -> tuple[PyTree, Call]:
        return extra_state, call.with_arrays({DROPOUT: call.arrays[DROPOUT] ^ 1})

    def named_parameters(self, tree: PyTree) -> Arrays:
        return {".".join(path): x for path, x in traverse_util.flatten_dict(tree).items()}

    def named_extra_state(self, tree: PyTree) -> Arrays:
        # Paths are unique without the collection's name; `LinenTree` checks it.
        return {".".join(path[1:]): x for path, x in traverse_util.flatten_dict(tree).items()}

    def filled(self, parameters: PyTree, extra_state: PyTree, named: Mapping[str, np.ndarray]) -> Trees:
        def fill(tree: PyTree, skip: int) -> PyTree:
            flat = traverse_util.flatten_dict(tree)
            return traverse_util.unflatten_dict(
                {path: jnp.asarray(named.get(".".join(path[skip:]), x), x.dtype) for path, x in flat.items()}
            )

        return fill(parameters, 0), fill(extra_state, 1)
