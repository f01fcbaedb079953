"""Parameter groups: different hyperparameters for some leaves, which are named by their paths."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import jax
import optax

from .._typing import PyTree
from ._hyperparameters import ScalarOrSchedule, settable
from ._lbfgs import lbfgs
from ._leafwise import leaf_path

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
