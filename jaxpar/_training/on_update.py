"""on_update: a user's function of every update, compiled into the step, and what it is given."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import errors as flax_errors
from flax import nnx

from .._parallel.modules.bundle import Bundle, set_aside
from .._parallel.modules.function_view import contents
from .._parallel.modules.nnx_view import NNXDefinition, view_nnx
from .._tree import is_array, paths
from .._typing import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class StepUpdate:
    """An update, as `train_step(..., on_update=hook)` gives it to `hook(update)` inside of the program.

    >>> import jax.numpy as jnp, jaxpar, optax
    >>> from flax import nnx
    >>> def norms(update: jaxpar.StepUpdate):
    ...     return {"gradient": optax.tree.norm(update.gradients)}
    >>> net = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    >>> optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    >>> step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean(), on_update=norms)
    >>> loss = step(jnp.ones((8, 3)))
    >>> step.metrics["gradient"].shape
    ()

    Attributes:
      loss: the mean over the replicas of all processes and over accumulated calls, without a loss scale.
      gradients: their mean, likewise; as `nnx.state(net, wrt)`, or as the params of a TrainState.
      updates: what was added to the parameters, `params` minus `before`: zeros where the update was left out.
      before: the parameters before the update.
      params: the parameters after the update.
      applied: whether it was made, one bool on the device; False where a gradient was not finite.
      net: what the loss function is given, with the parameters after the update and the new statistics. A
        change to its Variables is kept.

    For several networks each of these, but `applied`, is a tuple; the loss if there are several.

    torch counterpart: `torch.optim.Optimizer.register_step_post_hook`.
    """

    loss: PyTree
    gradients: PyTree
    updates: PyTree
    before: PyTree
    params: PyTree
    applied: jax.Array
    net: Any


class UpdateHook:
    """A user's function of a StepUpdate; what it binds may hold Variables, which move with the step."""

    def __init__(self, function: Callable[..., Any]):
        if not callable(function):
            raise TypeError(
                "train_step: on_update must be a function of a jaxpar.StepUpdate, not "
                f"{type(function).__name__}."
            )
        # A flag of the user's: its Variables move even where an update was left out.
        self.always = bool(getattr(function, "on_skipped", False))
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self.function, args, kwargs = _bound(function)
        hidden = [x for x in contents(self.function) if _is_object(x)]
        if hidden:
            raise TypeError(
                f"train_step: on_update: {self.name} closes over {type(hidden[0]).__name__}, which would be "
                "a constant of the program. Bind it, functools.partial(hook, it), or make the hook an "
                "nnx.Module with a __call__, so that its Variables move with the step."
            )
        self.args, self.kwargs, objects = set_aside(args, kwargs, _is_object)
        self.objects = Bundle((), objects)

    def refuse_shared(self, *others: Any) -> None:
        """Raise ValueError if a Variable belongs to the net or to its optimizer, which the step moves."""
        moved = {id(leaf) for other in others for leaf in view_nnx(other).leaves}
        view = view_nnx(self.objects)
        for name, leaf in zip(view.names, view.leaves, strict=True):
            if id(leaf) in moved:
                raise ValueError(
                    f"train_step: on_update holds {_shown(name)}, a Variable of the net or the optimizer, "
                    "which the step moves itself. Read update.net and update.params, and keep a copy, "
                    "nnx.clone(net)."
                )

    def traced(self) -> TracedHook:
        view = view_nnx(self.objects)
        return TracedHook(self, view.definition, tuple(map(_shown, view.names)))


@dataclasses.dataclass(frozen=True, eq=False)
class TracedHook:
    hook: UpdateHook
    definition: NNXDefinition  # of the objects
    names: tuple[str, ...]

    def __call__(self, update: StepUpdate, values: Sequence[Any]) -> tuple[PyTree, list]:
        """Return what the function returned, and the new values of its objects."""
        bundle = self.definition.merge(values)
        args, kwargs = bundle.filled((self.hook.args, self.hook.kwargs))
        try:
            metrics = self.hook.function(*args, update, **kwargs)
        except flax_errors.TraceContextError as error:
            error.add_note(
                f"jaxpar: on_update: {self.hook.name} changes an object that it does not bind. Bind it, "
                "functools.partial(hook, it), or make the hook an nnx.Module with a __call__."
            )
            raise
        after = self.definition.read(bundle)
        check_values(self.names, values, after, "on_update")
        return jax.tree.map(jnp.asarray, _checked(metrics)), after


def check_values(names: Sequence[str], before: Sequence[Any], after: Sequence[Any], function: str) -> None:
    """Raise ValueError if Variables were added, or have new shapes."""
    if len(before) != len(after):
        raise ValueError(
            f"train_step: {function} changed the number of Variables from {len(before)} to {len(after)}, "
            "which a compiled program cannot do. Make them before, with zeros."
        )
    for name, x, y in zip(names, before, after, strict=True):
        if np.shape(x) != np.shape(y):
            raise ValueError(
                f"train_step: {function} would change the shape of {name} from {np.shape(x)} to "
                f"{np.shape(y)}."
            )


def _checked(metrics: PyTree) -> PyTree:
    for leaf, name in zip(jax.tree.leaves(metrics), paths(metrics, "result"), strict=True):
        if not is_array(leaf) and not isinstance(leaf, (bool, int, float, complex, np.generic)):
            raise TypeError(
                f"train_step: on_update: {name} is a {type(leaf).__name__}; return arrays, numbers, None, or "
                "containers of these."
            )
    return metrics


def _bound(function: Any) -> tuple[Callable[..., Any], tuple, dict[str, Any]]:
    """Return a function and what is bound to it, so that objects among that are arguments."""
    if _is_object(function):
        return operator.call, (function,), {}
    if isinstance(function, types.MethodType):
        return function.__func__, (function.__self__,), {}
    if isinstance(function, functools.partial):
        inner, args, kwargs = _bound(function.func)
        return inner, (*args, *function.args), {**kwargs, **function.keywords}
    return function, (), {}


def _is_object(x: object) -> bool:
    return isinstance(x, (nnx.Pytree, nnx.Variable)) and not isinstance(x, (nnx.List, nnx.Dict))


def _shown(name: str) -> str:
    """Return the name of a Variable, which begins with the number of its object."""
    return name.removeprefix("module.argument")
