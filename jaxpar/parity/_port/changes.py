"""Changes: the side effects of calling a torch module that the comparison of its state misses.

Observing the effect also catches writes in a form that the translation does not recognise.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jax.tree_util import keystr, tree_flatten_with_path
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from ...errors import PortError
from .reading.scope import defined_by_user

NUMBERS = bool | int | float | str | torch.Size
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # The attributes of every module, which hold its tensors
Location = str
Unread = frozenset[tuple[type | None, str]]
"""Attributes, by class and name, that calls change and no later call reads."""


@dataclasses.dataclass(frozen=True)
class Held:
    """A tensor of a user's object, which a compiled step would forget: a replaced one is a change."""

    tensor: torch.Tensor

    @property
    def _version(self) -> int:
        return self.tensor._version


def hidden_changes(
    make: Callable[[], nn.Module],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    unread: Unread = frozenset(),
) -> list[Location]:
    """Return the paths of the uncompared tensors and numbers that a call changes, in either mode."""
    changes: set[Location] = set()
    for training in (True, False):
        # The second call is compared: the first one may build tables that later calls only read.
        module = make().train(training)
        with torch.no_grad():
            # A copy for each call: a module that writes to its arguments would change the next call's.
            first, arguments = (copy.deepcopy((tuple(inputs), dict(kwargs))) for _ in range(2))
            module(*first[0], **first[1])
            tracked = _tensors("argument", arguments), _untracked(module, unread)
            before = [_with_versions(tensors) for tensors in tracked]
            module(*arguments[0], **arguments[1])
            after = _with_versions(tracked[0]), _with_versions(_untracked(module, unread))
        for was, now in zip(before, after, strict=True):
            changes |= {path for path in was.keys() | now.keys() if _differs(was.get(path), now.get(path))}
    return sorted(changes)


def require_no_other_state(
    make: Callable[[], nn.Module], inputs: Sequence[Any], kwargs: Mapping[str, Any], unread: Unread
) -> None:
    if changes := hidden_changes(make, inputs, kwargs, unread):
        raise PortError(f"a call changes {', '.join(changes)}, where no comparison looks")


def _untracked(module: nn.Module, unread: Unread) -> dict[Location, Any]:
    # Without keep_vars, state_dict detaches its tensors, and their ids match nothing.
    state = {id(x) for x in module.state_dict(keep_vars=True).values()}
    tensors: dict[Location, Any] = {}
    for path, submodule in module.named_modules():
        # spectral_norm's weight is computed from `weight_orig`, which is compared.
        hooks = submodule._forward_pre_hooks.values()
        computed = MODULE_ATTRIBUTES | {hook.name for hook in hooks if isinstance(hook, SpectralNorm)}
        computed |= {name for kind, name in unread if kind in type(submodule).__mro__}
        attributes = {name: x for name, x in vars(submodule).items() if name not in computed}
        # Buffers with persistent=False are not in the state dict, so `state` leaves them in.
        for name, value in {**attributes, **submodule._buffers}.items():
            tensors |= _tensors(f"{path}.{name}".lstrip("."), value, unread=unread)
    return {path: x for path, x in tensors.items() if id(x) not in state}


def _tensors(
    prefix: Location, value: Any, outer: frozenset[int] = frozenset(), unread: Unread = frozenset()
) -> dict[Location, Any]:
    """Return the tensors and numbers in containers, and in the user's objects except modules."""
    tensors: dict[Location, Any] = {}
    for path, x in tree_flatten_with_path(value)[0]:
        name = f"{prefix}{keystr(path)}"
        if isinstance(x, torch.Tensor | NUMBERS):
            tensors[name] = Held(x) if outer and isinstance(x, torch.Tensor) else x
        elif defined_by_user(type(x)) and not isinstance(x, nn.Module) and id(x) not in outer:
            for attribute, inner in getattr(x, "__dict__", {}).items():
                if (type(x), attribute) not in unread:
                    tensors |= _tensors(f"{name}.{attribute}", inner, outer | {id(x)}, unread)
    return tensors


def _with_versions(tensors: Mapping[Location, Any]) -> dict[Location, tuple[Any, int]]:
    # A number has no counter: it cannot be written to, only replaced.
    return {name: (x, getattr(x, "_version", 0)) for name, x in tensors.items()}


def _differs(was: tuple[Any, int] | None, now: tuple[Any, int] | None) -> bool:
    """weight_norm computes its weight anew at each call, so a new object alone is not a change."""
    if was is None or now is None:
        return True  # it was not there, or is no longer
    is_held = isinstance(was[0], Held) or isinstance(now[0], Held)
    if is_held and getattr(was[0], "tensor", None) is not getattr(now[0], "tensor", None):
        return True
    if is_held or was[0] is now[0]:
        return was[1] != now[1]
    if isinstance(was[0], torch.Tensor) and isinstance(now[0], torch.Tensor):
        return not torch.equal(was[0], now[0])
    return bool(was[0] != now[0])
