"""Backward: the gradients of a call, so that operations with gradients of their own are seen running."""

from __future__ import annotations

from typing import Any

import torch

from ..._sides.torch_side import named_leaves
from .scope import defined_by_user


def has_functions() -> bool:
    """Return whether the user has defined a torch.autograd.Function."""
    return any(defined_by_user(kind) for kind in torch.autograd.Function.__subclasses__())


def differentiate(outputs: Any) -> None:
    """Run the backward pass of all outputs that have one."""
    terms = [x.sum() for x in named_leaves(outputs).values() if x.requires_grad]
    if terms:
        torch.stack([term.abs() if term.is_complex() else term for term in terms]).sum().backward()
