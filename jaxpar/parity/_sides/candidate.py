"""Candidate: the side of the model that is compared with torch's, in JAX or in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from .._weights.pytree_model import is_of_torch
from .._weights.tree import Variables
from .flax_side import FlaxSide
from .step_data import Task

if TYPE_CHECKING:
    from .torch_candidate import TorchCandidate

Candidate: TypeAlias = "FlaxSide | TorchCandidate"


def candidate_side(
    module: Any, task: Task, dtype: str, variables: Variables | None = None, *arguments: Any, **options: Any
) -> Candidate:
    if is_of_torch(module):
        from .torch_candidate import TorchCandidate  # torch, which a record does without

        return TorchCandidate(module, task, dtype, *arguments, **options)
    return FlaxSide(module, task, dtype, variables, *arguments, **options)
