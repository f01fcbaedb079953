"""The line of `jaxpar.optim` for a torch optimizer, with parameters by their paths in Flax."""

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
    # By name, so that a new function of jaxpar.optim is covered without a line in this file.
    getattr(torch.optim, name): getattr(optim, name.lower())
    for name in torch.optim.__dict__
    if inspect.isclass(getattr(torch.optim, name)) and hasattr(optim, name.lower())
}
"""torch's classes, with jaxpar's functions of the same names."""

KERNELS = {"foreach", "fused", "capturable", "differentiable"}
"""Options that choose among torch's kernels and change no number."""
NOTES = {"params", "param_names", "initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}
"""A group's entries besides its options: its parameters, and notes of schedulers."""
CYCLED = {"max_lr", "max_momentum"}  # Notes that cyclic schedulers write
WRITTEN_OVER = ("lr", "momentum", "betas")

Paths = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    options: Mapping[str, Any]
    paths: Paths


def function_of(optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    kind: Any = type(optimizer)
    if kind not in CLASSES:
        names = ", ".join(sorted(kind_.__name__ for kind_ in CLASSES))
        raise PortError(
            f"jaxpar.parity.port: jaxpar.optim has no word for {kind.__module__}.{kind.__name__}; "
            f"it has {names}."
        )
    function: Callable[..., Any] = CLASSES[kind]
    return function


def options_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's options, as they were before a scheduler changed them, by jaxpar's names."""
    parameters = inspect.signature(function_of(optimizer)).parameters
    # Newer releases of torch make AdamW a subclass of Adam that always sets this option.
    implied = {"decoupled_weight_decay"} if isinstance(optimizer, torch.optim.AdamW) else set()
    unknown = set(group) - parameters.keys() - KERNELS - NOTES - implied
    if unknown:
        raise PortError(
            f"jaxpar.parity.port: {type(optimizer).__name__} has {', '.join(sorted(unknown))} in a group, "
            "for which jaxpar.optim has no word."
        )
    return {name: plain(_before(optimizer, group, name)) for name in parameters if name in group}


def _before(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], name: str) -> Any:
    """Return the user's value; cyclic schedulers overwrite the rate and the momentum when they are made."""
    if name in WRITTEN_OVER and CYCLED & group.keys():
        return optimizer.defaults[name]
    if name == "max_eval" and group[name] == group["max_iter"] * 5 // 4:
        return None  # LBFGS's default, as torch's constructor fills it in
    return group.get("initial_lr", group[name]) if name == "lr" else group[name]


def rewind(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        options = options_of(optimizer, group)
        group.update({name: options[name] for name in WRITTEN_OVER if name in options})


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.generic):
        return value.item()
    return tuple(map(plain, value)) if isinstance(value, tuple | list) else value


def groups_of(
    optimizer: torch.optim.Optimizer,
    names_by_group: Sequence[Sequence[str]],
    links: Links,
    paths: Mapping[str, str],
) -> list[ParameterGroup]:
    """Return the groups with their Flax leaves; `paths` are the leaves by their names in `links`."""
    groups = []
    for group, names in zip(optimizer.param_groups, names_by_group, strict=True):
        leaves = []
        for part in links.parts:
            # torch lists a tied tensor once, under any of its names.
            in_group = [bool({name, *links.tied.get(name, ())} & set(names)) for name in part.torch]
            if any(in_group) and not all(in_group):
                raise PortError(
                    f"jaxpar.parity.port: {', '.join(part.flax)} is made of {', '.join(part.torch)}, "
                    "of which only some are in one parameter group."
                )
            leaves += [paths[leaf] for leaf in part.flax if any(in_group) and leaf in paths]
        groups.append(ParameterGroup(options_of(optimizer, group), tuple(leaves)))
    return groups


def written(
    optimizer: torch.optim.Optimizer, groups: Sequence[ParameterGroup], paths: Paths, dims: str
) -> str:
    """Write `optimizer = optim.Optimizer(net, optim.adamw(lr=0.001))`.

    Parameters in `paths`, all of the Flax module's, that are in no group are frozen.
    """
    function = function_of(optimizer)
    name_ = f"optim.{function.__name__}"
    moved_paths = {path for group in groups for path in group.paths}
    frozen = tuple(path for path in paths if path not in moved_paths)
    common = _common(optimizer, groups)
    arguments = [f"{name}={value!r}" for name, value in common.items()] + ([f"dims={dims}"] if dims else [])
    if len(groups) == 1 and not frozen:
        return f"optimizer = optim.Optimizer(net, {name_}({', '.join(arguments)}))\n"
    chosen = [selection(group.paths, paths) for group in groups]
    if not frozen:
        # `...` selects all other leaves, so the longest selection need not be written.
        chosen[max(range(len(chosen)), key=lambda i: len(chosen[i]))] = "..."
    rows = [
        _row(leaves, _overrides(function, group, common))
        for leaves, group in zip(chosen, groups, strict=True)
    ]
    rows += [_row("...", {"frozen": True})] if frozen else []
    tx = ", ".join([name_, f"[{', '.join(rows)}]", *arguments])
    return f"optimizer = optim.Optimizer(net, optim.param_groups({tx}))\n"


def _row(params: str, options: Mapping[str, Any]) -> str:
    entries = [f"{name!r}: {value!r}" for name, value in options.items()]
    return "{" + ", ".join([f"'params': {params}", *entries]) + "}"


def _common(optimizer: torch.optim.Optimizer, groups: Sequence[ParameterGroup]) -> dict[str, Any]:
    """Options equal to jaxpar's defaults are left out, except the rate."""
    default = inspect.signature(function_of(optimizer)).parameters
    options = {}
    for name in groups[0].options:
        several = [group.options[name] for group in groups]
        default_value = plain(optimizer.defaults.get(name))
        if default_value in several or several.count(several[0]) == len(several):
            options[name] = default_value if default_value in several else several[0]
    return {name: x for name, x in options.items() if name == "lr" or x != default[name].default}


def _overrides(
    function: Callable[..., Any], group: ParameterGroup, common: Mapping[str, Any]
) -> dict[str, Any]:
    default = inspect.signature(function).parameters
    defaults = {name: common.get(name, parameter.default) for name, parameter in default.items()}
    return {name: value for name, value in group.options.items() if value != defaults[name]}


def selection(chosen: Paths, paths: Paths) -> str:
    """Write the shortest selection of leaves: whole branches of the model, or all leaves of some names."""
    branches = _branches(set(chosen), paths)
    names = tuple(sorted({path.rpartition("/")[2] for path in chosen}))
    named = {path for path in paths if path.rpartition("/")[2] in names}
    if len(branches) > 2 and named == set(chosen):
        test = f"== {names[0]!r}" if len(names) == 1 else f"in {names!r}"
        return f'lambda path: path.split("/")[-1] {test}'
    return repr(branches[0]) if len(branches) == 1 else repr(branches)


def _branches(chosen: set[str], paths: Paths) -> list[str]:
    roots: dict[str, None] = {}
    for path in paths:
        if path in chosen:
            parts = path.split("/")
            tops = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
            roots[next(top for top in tops if _below(top, paths) <= chosen)] = None
    return list(roots)


def _below(top: str, paths: Iterable[str]) -> set[str]:
    return {path for path in paths if path == top or path.startswith(f"{top}/")}
