"""Changes: what a call of a torch module changes apart from the state that is compared.

Tensors count how often they were written to, through whatever alias, and numbers that a module keeps can be
looked at. So this sees what happened and not how it was written: it is a net below the translation, which
makes holes of the ways of writing that it knows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jax.tree_util import keystr, tree_flatten_with_path
from torch import nn

from ...errors import PortError

NUMBERS = bool | int | float | str | torch.Size
OWN = frozenset(vars(nn.Module()))
"""What every module keeps, its tensors among it."""
Place = str


def unseen(make: Callable[[], nn.Module], inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Place]:
    """What a call changes where no comparison looks, in training or in evaluation.

    It is the second call that is looked at: tables that the first one makes are not changed by it.
    """
    found: set[Place] = set()
    for training in (True, False):
        module = make().train(training)
        with torch.no_grad():
            module(*_copied(inputs), **_copied(kwargs))
            given = _copied((tuple(inputs), dict(kwargs)))
            kept = _tensors("argument", given), _kept(module)
            before = [_counted(each) for each in kept]
            module(*given[0], **given[1])
            after = _counted(kept[0]), _counted(_kept(module))
        for was, now in zip(before, after, strict=True):
            found |= {place for place in was.keys() | now.keys() if _differs(was.get(place), now.get(place))}
    return sorted(found)


def require_no_other_state(
    make: Callable[[], nn.Module], inputs: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raises a PortError that names what `unseen` finds."""
    if found := unseen(make, inputs, kwargs):
        raise PortError(f"a call changes {', '.join(found)}, where no comparison looks")


def _copied(given: Any) -> Any:
    return copy.deepcopy(given)


def _kept(module: nn.Module) -> dict[Place, Any]:
    """The tensors and numbers of a module that are not in its state."""
    state = {id(x) for x in module.state_dict(keep_vars=True).values()}
    found: dict[Place, Any] = {}
    for path, each in module.named_modules():
        own = {name: x for name, x in vars(each).items() if name not in OWN}
        for name, value in {**own, **each._buffers}.items():
            found |= _tensors(f"{path}.{name}".lstrip("."), value)
    return {place: x for place, x in found.items() if id(x) not in state}


def _tensors(place: Place, value: Any) -> dict[Place, Any]:
    """The tensors and numbers in lists, tuples and dicts."""
    leaves = tree_flatten_with_path(value)[0]
    return {f"{place}{keystr(path)}": x for path, x in leaves if isinstance(x, torch.Tensor | NUMBERS)}


def _counted(found: Mapping[Place, Any]) -> dict[Place, tuple[Any, int]]:
    """With how often a tensor was written to."""
    return {place: (x, getattr(x, "_version", 0)) for place, x in found.items()}


def _differs(was: tuple[Any, int] | None, now: tuple[Any, int] | None) -> bool:
    """Of one tensor whether it was written to; of two, as weight_norm computes its own anew, by value."""
    if was is None or now is None:
        return True  # it was not there, or is no longer
    if was[0] is now[0]:
        return was[1] != now[1]
    if isinstance(was[0], torch.Tensor) and isinstance(now[0], torch.Tensor):
        return not torch.equal(was[0], now[0])
    return bool(was[0] != now[0])
