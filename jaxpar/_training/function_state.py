"""FunctionState: the parameters of a function, their optax transformation and its state."""

from __future__ import annotations

from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from .._tree import has_shape
from .._typing import PyTree
from ..errors import OptimizerError


class FunctionState(struct.PyTreeNode):
    """What a function is trained with: parameters, an optax transformation, and the transformation's state.

    >>> import jax.numpy as jnp, jaxpar, optax
    >>> state = jaxpar.FunctionState.create({"w": jnp.ones((3, 1))}, optax.sgd(0.1))
    >>> net = jaxpar.DistributedDataParallel(lambda params, x: x @ params["w"])
    >>> step = jaxpar.train_step(net, state, lambda net, x: (net(x) ** 2).mean())
    >>> loss = step(jnp.ones((8, 3)))
    >>> step.state.params["w"].shape
    (3, 1)

    A pytree, which a Checkpointer saves and restores. Floating arrays of `params` are trained. Other arrays
    are carried, and texts, functions and Python's numbers are a part of the compiled program.

    Attributes:
      params: any tree, or an object that is one, such as an Equinox module.
      tx: the optax transformation.
      opt_state: its state, as `tx.init` makes it for a tree that has None for every leaf that is not trained.
      buffers: any tree that the function returns anew, such as Haiku's state; None for a function without.

    torch counterpart: none. Flax's is `TrainState`.
    """

    params: PyTree
    opt_state: PyTree
    tx: optax.GradientTransformation = struct.field(pytree_node=False)
    buffers: PyTree = None

    @classmethod
    def create(
        cls, params: PyTree, tx: optax.GradientTransformation, buffers: PyTree = None
    ) -> FunctionState:
        """Return the state before the first update.

        >>> import jax.numpy as jnp, jaxpar, optax
        >>> state = jaxpar.FunctionState.create({"w": jnp.ones(3), "heads": 4}, optax.adam(0.1))
        >>> state.opt_state[0].mu
        {'heads': None, 'w': Array([0., 0., 0.], dtype=float...)}

        Args:
          params: the parameters.
          tx: the optax transformation.
          buffers: see `FunctionState`.

        Raises:
          TypeError: `tx` is not an optax transformation.
        """
        check_transformation(tx)
        return cls(params=params, opt_state=tx.init(trainable(params)), tx=tx, buffers=buffers)

    def apply_gradients(self, *, grads: PyTree, **values: Any) -> FunctionState:
        """Return the state after an update; `values` go to transformations that take any, such as `value=`.

        >>> import jax.numpy as jnp, jaxpar, optax
        >>> state = jaxpar.FunctionState.create({"w": jnp.ones(3)}, optax.sgd(0.5))
        >>> state.apply_gradients(grads={"w": jnp.ones(3)}).params["w"]
        Array([0.5, 0.5, 0.5], dtype=float...)

        Args:
          grads: a gradient for every parameter that is trained. Those of others are not read.
        """
        trained = trainable(self.params)
        grads = jax.tree.map(lambda p, g: g if is_trainable(p) else None, self.params, grads)
        tx = optax.with_extra_args_support(self.tx)
        updates, opt_state = tx.update(grads, self.opt_state, trained, **values)
        after = iter(jax.tree.leaves(optax.apply_updates(trained, updates)))
        params = jax.tree.map(lambda x: next(after) if is_trainable(x) else x, self.params)
        return self.replace(params=params, opt_state=opt_state)


def is_trainable(leaf: object) -> bool:
    """Whether it is a floating array."""
    return is_data(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def is_data(leaf: object) -> TypeGuard[Any]:
    return has_shape(leaf) or isinstance(leaf, np.generic)


def trainable(tree: PyTree) -> PyTree:
    """Return the tree with None for what is not trained."""
    return jax.tree.map(lambda x: x if is_trainable(x) else None, tree)


def is_transformation(tx: Any) -> bool:
    return callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))


def check_transformation(tx: Any) -> None:
    if not is_transformation(tx):
        raise TypeError(f"FunctionState: tx must be an optax transformation, not {type(tx).__name__}.")


def check_state(state: FunctionState) -> None:
    """Raise OptimizerError unless `opt_state` is one of `tx` for the trained leaves."""
    expected = jax.eval_shape(state.tx.init, trainable(state.params))
    trees = state.opt_state, expected
    structures: list[Any] = [jax.tree.structure(tree) for tree in trees]
    shapes = [[np.shape(x) for x in jax.tree.leaves(tree)] for tree in trees]
    if structures[0] != structures[1] or shapes[0] != shapes[1]:
        raise OptimizerError(
            "train_step: opt_state is not the one that tx.init makes for the floating arrays of params: it "
            f"has {len(shapes[0])} arrays, and {len(shapes[1])} belong there. Leave it out, (params, tx), or "
            "make it of a tree with None for every leaf that is not trained (Equinox: "
            "eqx.filter(model, eqx.is_inexact_array))."
        )
