"""Read the settings of optax's transformations, which exist in their functions' closures alone.

`parity.compare_loops` describes a chain by them, and checks that the description computes its updates. A
transformation that had its settings as attributes would make this file unnecessary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optax


def made_by(tx: optax.GradientTransformation) -> tuple[str, dict[str, Any]]:
    """Return the name of the function of optax or jaxpar that made `tx`, and the values that `tx` holds."""
    function: Any = tx.update
    owner = getattr(function, "__self__", None)
    if isinstance(owner, optax.MultiSteps):
        values = {"every": owner._every_k_schedule, "mean": owner._use_grad_mean}
        return "MultiSteps", {"inner": owner.inner_opt, **values}
    if not str(getattr(function, "__module__", "")).startswith(("optax.", "jaxpar.")):
        return "", {}
    name = function.__qualname__.partition(".<locals>")[0]
    values = {**_held(tx.init), **_held(function)}
    if name == "chain":
        pairs = zip(values["init_fns"], values["update_fns"], strict=True)
        return name, {"parts": [optax.GradientTransformationExtraArgs(*pair) for pair in pairs]}
    if name == "named_chain":
        return "chain", {"parts": [part for _, part in values["transforms"]]}
    return name, values


def _held(function: Callable[..., Any]) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    values = dict(zip(names, (cell.cell_contents for cell in cells), strict=True))
    maker = getattr(function, "__qualname__", "").partition(".<locals>")[0]
    inner = [x for x in values.values() if getattr(x, "__qualname__", "").startswith(f"{maker}.<locals>.")]
    for x in inner:  # functions of the same maker hold settings, too: scale_by_radam's epsilon
        values = {**_held(x), **values}
    return values
