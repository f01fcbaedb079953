"""Lines of a training script: a torch optimizer and its scheduler become lines of `jaxpar.optim`."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from flax import nnx

from ....errors import PortError
from ..._comparison import Comparison
from ..._exactness import exact
from ..._weights import Links, links_of
from ..._weights.tree import tree_of
from ..proof import largest, perturbed
from ..writing import formatted
from . import optimizer as optimizers
from . import scheduler as schedulers
from .functions import Functions
from .steps import TrainingSides, compared, parameters_of

TorchObject = Any  # A torch optimizer or scheduler, or a function that makes it from the torch module


@dataclasses.dataclass(frozen=True)
class Origin:
    """The functions that make the torch module and, from the written file, the Flax module."""

    make: Callable[[], torch.nn.Module]
    build: Callable[[], nnx.Module] | None  # None if building fails
    instance: torch.nn.Module | None  # the torch module, if the user passed one


@dataclasses.dataclass(frozen=True)
class Lines:
    """Lines of a training script, ported: `print(lines)`.

    Attributes:
      source: the text, with its imports. It refers to `net`, and a scheduler's lines to `optimizer`.
      comparison: the comparison of all options, of the weights in five steps, of the rates in three
        hundred, and of the scheduler's state.
    """

    source: str
    comparison: Comparison

    def __str__(self) -> str:
        return self.source

    @property
    def same(self) -> bool:
        """Whether the lines equal torch."""
        return self.comparison.same

    @property
    def largest(self) -> float:
        """The largest relative difference."""
        return largest([self.comparison])


@dataclasses.dataclass(frozen=True)
class Training(TrainingSides):
    @functools.cached_property
    def groups(self) -> list[optimizers.ParameterGroup]:
        names = {id(tensor): name for name, tensor in self.net.named_parameters()}
        names_by_group = [
            [names[id(x)] for x in group["params"] if x.requires_grad]
            for group in self.optimizer.param_groups
        ]
        return optimizers.groups_of(self.optimizer, names_by_group, self.links, self.paths)

    @property
    def moved(self) -> set[str]:
        return {path for group in self.groups for path in group.paths}

    def optimizer_line(self) -> str:
        function = optimizers.function_of(self.optimizer)
        dims = dims_of(function, self.moved, parameters_of(self.net), self.links, self.paths)
        return optimizers.written(self.optimizer, self.groups, tuple(self.paths.values()), dims)

    def scheduler_lines(self, functions: Functions) -> str:
        frozen = self.moved != set(self.paths.values())
        line = schedulers.written(self.scheduler, functions, frozen)
        return "\n\n".join([*functions.definitions.values(), f"scheduler = {line}\n"])


def optimizer_lines(origin: Origin, source_object: TorchObject) -> Lines:
    with exact():
        training = _training(origin, source_object, "optimizer")
        optimizers.rewind(training.optimizer)
        line = training.optimizer_line()
        source = formatted(f"from jaxpar import optim\n\n{line}", "train.py")
        return Lines(source, compared(dataclasses.replace(training, scheduler=None), source, line))


def scheduler_lines(origin: Origin, source_object: TorchObject) -> Lines:
    with exact():
        training = _training(origin, source_object, "scheduler")
        functions = Functions()
        lines, line = training.scheduler_lines(functions), training.optimizer_line()
        rooms = [room for room in ("lr_scheduler", "swa_utils") if f"{room}." in lines]
        imports = [*functions.imports.values(), f"from jaxpar.optim import {', '.join(rooms)}"]
        source = formatted("\n".join([*imports, "", lines]), "train.py")
        return Lines(source, compared(training, f"from jaxpar import optim\n{line}{source}", line))


def _training(origin: Origin, source_object: TorchObject, what: str) -> Training:
    if origin.build is None:
        raise PortError(
            f"jaxpar.parity.port: {what}: the port has no Flax module, whose parameters it could name."
        )
    if callable(source_object):
        net = perturbed(origin.make).double()
        try:
            instance = source_object(net)
        except Exception as error:
            message = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise PortError(
                f"jaxpar.parity.port: the function that makes the {what} fails: {message}"
            ) from error
        pair = _pair(instance, what)
    else:
        net, pair = _adopted(origin, _pair(source_object, what))
    _require_fresh(*pair)
    flax = origin.build()
    links, tree = links_of(flax, net), tree_of(flax)
    tree.write(links.parameters(parameters_of(net)))
    paths = {}
    for path, _ in nnx.to_flat_state(nnx.state(flax, nnx.Param)):
        parts = tuple(map(str, path))
        name = ".".join(parts)
        paths[tree.aliases.get(name, name)] = "/".join(parts)
    return Training(net, *pair, flax, links, paths)


def _pair(source_object: Any, what: str) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = getattr(source_object, "optimizer", source_object) if what == "scheduler" else source_object
    if not isinstance(optimizer, torch.optim.Optimizer) or (
        what == "scheduler" and source_object is optimizer
    ):
        raise PortError(
            f"jaxpar.parity.port: {what} takes a torch {what}, or a function of the module that makes one, "
            f"and not {type(source_object).__name__}."
        )
    return optimizer, (source_object if what == "scheduler" else None)


def _adopted(origin: Origin, pair: tuple[Any, Any]) -> tuple[torch.nn.Module, tuple[Any, Any]]:
    """Return the module in float64, and copies of optimizer and scheduler with its parameters."""
    net = (copy.deepcopy(origin.instance) if origin.instance is not None else perturbed(origin.make)).double()
    parameters = dict(net.named_parameters())
    names = _names(origin, pair[0], parameters)
    # deepcopy replaces what `memo` lists, so the copied optimizer refers to the copied module's parameters.
    memo = {id(x): parameters[name].requires_grad_(x.requires_grad) for x, name in names}
    # As a pair, because the copied scheduler must step the copied optimizer.
    optimizer, scheduler = copy.deepcopy(pair, memo)
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                # Adagrad makes its state in the constructor, in the type of the user's parameters.
                state[key] = value.double()
    return net, (optimizer, scheduler)


def _names(
    origin: Origin, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
) -> list[tuple[torch.Tensor, str]]:
    tensors = [x for group in optimizer.param_groups for x in group["params"]]
    users_parameters = origin.instance.named_parameters() if origin.instance is not None else ()
    names_by_id = {id(x): name for name, x in users_parameters}
    recorded_names = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    # From the most reliable evidence to the least: identity, recorded names, equal shapes in order.
    if all(id(x) in names_by_id for x in tensors):
        names = [names_by_id[id(x)] for x in tensors]
    elif len(recorded_names) == len(tensors) and set(recorded_names) <= parameters.keys():
        names = recorded_names
    elif len(optimizer.param_groups) == 1 and _shapes(tensors) == _shapes(parameters.values()):
        names = list(parameters)
    else:
        raise PortError(
            f"jaxpar.parity.port: which parameters of the module the groups of {type(optimizer).__name__} "
            "hold is not known. Give a function of the module that makes the optimizer, or make it of "
            "module.named_parameters()."
        )
    return list(zip(tensors, names, strict=True))


def _require_fresh(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    moved = any(
        "momentum_buffer" in state or float(state.get("step", 0)) > 0 for state in optimizer.state.values()
    )
    if moved or (scheduler is not None and _epochs(scheduler) > 0):
        raise PortError(
            "jaxpar.parity.port: the optimizer or scheduler has taken steps. Give a fresh one; its state "
            "goes over with optim.state_from_torch and scheduler.load_state_dict."
        )


def _shapes(tensors: Iterable[torch.Tensor]) -> list[torch.Size]:
    return [x.shape for x in tensors]


def _epochs(scheduler: Any) -> int:
    members = getattr(scheduler, "_schedulers", ())
    return max([getattr(scheduler, "last_epoch", 0), *map(_epochs, members)])


Axes = tuple[int, int]
KEYS: dict[str, Callable[[str, int], Any]] = {
    "x.ndim": lambda path, ndim: ndim,
    'path.split("/")[-1]': lambda path, ndim: path.rpartition("/")[2],
}
"""The expressions that the axes may depend on."""


def dims_of(
    function: Callable[..., Any],
    moved_paths: Iterable[str],
    tensors: Mapping[str, np.ndarray],
    links: Links,
    paths: Mapping[str, str],
) -> str:
    """Write `dims` as a function of the path and the leaf; empty where the default is right.

    `moved_paths` are the leaves that the optimizer moves, `paths` all leaves by their names in `links`.
    """
    if "dims" not in inspect.signature(function).parameters:
        return ""
    ordered = function.__name__ == "muon"
    default: Axes = (1, 0) if ordered else (-2, -1)
    # Measured with numbered tensors, which covers every conversion of the rulebook, fused ones included.
    last, before = _varying(tensors, links, -1), _varying(tensors, links, -2)
    axes_by_leaf = {
        (paths[leaf], ndim): (before[leaf][0], axis)
        for leaf, (axis, ndim) in last.items()
        if leaf in before and paths.get(leaf) in set(moved_paths)
    }
    # The number of axes comes first: it distinguishes matrices from convolutions without naming leaves.
    for expression, key in KEYS.items():
        cases: dict[Any, set[Axes]] = {}
        for (path, ndim), axes in axes_by_leaf.items():
            written_axes = default if _same(axes, default, ndim, ordered) else axes
            cases.setdefault(key(path, ndim), set()).add(written_axes)
        if all(len(axes_set) == 1 for axes_set in cases.values()):
            return _written(expression, {case: axes_set.pop() for case, axes_set in cases.items()}, default)
    raise PortError(
        f"jaxpar.parity.port: the axes that {function.__name__} takes lie differently in leaves of one name "
        "and number of axes; write the argument dims by hand."
    )


def _varying(tensors: Mapping[str, np.ndarray], links: Links, axis: int) -> dict[str, tuple[int, int]]:
    counted = {}
    for name, x in tensors.items():
        if x.ndim >= 2:
            shape = [1] * x.ndim
            shape[axis] = x.shape[axis]
            counted[name] = np.broadcast_to(np.arange(float(x.shape[axis])).reshape(shape), x.shape)
    positions = {}
    for leaf, x in links.to_flax(counted, gradient=True).items():
        # A leaf that merges or splits the axis varies along several or none; it has no position then.
        moved = [i for i in range(x.ndim) if x.shape[i] > 1 and np.any(np.diff(x, axis=i))]
        if len(moved) == 1:
            positions[leaf] = moved[0], x.ndim
    return positions


def _same(axes: Axes, default: Axes, ndim: int, ordered: bool) -> bool:
    normalized = tuple(axis % ndim for axis in default)
    return axes == normalized if ordered else set(axes) == set(normalized)


def _written(expression: str, cases: Mapping[Any, Axes], default: Axes) -> str:
    other = {case: axes for case, axes in cases.items() if axes != default}
    if not other:
        return ""
    if len(cases) == 1:
        return f"lambda path, x: {next(iter(other.values()))}"
    text = "".join(f"{axes} if {expression} == {case!r} else " for case, axes in other.items())
    return f"lambda path, x: {text}{default}"
