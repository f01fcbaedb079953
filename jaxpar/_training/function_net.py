"""function_net: a function with its parameters, or a callable pytree, as an NNX module that a step trains."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
from flax import linen, nnx

from .._arguments import name_call
from .._parallel.data_parallel import DataParallel
from .._parallel.modules.function_view import function_of, is_callable_pytree, is_transform, with_arrays
from .._tree import combine, separate
from .._typing import PyTree, Static
from .._upstream import jaxpr_as_fun
from .._upstream.mesh_context import context_mesh, without_mesh
from ..errors import ParametersError
from .distributed_data_parallel import DistributedDataParallel
from .function_state import FunctionState, check_state, is_data, is_trainable, is_transformation
from .state_optimizer import PARAMS, StateOptimizer, TreeFields, is_train_state

BUFFERS = "buffers"


class Carried(nnx.Variable):
    """An array that is not trained, and that no forward changes."""


class FunctionNet(nnx.Module):
    """A function with its parameters and buffers; `function` is None if the parameters are what is called."""

    def __init__(self, function: Callable[..., Any] | None, params: PyTree, buffers: PyTree = None):
        self.function = Static(function)
        self.deterministic = False  # `nnx.Module.eval` sets it
        self.fields = TreeFields(self, _variables(function, params, buffers), _kind)
        self.has_buffers = buffers is not None

    @property
    def variables(self) -> dict[str, PyTree]:
        return self.fields.read(self)

    def fits(self, variables: dict[str, PyTree]) -> bool:
        return self.fields.fits(_variables(self.function.value, **variables), _kind)

    def take(self, variables: dict[str, PyTree]) -> None:
        self.fields.write(self, _variables(self.function.value, **variables))

    @property
    def module(self) -> PyTree:
        """The callable pytree, in evaluation mode after `eval()`."""
        params = self.variables[PARAMS]
        return _inference(params) if self.deterministic else params

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        variables, function = self.variables, self.function.value
        if function is None:
            return self.module(*args, **kwargs)
        if not self.has_buffers:
            return function(variables[PARAMS], *args, **kwargs)
        result = function(variables[PARAMS], variables[BUFFERS], *args, **kwargs)
        outputs, buffers = pair_of(result, "the function", "(outputs, buffers)")
        self.keep(buffers)
        return outputs

    def keep(self, buffers: PyTree) -> None:
        current = self.variables[BUFFERS]
        new: Any = jax.tree.structure(buffers)
        if new != jax.tree.structure(current):
            raise ValueError(
                f"train_step: the new buffers are {jax.tree.structure(buffers)}, and those of the state are "
                f"{jax.tree.structure(current)}."
            )
        self.fields.write(self, {BUFFERS: buffers})


def _variables(function: Any, params: PyTree, buffers: PyTree = None) -> dict[str, PyTree]:
    params = params if function is None else with_arrays(params)
    return {PARAMS: params} if buffers is None else {PARAMS: params, BUFFERS: buffers}


def _kind(name: str, leaf: Any) -> type[nnx.Variable] | None:
    if name.partition(".")[0] == BUFFERS:
        return nnx.BatchStat if is_data(leaf) or isinstance(leaf, (int, float, complex)) else None
    if not is_data(leaf):
        return None
    return nnx.Param if is_trainable(leaf) else Carried


def _inference(module: PyTree) -> PyTree:
    """Return an Equinox module in evaluation mode, as `eqx.nn.inference_mode` does."""

    def evaluated(path: Any, leaf: Any) -> Any:
        flag = isinstance(leaf, bool) and path and getattr(path[-1], "name", None) == "inference"
        return True if flag else leaf

    return jax.tree.map_with_path(evaluated, module)


def pair_of(result: Any, what: str, form: str) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"train_step: with buffers in its state {what} returns {form}, not {type(result).__name__}."
        )
    return result


@dataclasses.dataclass(frozen=True)
class BoundFunction:
    """What a loss function calls: a function with its parameters, which are its `params`."""

    net: Callable[..., Any]
    params: PyTree

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return self.net(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {BOUND}")

    def __getitem__(self, key: object) -> Any:
        raise TypeError(f"net[{key!r}]: {BOUND}")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"iter(net): {BOUND}")


BOUND = (
    "a loss function is given the wrapped function with its parameters, net, and not the parameters: write "
    "net(x) for function(params, x); the parameters are net.params."
)


@dataclasses.dataclass(frozen=True)
class FunctionLoss:
    """A user's loss function or evaluation, which is given a BoundFunction or a callable pytree itself."""

    function: Callable[..., Any]
    evaluates: bool = False  # for `eval_step`, which only reads buffers

    def __call__(self, nets: Any, *args: PyTree, **kwargs: PyTree) -> Any:
        inner = None if isinstance(nets, tuple) else inner_of(nets)
        if inner is None or inner.function.value is not None or not inner.has_buffers:
            return self.function(_arguments(nets), *args, **kwargs)
        result = _called(self.function, _arguments(nets), inner.variables[BUFFERS], *args, **kwargs)
        if self.evaluates:
            return result
        value, buffers = pair_of(result, "the loss function of a module", "(loss, buffers)")
        inner.keep(buffers)
        return value


def _called(function: Callable[..., Any], *args: PyTree, **kwargs: PyTree) -> Any:
    """Call a function on arrays that have no mesh in their types."""
    if context_mesh() is None:
        return function(*args, **kwargs)
    arrays, others, form = separate((args, kwargs))
    results: list[Any] = []

    def call(*arrays: jax.Array) -> list[jax.Array]:
        args, kwargs = combine(arrays, others, form)
        leaves, *results[:] = separate(function(*args, **kwargs))
        return leaves

    program, _ = without_mesh(call, arrays)
    return combine(jaxpr_as_fun(program)(*arrays), *results)


def _arguments(nets: Any) -> Any:
    return tuple(map(_argument, nets)) if isinstance(nets, tuple) else _argument(nets)


def _argument(net: Any) -> Any:
    inner = inner_of(net)
    if inner is None:
        return net
    if inner.function.value is not None:
        return BoundFunction(net, inner.variables[PARAMS])
    module = inner.module
    return net.around(module) if isinstance(net, DataParallel) else module  # type: ignore[attr-defined]


def _unwrapped(net: Any) -> Any:
    return net.module if isinstance(net, (DataParallel, DistributedDataParallel)) else net


def inner_of(net: Any) -> FunctionNet | None:
    inner = _unwrapped(net)
    return inner if isinstance(inner, FunctionNet) else None


@dataclasses.dataclass(frozen=True)
class FunctionHook:
    """A user's hook, for which `update.net` is what the loss function is given."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        *bound, update = args
        update = dataclasses.replace(update, net=_arguments(update.net))
        return self.function(*bound, update, **kwargs)


def adapted(
    nets: tuple[Any, ...], function: Callable[..., Any], adapter: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the user's function as a step traces it: in an adapter if one of the nets is a function."""
    return function if all(inner_of(net) is None for net in nets) else adapter(function)


@contextlib.contextmanager
def call_noted(nets: tuple[Any, ...], batch: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> Iterator[None]:
    """Note the batch of a step on errors, and that it begins with the step's own state or parameters."""
    try:
        yield
    except Exception as error:
        inner = inner_of(nets[0])
        if batch and is_train_state(batch[0]):
            error.add_note("The step holds the state: call step(*batch) without it, and read step.state.")
        elif inner is not None and inner.function.value is not None and batch:
            forms: list[Any] = [jax.tree.structure(x) for x in (batch[0], inner.variables[PARAMS])]
            if forms[0] == forms[1]:
                error.add_note("The step holds the parameters: call step(*batch) without them.")
        name_call(error, "train_step", batch, kwargs)
        raise


def is_function(net: Any) -> bool:
    """Whether it is a function, a Haiku transform or a callable pytree, plain or wrapped."""
    if isinstance(net, (nnx.Module, linen.Module, type)):
        return False
    inner = _unwrapped(net)
    return is_transform(inner) or callable(inner) if inner is net else is_function(inner)


def from_function(net: Any, state: Any) -> tuple[Any, StateOptimizer]:
    """Return the function with its parameters, wrapped as before, and its optimizer."""
    state = _state(net, state)
    variables = variables_of(state)
    if not any(map(is_trainable, jax.tree.leaves(variables[PARAMS]))):
        raise ParametersError("train_step: no array of params is floating, so there is nothing to train.")
    return wrapped(net, variables), StateOptimizer(state, tuple(variables))


def variables_of(state: Any) -> dict[str, PyTree]:
    """Return the parameters and buffers in a state; anything else is the parameters alone."""
    if not isinstance(state, FunctionState) and not is_train_state(state):
        return {PARAMS: state}
    buffers = getattr(state, BUFFERS, None)
    return {PARAMS: state.params} if buffers is None else {PARAMS: state.params, BUFFERS: buffers}


def wrapped(net: Any, variables: dict[str, PyTree]) -> Any:
    """Return a function as an NNX module that holds its parameters and buffers, wrapped the same way."""
    inner = _unwrapped(net)
    module = FunctionNet(None if is_callable_pytree(inner) else function_of(inner), **variables)
    if isinstance(net, DistributedDataParallel):
        return net.holding(module)  # type: ignore[attr-defined]
    if not isinstance(net, DataParallel):
        return module
    return DataParallel(module, net.placement, backend=net.backend)  # type: ignore[attr-defined]


def _state(net: Any, state: Any) -> Any:
    inner = _unwrapped(net)
    if is_callable_pytree(inner) and is_transformation(state):
        return FunctionState.create(inner, state)
    if type(state) is tuple and len(state) in (2, 3) and is_transformation(state[1]):
        params, tx, *opt_state = state
        params = params if is_callable_pytree(inner) else with_arrays(params)
        if not opt_state:
            return FunctionState.create(params, tx)
        state = FunctionState(params=params, tx=tx, opt_state=opt_state[0])
    if isinstance(state, FunctionState):
        check_state(state)
        return state
    if is_train_state(state):
        return state
    names = [type(x).__name__ for x in state] if type(state) is tuple else []
    raise TypeError(
        "train_step: a function comes with its parameters and an optax transformation, (params, tx), "
        "(params, tx, opt_state), a jaxpar.FunctionState or Flax's TrainState, not "
        f"{'(' + ', '.join(names) + ')' if 0 < len(names) < 4 else type(state).__name__}."
    )
