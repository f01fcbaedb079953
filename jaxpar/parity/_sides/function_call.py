"""FunctionCall: a function with arguments, tried to learn whether it computes in torch or in JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import torch
from flax import linen, nnx

from ..._upstream.keras_layers import is_of_keras
from .._tensors import is_tensor, tensor_of
from .call_arguments import Call
from .outputs import named


class FunctionCall:
    """A model, and the arguments of its first call; `is_function` is False for modules and pytrees."""

    def __init__(self, model: Any, inputs: Any, kwargs: Mapping[str, Any] | None):
        self.model, self.inputs, self.kwargs = model, inputs, kwargs
        modules = torch.nn.Module | nnx.Module | linen.Module | type
        # An Equinox module is callable, too, and has leaves.
        is_pytree = not jax.tree_util.all_leaves([model])
        is_module = isinstance(model, modules) or is_of_keras(model)
        self.is_function = callable(model) and not is_pytree and not is_module

    @functools.cached_property
    def runs_in_jax(self) -> bool:
        return bool(self._tried(lambda call: jax.tree.leaves(jax.eval_shape(_calling(self.model), call))))

    @functools.cached_property
    def runs_in_torch(self) -> bool:
        def outputs(call: Call) -> list[Any]:
            return [*named(_calling(self.model)(call.map(_tensor)), is_tensor)]

        # Only tried: the function may draw random numbers.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return bool(self._tried(outputs))

    def _tried(self, outputs: Callable[[Call], list[Any]]) -> list[Any]:
        try:
            inputs = self.inputs(1) if callable(self.inputs) else self.inputs
            return outputs(Call.of(inputs, self.kwargs))
        except Exception:
            return []  # the user's code may raise anything on the other framework's arrays


def _calling(function: Callable[..., Any]) -> Callable[[Call], Any]:
    return lambda call: function(*call.args, **call.kwargs)


def _tensor(x: np.ndarray) -> torch.Tensor:
    return tensor_of(np.array(x, order="C"))
