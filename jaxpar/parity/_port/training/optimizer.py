"""The line of `jaxpar.optim` that makes what a torch optimizer is, with parameters by their paths in Flax."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from jaxpar import optim

from ....errors import PortError
from ..._weights import Links

CLASSES = {
    getattr(torch.optim, name): getattr(optim, name.lower())
    for name in torch.optim.__dict__
    if inspect.isclass(getattr(torch.optim, name)) and hasattr(optim, name.lower())
}
"""torch's classes, and our functions of the same names."""

KERNELS = {"foreach", "fused", "capturable", "differentiable"}
"""What chooses between torch's kernels and changes no number."""
NOTES = {"params", "param_names", "initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}
"""What a group holds beside its options: its parameters, and what schedulers write down."""
CYCLED = {"max_lr", "max_momentum"}
"""Notes of schedulers that cycle."""
WRITTEN_OVER = ("lr", "momentum", "betas")

Paths = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Group:
    """One of torch's groups: its options by our names, and the paths of its leaves."""

    options: Mapping[str, Any]
    paths: Paths


def function_of(optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """Our function for a torch optimizer.

    Raises:
      PortError: there is none.
    """
    kind: Any = type(optimizer)
    if kind not in CLASSES:
        known = ", ".join(sorted(each.__name__ for each in CLASSES))
        raise PortError(
            f"jaxpar.parity.port: jaxpar.optim has no word for {kind.__module__}.{kind.__name__}; "
            f"it has {known}."
        )
    found: Callable[..., Any] = CLASSES[kind]
    return found


def options_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group as they were before a scheduler wrote into it, by our names.

    Raises:
      PortError: an option for which jaxpar.optim has no word.
    """
    known = inspect.signature(function_of(optimizer)).parameters
    implied = {"decoupled_weight_decay"} if isinstance(optimizer, torch.optim.AdamW) else set()
    unknown = set(group) - known.keys() - KERNELS - NOTES - implied
    if unknown:
        raise PortError(
            f"jaxpar.parity.port: {type(optimizer).__name__} has {', '.join(sorted(unknown))} in a group, "
            "for which jaxpar.optim has no word."
        )
    return {name: plain(_before(optimizer, group, name)) for name in known if name in group}


def _before(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], name: str) -> Any:
    """What the user gave; schedulers that cycle write over the rate and the momentum at once."""
    if name in WRITTEN_OVER and CYCLED & group.keys():
        return optimizer.defaults[name]
    if name == "max_eval" and group[name] == group["max_iter"] * 5 // 4:
        return None  # LBFGS's default, as torch's constructor fills it in
    return group.get("initial_lr", group[name]) if name == "lr" else group[name]


def rewind(optimizer: torch.optim.Optimizer) -> None:
    """Takes back what a scheduler has written into the groups."""
    for group in optimizer.param_groups:
        options = options_of(optimizer, group)
        group.update({name: options[name] for name in WRITTEN_OVER if name in options})


def plain(value: Any) -> Any:
    """A number of torch's or NumPy's as Python's, and what holds such."""
    if isinstance(value, torch.Tensor | np.generic):
        return value.item()
    return tuple(map(plain, value)) if isinstance(value, tuple | list) else value


def groups_of(
    optimizer: torch.optim.Optimizer, places: Sequence[Sequence[str]], links: Links, paths: Mapping[str, str]
) -> list[Group]:
    """The groups, with the leaves that their tensors make.

    Args:
      places: for each group the names of its parameters in the torch module.
      paths: of Flax's leaves, by their names in `links`.

    Raises:
      PortError: a leaf is made of parameters of several groups.
    """
    found = []
    for group, names in zip(optimizer.param_groups, places, strict=True):
        leaves = []
        for part in links.parts:
            mine = [bool({name, *links.tied.get(name, ())} & set(names)) for name in part.torch]
            if any(mine) and not all(mine):
                raise PortError(
                    f"jaxpar.parity.port: {', '.join(part.flax)} is made of {', '.join(part.torch)}, "
                    "of which only some are in one parameter group."
                )
            leaves += [paths[leaf] for leaf in part.flax if any(mine) and leaf in paths]
        found.append(Group(options_of(optimizer, group), tuple(leaves)))
    return found


def written(optimizer: torch.optim.Optimizer, groups: Sequence[Group], paths: Paths, dims: str) -> str:
    """`optimizer = optim.Optimizer(net, optim.adamw(lr=0.001))`

    Args:
      paths: of all parameters of the Flax module; those that are in no group stay as they are.
      dims: the argument `dims`, where it is needed.
    """
    function = function_of(optimizer)
    word = f"optim.{function.__name__}"
    taken = {path for group in groups for path in group.paths}
    frozen = tuple(path for path in paths if path not in taken)
    common = _common(optimizer, groups)
    given = [f"{name}={value!r}" for name, value in common.items()] + ([f"dims={dims}"] if dims else [])
    if len(groups) == 1 and not frozen:
        return f"optimizer = optim.Optimizer(net, {word}({', '.join(given)}))\n"
    chosen = [selection(group.paths, paths) for group in groups]
    if not frozen:
        chosen[max(range(len(chosen)), key=lambda i: len(chosen[i]))] = "..."
    rows = [_row(leaves, _own(function, group, common)) for leaves, group in zip(chosen, groups, strict=True)]
    rows += [_row("...", {"frozen": True})] if frozen else []
    tx = ", ".join([word, f"[{', '.join(rows)}]", *given])
    return f"optimizer = optim.Optimizer(net, optim.param_groups({tx}))\n"


def _row(params: str, options: Mapping[str, Any]) -> str:
    said = [f"{name!r}: {value!r}" for name, value in options.items()]
    return "{" + ", ".join([f"'params': {params}", *said]) + "}"


def _common(optimizer: torch.optim.Optimizer, groups: Sequence[Group]) -> dict[str, Any]:
    """The options outside of the groups: torch's defaults of this optimizer, as far as a group has them.

    Those that are our defaults, too, are left out; the rate is always said.
    """
    default = inspect.signature(function_of(optimizer)).parameters
    found = {}
    for name in groups[0].options:
        several = [group.options[name] for group in groups]
        own = plain(optimizer.defaults.get(name))
        if own in several or several.count(several[0]) == len(several):
            found[name] = own if own in several else several[0]
    return {name: x for name, x in found.items() if name == "lr" or x != default[name].default}


def _own(function: Callable[..., Any], group: Group, common: Mapping[str, Any]) -> dict[str, Any]:
    """What a group has that is said nowhere else."""
    default = inspect.signature(function).parameters
    said = {name: common.get(name, parameter.default) for name, parameter in default.items()}
    return {name: value for name, value in group.options.items() if value != said[name]}


def selection(chosen: Paths, paths: Paths) -> str:
    """The shortest text that says which leaves: whole branches of the model, or all leaves of some names."""
    branches = _branches(set(chosen), paths)
    names = tuple(sorted({path.rpartition("/")[2] for path in chosen}))
    named = {path for path in paths if path.rpartition("/")[2] in names}
    if len(branches) > 2 and named == set(chosen):
        said = f"== {names[0]!r}" if len(names) == 1 else f"in {names!r}"
        return f'lambda path: path.split("/")[-1] {said}'
    return repr(branches[0]) if len(branches) == 1 else repr(branches)


def _branches(chosen: set[str], paths: Paths) -> list[str]:
    """The tops of branches of which every leaf is chosen, in the order of the leaves."""
    found: dict[str, None] = {}
    for path in paths:
        if path in chosen:
            words = path.split("/")
            tops = ("/".join(words[:n]) for n in range(1, len(words) + 1))
            found[next(top for top in tops if _below(top, paths) <= chosen)] = None
    return list(found)


def _below(top: str, paths: Iterable[str]) -> set[str]:
    return {path for path in paths if path == top or path.startswith(f"{top}/")}
