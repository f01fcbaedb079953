"""Lines of a training script: a torch optimizer and its scheduler become lines of `jaxpar.optim`."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from flax import nnx

from ....errors import PortError
from ..._comparison import Comparison
from ..._exactness import exact
from ..._weights import links_of
from ..._weights.tree import tree_of
from ..proof import largest, made
from ..writing import formatted
from . import optimizer as optimizers
from . import scheduler as schedulers
from .dims import dims_of
from .functions import Functions
from .steps import Sides, compared

Given = Any
"""A torch optimizer or scheduler, or a function of the torch module that makes it."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a port came from.

    Attributes:
      make: makes the torch module.
      build: makes the Flax module, from the written file; None if it cannot be built.
      given: the torch module itself, if that was given.
    """

    make: Callable[[], torch.nn.Module]
    build: Callable[[], nnx.Module] | None
    given: torch.nn.Module | None


@dataclasses.dataclass(frozen=True)
class Lines:
    """Lines of a training script, ported: `print(lines)`.

    Attributes:
      source: the text, with its imports. It needs `net`, and lines of a scheduler need `optimizer`.
      comparison: of all options, five steps of the weights, three hundred of the rates, and the
        scheduler's state.
    """

    source: str
    comparison: Comparison

    def __str__(self) -> str:
        return self.source

    @property
    def same(self) -> bool:
        """Whether the lines do what torch does."""
        return self.comparison.same

    @property
    def largest(self) -> float:
        """The largest relative difference."""
        return largest([self.comparison])


@dataclasses.dataclass(frozen=True)
class Training(Sides):
    """Both sides, and how the parameters of one belong to those of the other."""

    @functools.cached_property
    def groups(self) -> list[optimizers.Group]:
        names = {id(tensor): name for name, tensor in self.net.named_parameters()}
        places = [
            [names[id(x)] for x in group["params"] if x.requires_grad]
            for group in self.optimizer.param_groups
        ]
        return optimizers.groups_of(self.optimizer, places, self.links, self.paths)

    @property
    def taken(self) -> set[str]:
        """The paths of the leaves that the optimizer moves."""
        return {path for group in self.groups for path in group.paths}

    def optimizer_line(self) -> str:
        function = optimizers.function_of(self.optimizer)
        tensors = {name: x.detach().numpy() for name, x in self.net.named_parameters()}
        dims = dims_of(function, self.taken, tensors, self.links, self.paths)
        return optimizers.written(self.optimizer, self.groups, tuple(self.paths.values()), dims)

    def scheduler_lines(self, functions: Functions) -> str:
        frozen = self.taken != set(self.paths.values())
        line = schedulers.written(self.scheduler, functions, frozen)
        return "\n\n".join([*functions.definitions.values(), f"scheduler = {line}\n"])


def optimizer_lines(origin: Origin, given: Given) -> Lines:
    """`Port.optimizer`."""
    with exact():
        training = _training(origin, given, "optimizer")
        optimizers.rewind(training.optimizer)
        line = training.optimizer_line()
        source = formatted(f"from jaxpar import optim\n\n{line}", "train.py")
        return Lines(source, compared(dataclasses.replace(training, scheduler=None), source, line))


def scheduler_lines(origin: Origin, given: Given) -> Lines:
    """`Port.scheduler`."""
    with exact():
        training = _training(origin, given, "scheduler")
        functions = Functions()
        lines, line = training.scheduler_lines(functions), training.optimizer_line()
        rooms = [room for room in ("lr_scheduler", "swa_utils") if f"{room}." in lines]
        imports = [*functions.imports.values(), f"from jaxpar.optim import {', '.join(rooms)}"]
        source = formatted("\n".join([*imports, "", lines]), "train.py")
        return Lines(source, compared(training, f"from jaxpar import optim\n{line}{source}", line))


def _training(origin: Origin, given: Given, what: str) -> Training:
    if origin.build is None:
        raise PortError(
            f"jaxpar.parity.port: {what}: the port has no Flax module, whose parameters it could name."
        )
    if callable(given):
        net = made(origin.make).double()
        try:
            own = given(net)
        except Exception as error:
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise PortError(
                f"jaxpar.parity.port: the function that makes the {what} fails: {said}"
            ) from error
        found = _pair(own, what)
    else:
        net, found = _adopted(origin, _pair(given, what))
    _require_fresh(*found)
    flax = origin.build()
    links, tree = links_of(flax, net), tree_of(flax)
    tree.write(links.parameters({name: x.detach().numpy().copy() for name, x in net.named_parameters()}))
    paths = {}
    for place, _ in nnx.to_flat_state(nnx.state(flax, nnx.Param)):
        words = tuple(map(str, place))
        name = ".".join(words)
        paths[tree.aliases.get(name, name)] = "/".join(words)
    return Training(net, *found, flax, links, paths)


def _pair(given: Any, what: str) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer, and the scheduler if that is what was given."""
    optimizer = getattr(given, "optimizer", given) if what == "scheduler" else given
    if not isinstance(optimizer, torch.optim.Optimizer) or (what == "scheduler" and given is optimizer):
        raise PortError(
            f"jaxpar.parity.port: {what} takes a torch {what}, or a function of the module that makes one, "
            f"and not {type(given).__name__}."
        )
    return optimizer, (given if what == "scheduler" else None)


def _adopted(origin: Origin, found: tuple[Any, Any]) -> tuple[torch.nn.Module, tuple[Any, Any]]:
    """The module in float64, and copies of optimizer and scheduler that hold its parameters."""
    net = (copy.deepcopy(origin.given) if origin.given is not None else made(origin.make)).double()
    own = dict(net.named_parameters())
    names = _names(origin, found[0], own)
    memo = {id(x): own[name].requires_grad_(x.requires_grad) for x, name in names}
    optimizer, scheduler = copy.deepcopy(found, memo)
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                state[key] = value.double()
    return net, (optimizer, scheduler)


def _names(
    origin: Origin, optimizer: torch.optim.Optimizer, own: Mapping[str, torch.Tensor]
) -> list[tuple[torch.Tensor, str]]:
    """The optimizer's parameters with their names in the module.

    Raises:
      PortError: they are not the module's, or nothing says which.
    """
    tensors = [x for group in optimizer.param_groups for x in group["params"]]
    known = {id(x): name for name, x in (origin.given.named_parameters() if origin.given is not None else ())}
    said = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    if all(id(x) in known for x in tensors):
        names = [known[id(x)] for x in tensors]
    elif len(said) == len(tensors) and set(said) <= own.keys():
        names = said
    elif len(optimizer.param_groups) == 1 and [x.shape for x in tensors] == [x.shape for x in own.values()]:
        names = list(own)
    else:
        raise PortError(
            f"jaxpar.parity.port: which parameters of the module the groups of {type(optimizer).__name__} "
            "hold is not known. Give a function of the module that makes the optimizer, or make it of "
            "module.named_parameters()."
        )
    return list(zip(tensors, names, strict=True))


def _require_fresh(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """Refuses what has taken steps: the lines say how a training begins."""
    moved = any(
        "momentum_buffer" in state or float(state.get("step", 0)) > 0 for state in optimizer.state.values()
    )
    if moved or (scheduler is not None and _epochs(scheduler) > 0):
        raise PortError(
            "jaxpar.parity.port: the optimizer or scheduler has taken steps. Give a fresh one; its state "
            "goes over with optim.state_from_torch and scheduler.load_state_dict."
        )


def _epochs(scheduler: Any) -> int:
    members = getattr(scheduler, "_schedulers", ())
    return max([getattr(scheduler, "last_epoch", 0), *map(_epochs, members)])
