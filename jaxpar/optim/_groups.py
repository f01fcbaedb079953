"""Optimizer, and `optimizer.param_groups`: groups of parameters whose hyperparameters can be set."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import jax
import numpy as np
import optax
from flax import nnx

from .. import _exact
from .._arguments import NonNegative
from .._counterparts import TorchNames
from .._typing import PyTree
from ..errors import HyperparameterError, OptimizerError
from ._hyperparameters import ScalarOrSchedule, settable
from ._lbfgs import lbfgs
from ._leafwise import KeyPath, leaf_path

Leaf: TypeAlias = "tuple[KeyPath, nnx.Variable]"
PerGroup: TypeAlias = NonNegative | Sequence[NonNegative]

NOTES = {"initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}
"""Keys that torch's schedulers store in a group. They do not affect the steps."""

OPTAX = {"learning_rate": "lr", "b1": "beta1"}
"""optax's names of hyperparameters, and torch's."""

_groups: weakref.WeakKeyDictionary[nnx.Optimizer, list[ParamGroup]] = weakref.WeakKeyDictionary()
"""Not an attribute of the optimizer, because nnx would pass it to every compiled program."""


class ParamGroup(MutableMapping[str, Any]):
    """One of `optimizer.param_groups`: a mutable mapping of hyperparameters, `group["lr"] = 0.01`.

    The keys are "lr", "momentum" and "beta1" (torch's `betas[0]`), as far as the optimizer was made with
    numbers for them, and those of `optax.inject_hyperparams`. Values are Python floats: reading returns the
    number exactly as it was set, even where its array is float32. torch's schedulers add keys of their own.

    Raises: HyperparameterError (a KeyError): a key that cannot be set. TypeError, ValueError: not finite.

    >>> from flax import nnx
    >>> from jaxpar import optim
    >>> optimizer = optim.Optimizer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), optim.sgd(lr=0.1, momentum=0.9))
    >>> dict(optimizer.param_groups[0])
    {'lr': 0.1, 'momentum': 0.9}
    """

    def __init__(self, optimizer: nnx.Optimizer, paths: dict[str, list[KeyPath]]):
        # Weak, because this group is the value in `_groups` whose weak key is the optimizer: a strong
        # reference would keep both alive forever.
        self._optimizer, self._paths = weakref.ref(optimizer), paths
        self._notes: dict[str, Any] = {}
        self._last: dict[str, float] = {}

    def __getitem__(self, key: str) -> Any:
        if key in self._notes:
            return self._notes[key]
        x = self._variables(key)[0].get_value()
        if isinstance(x, jax.core.Tracer):
            return x
        self._last[key] = _exact.number_of(x, self._last.get(key))
        return self._last[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key in NOTES:
            self._notes[key] = value
            return
        # A hyperparameter may occur in several stages of one group; all copies must change together.
        variables = self._variables(key)
        if isinstance(value, jax.core.Tracer):
            for variable in variables:
                variable.set_value(jax.numpy.asarray(value, variable.get_value().dtype))
            return
        self._last[key] = number = _number(key, value)
        for variable in variables:
            variable.set_value(_exact.like(variable.get_value(), number))

    def __delitem__(self, key: str) -> None:
        del self._notes[key]

    def __contains__(self, key: object) -> bool:
        return key in self._paths or key in self._notes

    def __iter__(self) -> Iterator[str]:
        return iter([*self._paths, *self._notes])

    def __len__(self) -> int:
        return len(self._paths) + len(self._notes)

    def __repr__(self) -> str:
        return f"ParamGroup({dict(self)})"

    def remind(self, key: str, number: float) -> None:
        """Record the exact number that the array stores rounded, for instance after loading."""
        self._last[key] = number
        x = self._variables(key)[0].get_value()
        # A restored array may hold a different number than the scheduler's state; the array wins.
        if x.dtype.type(number) == x:
            _exact.remember(x, number)

    def _variables(self, key: str) -> list[nnx.Variable]:
        optimizer = self._optimizer()
        if optimizer is None:
            raise RuntimeError("param_groups: the optimizer of this group does not exist any more.")
        if key not in self._paths:
            can = ", ".join(map(repr, self._paths)) or "nothing"
            if key in NOTES:
                raise KeyError(key)
            raise HyperparameterError(
                f"param_groups: {key!r} is not in this group of the optimizer's state, where {can} can be "
                "set. Make it with a number for what is to change (a momentum other than 0, no schedule): "
                "optim.sgd(lr=0.1, momentum=0.9), or optax.inject_hyperparams(optax.adam)(learning_rate=0.1)."
            )
        return [_follow(optimizer.opt_state, path) for path in self._paths[key]]


def param_groups_of(optimizer: nnx.Optimizer) -> list[ParamGroup]:
    """Return an optimizer's groups, one for each label in order or just one; the same objects every time."""
    groups = _groups.get(optimizer)
    if groups is None:
        paths: dict[tuple[Any, ...], dict[str, list[KeyPath]]] = {}
        for path, _ in _leaves(optimizer.opt_state):
            named = _hyperparameter(path)
            if named is not None and not _is_scheduled(optimizer.opt_state, path):
                where, name = named
                paths.setdefault(where, {}).setdefault(name, []).append(path)
        groups = [ParamGroup(optimizer, group_paths) for group_paths in paths.values()] or [
            ParamGroup(optimizer, {})
        ]
        # Never cache groups made under a trace: their variables hold tracers that die with it.
        if not any(isinstance(x.get_value(), jax.core.Tracer) for _, x in _leaves(optimizer.opt_state)):
            _groups[optimizer] = groups
    return groups


def check_optimizer(optimizer: Any) -> nnx.Optimizer:
    if not isinstance(optimizer, nnx.Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
    return optimizer


def for_each_group(name: str, optimizer: nnx.Optimizer, value: Any) -> list[Any]:
    n = len(param_groups_of(optimizer))
    if not isinstance(value, (list, tuple)):
        return [value] * n
    if len(value) != n:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has {len(value)} values, "
            f"param_groups has {n}."
        )
    return list(value)


def _leaves(state: Any) -> list[Leaf]:
    leaves: list[Leaf] = jax.tree_util.tree_leaves_with_path(
        state, is_leaf=lambda x: isinstance(x, nnx.Variable)
    )
    return leaves


def _hyperparameter(path: KeyPath) -> tuple[tuple[Any, ...], str] | None:
    """Return the group's label and the hyperparameter's name, or None for other leaves."""
    if len(path) < 2 or getattr(path[-2], "name", None) != "hyperparams":
        return None
    name = path[-1].key
    names = [getattr(key, "name", None) for key in path]
    labels = tuple(
        path[i].key
        for i in range(1, len(path))
        # `jaxpar.each_device` also partitions, by device; its parts belong to one group.
        if names[i - 1] == "inner_states" and (i < 2 or names[i - 2] != "each_device")
    )
    return labels, OPTAX.get(name, name)


def _is_scheduled(state: Any, path: KeyPath) -> bool:
    # optax overwrites these by their schedule before every update.
    return path[-1].key in getattr(_follow(state, path[:-2]), "hyperparams_states", ())


def _follow(node: Any, path: KeyPath) -> Any:
    for key in path:
        node = (
            getattr(node, key.name)
            if hasattr(key, "name")
            else node[getattr(key, "key", getattr(key, "idx", 0))]
        )
    return node


def _number(key: str, value: Any) -> float:
    if isinstance(value, (bool, str)) or value is None or np.size(value) != 1:
        raise TypeError(f"param_groups: {key} must be a number, not {value!r}.")
    number = float(np.asarray(value).reshape(()))
    if not math.isfinite(number):
        raise ValueError(f"param_groups: {key} is {number}, with which every parameter would be lost.")
    return number


class Optimizer(TorchNames, nnx.Optimizer):
    """`nnx.Optimizer` with `lr` and `param_groups`.

    >>> from flax import nnx
    >>> from jaxpar import optim
    >>> optimizer = optim.Optimizer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), optim.sgd(lr=0.1, momentum=0.9))
    >>> optimizer.lr = 0.01
    >>> optimizer.lr
    0.01

    Args:
      model: an NNX module.
      tx: an optax transformation. Its rate can be set if it is one of `jaxpar.optim` that was made with a
        number, alone, in `optax.chain` or in `param_groups`, or of `optax.inject_hyperparams`.
      wrt: what is trained.

    The rate is an array of the optimizer's state: setting it compiles nothing, and it is saved there.

    torch counterpart: `torch.optim.Optimizer`; there the group is a dict of all hyperparameters.
    """

    torch_class = "Optimizer"

    def __init__(
        self,
        model: nnx.Module,
        tx: optax.GradientTransformation,
        *,
        wrt: nnx.filterlib.Filter = nnx.Param,
        **kwargs: Any,
    ):
        super().__init__(model, tx, wrt=wrt, **kwargs)
        for group in self.param_groups:
            if "lr" in group:
                group["lr"] = group["lr"]  # a whole number, from optax.inject_hyperparams, becomes a float

    def update(self, model: nnx.Module, grads: Any, /, **kwargs: Any) -> Any:
        """Update the module and the optimizer's state. Raises OptimizerError: gradients of other shapes."""
        shapes, gradients = _shapes(model, self.wrt), _shapes(grads, self.wrt)
        for name in [*shapes, *gradients]:
            if shapes.get(name) != gradients.get(name):
                raise OptimizerError(
                    f"Optimizer.update: the parameter {name} has {_named(shapes, name)}, and its gradient "
                    f"{_named(gradients, name)}. Give it the gradients of the module that it updates: "
                    "nnx.grad(loss_fn)(model, batch)."
                )
        return super().update(model, grads, **kwargs)

    @property
    def param_groups(self) -> list[ParamGroup]:
        """A group for each of `optim.param_groups`, or one: `optimizer.param_groups[1]["lr"] = 0.01`."""
        return param_groups_of(self)

    @property
    def lr(self) -> float:
        """The learning rate of all groups; a traced array inside `jax.jit`.

        Raises: HyperparameterError: it is not in the state. ValueError, when read: the groups differ.
        """
        rates = [group["lr"] for group in self.param_groups]
        # Traced rates cannot be compared on the host.
        if isinstance(rates[0], float) and len(set(rates)) > 1:
            raise ValueError(
                f"Optimizer.lr: the groups have the rates {rates}; read optimizer.param_groups[i]['lr']."
            )
        first: float = rates[0]
        return first

    @lr.setter
    def lr(self, value: Any) -> None:
        if not isinstance(value, jax.core.Tracer) and _number("lr", value) < 0:
            raise ValueError(f"Optimizer.lr: {value} is negative; a rate is 0 or more.")
        for group in self.param_groups:
            group["lr"] = value


Selection: TypeAlias = "str | Callable[[str], bool] | EllipsisType | Sequence[str | Callable[[str], bool]]"


def param_groups(
    optimizer: Callable[..., optax.GradientTransformation],
    groups: Sequence[Mapping[str, Any]],
    **defaults: Any,
) -> optax.GradientTransformationExtraArgs:
    """Build one optimizer whose hyperparameters depend on the leaf.

    Args:
      optimizer: `optim.sgd`, `optim.adam`, ...: called once for each group.
      groups: dicts with the key "params" and the group's own options. "params" is a path ("encoder/layers/0";
        every leaf at or under it), a function of a leaf's path, a list of these, or `...` for the leaves of
        no other group. `"frozen": True` instead of options freezes them (torch: `requires_grad = False`).
      defaults: the options of all groups, unless a group overrides them.

    Raises: ValueError: `optimizer` is `lbfgs`; at `init`, a leaf in two groups or in none, a group without a
    leaf.

    torch counterpart: `torch.optim.SGD([{"params": ..., "lr": 0.1}, ...], lr=1e-3)`.

    >>> from jaxpar import optim
    >>> groups = [{"params": "head", "lr": 0.1}, {"params": ..., "frozen": True}]
    >>> tx = optim.param_groups(optim.sgd, groups, momentum=0.9)
    """
    if optimizer is lbfgs:
        raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
    if not groups:
        raise ValueError("optimizer got an empty parameter list")
    for i, group in enumerate(groups):
        if "params" not in group:
            raise ValueError(f"param_groups: group {i} has no key 'params'.")
    transforms: dict[int, optax.GradientTransformation] = {}
    for i, group in enumerate(groups):
        options = {key: value for key, value in group.items() if key not in ("params", "frozen")}
        if group.get("frozen", False):
            if options:
                raise ValueError(f"param_groups: group {i} is frozen and has the options {sorted(options)}.")
            transforms[i] = _frozen(optimizer, defaults)
        else:
            transforms[i] = optimizer(**{**defaults, **options})
    selections = [group["params"] for group in groups]

    def labels(tree: PyTree) -> PyTree:
        return jax.tree_util.tree_map_with_path(lambda path, _: _group_of(selections, leaf_path(path)), tree)

    tx = optax.partition(transforms, labels)

    def init(params):
        # A misspelt path would otherwise leave its leaves to the group of `...` without notice.
        used = set(jax.tree.leaves(labels(params)))
        for i, selection in enumerate(selections):
            if i not in used and selection is not ...:
                raise ValueError(f"param_groups: no leaf is in group {i} (params={selection!r}).")
        return tx.init(params)

    return optax.GradientTransformationExtraArgs(init, tx.update)


def _shapes(tree: Any, wrt: Any) -> dict[str, tuple[int, ...]]:
    state = nnx.to_flat_state(nnx.state(tree, wrt))
    return {"/".join(map(str, path)): np.shape(x) for path, x in state}


def _named(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return f"shape {shapes[name]}" if name in shapes else "none"


def _frozen(
    optimizer: Callable[..., optax.GradientTransformation], defaults: Mapping[str, Any]
) -> optax.GradientTransformation:
    # A rate, as in torch, so that the other groups keep their indices in `optimizer.param_groups`.
    parameter = inspect.signature(optimizer).parameters.get("lr")
    lr = defaults.get("lr", None if parameter is None else parameter.default)
    return optax.set_to_zero() if lr is None or lr is inspect.Parameter.empty else _still(lr)


@settable("lr")
def _still(lr: ScalarOrSchedule) -> optax.GradientTransformationExtraArgs:
    return optax.with_extra_args_support(optax.set_to_zero())


def _group_of(selections: Sequence[Selection], path: str) -> int:
    matches = [i for i, selection in enumerate(selections) if _selects(selection, path)]
    if len(matches) > 1:
        raise ValueError(
            f"some parameters appear in more than one parameter group: {path} is in groups "
            f"{' and '.join(map(str, matches))}."
        )
    if not matches:
        matches = [i for i, selection in enumerate(selections) if selection is ...]
        if len(matches) != 1:
            raise ValueError(
                f"param_groups: {path} is in no group. Add {{'params': ...}} for all other leaves, or "
                "{'params': ..., 'frozen': True} to leave them as they are."
            )
    return matches[0]


def _selects(selection: Selection, path: str) -> bool:
    if selection is ...:
        return False
    if isinstance(selection, str):
        # The slash prevents "layers/1" from selecting "layers/10".
        return path == selection or path.startswith(selection + "/")
    if callable(selection):
        return bool(selection(path))
    return any(_selects(part, path) for part in selection)
