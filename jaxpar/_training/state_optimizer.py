"""state_optimizer: a TrainState without its parameters, as the optimizer of a step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._tree import has_shape
from .tree_fields import TreeFields

PARAMS = "params"


class StateOptimizer(nnx.Optimizer):
    """A state without the variables that a net holds, named `without`; an update is its `apply_gradients`."""

    def __init__(self, state: Any, without: tuple[str, ...]):
        self.without, self.wrt, self.tx = without, nnx.Param, getattr(state, "tx", None)
        self.fields = TreeFields(self, self._bare(state), _kind)

    def state(self, net: Any) -> Any:
        return self.fields.read(self).replace(**held_by(net).variables)

    def update(self, model: Any, grads: Any, **kwargs: Any) -> None:
        net, state = held_by(model), self.state(model)
        if self.tx is not None:  # a step's, which is given the loss
            state = state.replace(tx=self.tx)
        after = state.apply_gradients(grads=self._gradients(net, grads), **kwargs)
        net.fields.write(net, {PARAMS: after.params})
        after = after.replace(opt_state=jax.tree.map(_moment, after.opt_state, state.opt_state))
        self.fields.write(self, self._bare(after))

    def tree_of(self, net: Any, state: nnx.State) -> Any:
        """Return values of what is trained in the structure of the parameters, None for what is not."""
        of_name = _by_name(state)
        return held_by(net).fields.tree_of(of_name.get, lambda leaf: None)[PARAMS]

    def _gradients(self, net: Any, grads: nnx.State) -> Any:
        """Return gradients of all parameters, zero for what is not trained, whose result is not read."""
        of_name = _by_name(grads)

        def gradient(name: str) -> Any:
            return of_name[name] if name in of_name else jnp.zeros(getattr(net, name).shape)

        def zero(leaf: Any) -> Any:
            return jnp.zeros(()) if isinstance(leaf, (int, float, complex)) else leaf

        return net.fields.tree_of(gradient, zero)[PARAMS]

    def leaves_of(self, net: Any, params: Any, form: Any) -> list:
        """Return the trained leaves of a tree of parameters in the order of the structure `form`."""
        of_name = held_by(net).fields.by_name({PARAMS: params})
        numbered = nnx.to_flat_state(form.unflatten(range(form.num_leaves)))
        name_at = {variable.get_raw_value(): path[-1] for path, variable in numbered}
        return [of_name[name_at[i]] for i in range(form.num_leaves)]

    def _bare(self, state: Any) -> Any:
        return state.replace(**dict.fromkeys(self.without))


def is_train_state(state: Any) -> bool:
    """Whether it has what Flax's TrainState has."""
    return all(hasattr(state, name) for name in (PARAMS, "opt_state", "apply_gradients", "replace"))


def _by_name(state: nnx.State) -> dict[str, Any]:
    return {path[-1]: leaf[...] for path, leaf in nnx.to_flat_state(state)}


def _moment(new: Any, old: Any) -> Any:
    """Return a moment of a leaf; one of an integer, which is not trained, stays an integer."""
    floats = jnp.issubdtype(jnp.result_type(new), jnp.floating)
    return old if floats and jnp.issubdtype(jnp.result_type(old), jnp.integer) else new


def held_by(net: Any) -> Any:
    """Return what holds a state's variables: the net, or what it wraps."""
    return net if hasattr(net, "fields") else net.module


def _kind(name: str, leaf: Any) -> type[nnx.Variable] | None:
    del name
    return nnx.OptState if has_shape(leaf) or isinstance(leaf, (int, float, complex, np.generic)) else None
