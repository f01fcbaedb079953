"""misuse: calls of a DistributedDataParallel whose gradient nothing would average, refused."""

from __future__ import annotations

from typing import Any

import jax

from .._tree import is_staged
from .._typing import PyTree
from ..errors import GradientError, StagedError
from .engine_state import EngineState
from .world import World


def check_staged(world: World, state: EngineState) -> None:
    if not is_staged():
        return
    what = "several processes" if world.size > 1 else "no_sync()"
    if (
        world.size > 1
        or not state.synchronises
        or (state.replica_state is not None and state.replica_state.gradients)
    ):
        raise StagedError(
            f"value_and_grad: called inside jax.jit (or nnx.jit), which cannot be done with {what}: it "
            "compiles its own program over all devices. Call it outside, or use jaxpar.train_step, which "
            "compiles the whole step."
        )


@jax.custom_vjp
def without_gradient(outputs: PyTree) -> PyTree:
    return outputs


def _forward(outputs: PyTree) -> tuple[PyTree, None]:
    return outputs, None


def _backward(residual: None, cotangents: PyTree) -> Any:
    # Without this the gradient would be the sum over this process's replicas: no mean, and not the others'.
    raise GradientError(
        "DistributedDataParallel: net(x) is not differentiated, because nothing would average the gradient "
        "over the replicas. Write net.value_and_grad(loss_fn)(x, y), or jaxpar.train_step."
    )


without_gradient.defvjp(_forward, _backward)
