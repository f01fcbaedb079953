"""A training step as shapes: module, optimizer and the rows of one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

from ..._parallel.data_parallel import DataParallel
from ..._parallel.placement import Placement
from ..._training.distributed_data_parallel import DistributedDataParallel
from ..._typing import PyTree
from ...errors import NoRowsError
from ..compiled import shapes

BUFFERS = nnx.Not(nnx.Param)


class Loss(nnx.Module):
    """The loss of a replica's own rows as a module with one row, so that replicas compute theirs alone."""

    def __init__(self, net: nnx.Module, loss_fn: Callable[..., Any]):
        self.net, self.loss_fn = net, loss_fn

    def __call__(self, *batch: PyTree) -> jax.Array:
        loss = self.loss_fn(self.net, *batch)
        if jnp.shape(loss) != ():
            raise TypeError(
                f"estimate: loss_fn must return a scalar and returned shape {jnp.shape(loss)}; "
                "take its mean or its sum."
            )
        return jnp.asarray(loss)[None]


@dataclasses.dataclass(frozen=True)
class Step:
    """What is trained, all of it shapes.

    Attributes:
      graphdef, params, buffers: the module's parts, as `nnx.split` gives them.
      optimizer: the optimizer's state. batch: the arguments of `loss_fn` after the module, for one device.
      rows: of one device.
    """

    model: str
    graphdef: Any
    params: PyTree
    buffers: PyTree
    optimizer: PyTree
    batch: tuple
    rows: int
    loss_fn: Callable[..., Any]
    tx: optax.GradientTransformation

    def differentiate(self, params: PyTree, buffers: PyTree, batch: tuple) -> tuple:
        """One replica's loss, buffers after it, and gradients."""
        return self._differentiate(params, buffers, batch, lambda module: module)

    def train(
        self, placement: Placement | None, params: PyTree, state: PyTree, buffers: PyTree, batch: tuple
    ) -> tuple:
        """A whole step: on the devices of `placement`, or on one."""
        wrap = (lambda module: DataParallel(module, placement)) if placement else (lambda module: module)
        loss, changed, gradients = self._differentiate(params, buffers, batch, wrap)
        updates, state = self.tx.update(gradients, state, params)
        return loss, optax.apply_updates(params, updates), state, changed

    def _differentiate(
        self, params: PyTree, buffers: PyTree, batch: tuple, wrap: Callable[[Any], Any]
    ) -> tuple:
        def loss_of(params: PyTree) -> tuple[jax.Array, PyTree]:
            net = nnx.merge(self.graphdef, params, buffers, copy=True)
            losses = wrap(Loss(net, self.loss_fn))(*batch)
            return losses.mean(), nnx.state(net, BUFFERS)

        (loss, changed), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        return loss, changed, gradients

    def rows_of(self, n: int) -> tuple:
        """The batch of n devices."""
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((n * x.shape[0], *x.shape[1:]), x.dtype), self.batch
        )


def plan(net: Any, loss_fn: Callable[..., Any], batch: tuple, tx: Any) -> Step:
    """Reads what the user passed; nothing is allocated.

    Raises:
      TypeError: not a module, not an optimizer. NoRowsError: a batch without rows.
    """
    if not isinstance(net, nnx.Module):
        net = _built(net)
    if isinstance(tx, nnx.Optimizer):
        tx = tx.tx
    if tx is None:
        tx = optax.identity()
    if not (hasattr(tx, "init") and hasattr(tx, "update")):
        raise TypeError(
            "estimate: optimizer must be an optax transformation (optax.adam(1e-3)) or an nnx.Optimizer, "
            f"not a {type(tx).__name__}."
        )
    if isinstance(net, (DataParallel, DistributedDataParallel)):
        inner: Any = net
        net = inner.module
    graphdef, params, buffers = nnx.split(net, nnx.Param, ...)
    params, buffers = shapes((params, buffers))
    given = _batch(batch)
    state = jax.eval_shape(tx.init, params)
    return Step(
        model=type(net).__name__,
        graphdef=graphdef,
        params=params,
        buffers=buffers,
        optimizer=state,
        batch=given,
        rows=jax.tree.leaves(given)[0].shape[0],
        loss_fn=loss_fn,
        tx=tx,
    )


def _built(make_net: Any) -> nnx.Module:
    linen_module = isinstance(make_net, linen.Module)  # callable as well, and not without its variables
    net = nnx.eval_shape(make_net) if callable(make_net) and not linen_module else make_net
    if not isinstance(net, nnx.Module):
        raise TypeError(
            "estimate: net must be an nnx.Module or a function that makes one, not "
            f"a {type(net).__name__}. A Linen module becomes one by "
            "nnx.bridge.lazy_init(nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0)), x)."
        )
    return net


def _batch(batch: Any) -> tuple:
    batch = batch if isinstance(batch, tuple) else (batch,)
    named = jax.tree.leaves_with_path(batch)
    for path, leaf in named:
        name = "batch" + jax.tree_util.keystr(path)
        if not isinstance(leaf, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)) or not leaf.shape:
            raise NoRowsError(
                f"estimate: {name} is {leaf!r}, which has no rows; a batch holds the arrays of one "
                "device, or jax.ShapeDtypeStruct((rows, ...), dtype)."
            )
    counts = {leaf.shape[0] for _, leaf in named}
    if len(counts) != 1 or not min(counts):
        raise NoRowsError(
            f"estimate: the arrays of batch must have the same number of rows, at least 1; they have "
            f"{', '.join(map(str, sorted(counts))) or 'none'}."
        )
    return shapes(batch)
