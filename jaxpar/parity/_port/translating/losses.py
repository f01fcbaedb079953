"""Losses and distances as modules, written as functions: `nn.MSELoss(reduction="sum")` has no state."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from torch import nn

from jaxpar.nn.channels_first import functional

from .context import Context
from .expressions import text
from .fragment import Fragment, Hole

MODULES = (nn.MSELoss.__module__, nn.CosineSimilarity.__module__)
"""The files of torch whose layers have no parameters and call one function."""
CALLED = re.compile(r"\bF\.(\w+)\(")
"""The function that torch's `forward` calls."""


def loss(ctx: Context, node: ast.Call, target: type) -> Fragment | None:
    """Write the constructor of a loss or distance as its function with arguments; None for other layers.

    Raises:
      Hole: jaxpar has no such function or argument, or the loss keeps weights, which are a buffer in torch.
    """
    if target.__module__ not in MODULES:
        return None
    match = CALLED.search(inspect.getsource(target.forward))  # type: ignore[attr-defined]
    function: Any = getattr(functional, match[1], None) if match else None
    if match is None or function is None:
        raise Hole(f"jaxpar has no {target.__name__}")
    names = [*inspect.signature(target).parameters]
    arguments = dict(zip(names, node.args, strict=False)) | {part.arg: part.value for part in node.keywords}
    if any(ctx.is_tensor(part) for part in arguments.values()):
        raise Hole(f"weights of a loss are a buffer; pass them to F.{match[1]} in the call")
    if None in arguments or not arguments.keys() <= inspect.signature(function).parameters.keys():
        raise Hole(f"jaxpar's {match[1]} does not have all of these arguments")
    if not arguments:
        return Fragment(f"F.{match[1]}")
    ctx.needs.imports["partial"] = "from functools import partial"
    return Fragment(
        f"partial(F.{match[1]}, {', '.join(f'{name}={text(ctx, x)}' for name, x in arguments.items())})"
    )
