"""tree_of: the Tree of a Flax module, NNX or Linen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flax import linen, nnx

from .linen_tree import LinenTree
from .nnx_tree import NNXTree
from .tree import FlaxModule, Tree, Variables


def tree_of(
    module: FlaxModule,
    inputs: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    variables: Variables | None = None,
) -> Tree:
    """The tree of a module.

    Args:
      module: an NNX module, or a Linen module (`inputs` needed, `bind` not).
      inputs: the arguments of one call of a Linen module; arrays or `jax.ShapeDtypeStruct`s.
      kwargs: keyword arguments of that call.
      variables: the Linen module's variables, if there are any.

    Raises:
      TypeError: not a Flax module, or a Linen module without inputs.
    """
    if isinstance(module, nnx.Module):
        return NNXTree(module)
    if isinstance(module, linen.Module):
        if inputs is None:
            raise TypeError(
                f"{type(module).__name__} is a Linen module, which only knows its layers when it is called: "
                "give inputs=(x,), the arguments of one call (shapes are enough: jax.ShapeDtypeStruct)."
            )
        return LinenTree(module, tuple(inputs), dict(kwargs or {}), variables)
    raise TypeError(
        f"{type(module).__module__}.{type(module).__qualname__} is no Flax module; load_torch and its like "
        "take an nnx.Module or a flax.linen.Module first, and torch's second."
    )
