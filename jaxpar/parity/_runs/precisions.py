"""Read the type in which each operation of a model or a training step runs, of either framework."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .operation_types import OperationType


def precisions(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[OperationType, ...]:
    """Return the type in which each operation of a model or a training step runs, in order.

    A torch function, module or step runs once; a function of JAX is traced and does not run.
    Operations of the backward pass and of an optimizer are left out: their types follow from the forward
    pass and from the parameters'. `Tap(precisions=...)` writes them for `bisect`, and at the levels
    "numeric", "as it runs" and "trajectory" `compare` names those that are the reason for a difference.

    Args:
      function: a torch module or function, an NNX module, or a function of JAX.
      *args, **kwargs: its arguments; torch tensors for torch.

    No torch counterpart.

    >>> import jax, jax.numpy as jnp
    >>> from jaxpar import parity
    >>> def attend(scores):
    ...     return jax.nn.softmax(scores.astype(jnp.bfloat16)).astype(jnp.float32)
    >>> [(row.operation, row.label) for row in parity.precisions(attend, jnp.ones((2, 3), jnp.float32))]
    [('softmax', 'bfloat16')]
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        from .torch_types import TorchTypes, has_tensors

        if isinstance(function, torch.nn.Module) or has_tensors((args, kwargs)):
            with TorchTypes(function) as reading:
                function(*args, **kwargs)
            return tuple(reading.rows)
    from .._sides.jax_in_types import JaxTypes

    types = JaxTypes()
    types.read(function, args, kwargs)
    return types.operations
