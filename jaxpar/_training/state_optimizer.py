"""state_optimizer: a TrainState without its parameters, as the optimizer of a step."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._tree import has_shape
from .tree_fields import TreeFields

PARAMS = "params"


class StateOptimizer(nnx.Optimizer):
    """A state without the variables that a net holds, named `without`; an update is its `apply_gradients`."""

    def __init__(self, state: Any, without: tuple[str, ...]):
        self.without, self.wrt = without, nnx.Param
        self.fields = TreeFields(self, self._bare(state), _kind)

    def state(self, net: Any) -> Any:
        return self.fields.read(self).replace(**held_by(net).variables)

    def update(self, model: Any, grads: Any, **kwargs: Any) -> None:
        net, state = held_by(model), self.state(model)
        of_name = {path[-1]: leaf[...] for path, leaf in nnx.to_flat_state(grads)}

        def gradient(name: str) -> Any:
            # A leaf that is not trained has one for `apply_gradients`, whose result for it is not read.
            return of_name[name] if name in of_name else jnp.zeros_like(getattr(net, name)[...])

        gradients = net.fields.tree_of(gradient)[PARAMS]
        after = state.apply_gradients(grads=gradients, **kwargs)
        net.fields.write(net, {PARAMS: after.params})
        self.fields.write(self, self._bare(after))

    def _bare(self, state: Any) -> Any:
        return state.replace(**dict.fromkeys(self.without))


def held_by(net: Any) -> Any:
    """Return what holds a state's variables: the net, or what it wraps."""
    return net if hasattr(net, "fields") else net.module


def _kind(name: str, leaf: Any) -> type[nnx.Variable] | None:
    del name
    return nnx.OptState if has_shape(leaf) or isinstance(leaf, (int, float, complex, np.generic)) else None
