"""Asks jaxpar.parity about a case, and keeps what the page needs of the answer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from jaxpar import parity

from .case import Case

SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one comparison said.

    Attributes:
      same: its verdict.
      tensors: how many it compared, over all steps.
      relative: semantic: max|c - r| / max|r| of the worst tensor that is not noise.
      ratio_rms, ratio_max: numeric: the largest ratios of error to the reference's own.
      where: the tensor with the largest number.
      layer: the first layer that differs.
      causes: what the catalogue says would make it equal.
      seconds: with building, compiling and searching.
    """

    name: str
    same: bool
    tensors: int
    relative: float
    ratio_rms: float
    ratio_max: float
    where: str
    layer: str
    causes: tuple[str, ...]
    seconds: float


def pair(case: Case, seed: int) -> tuple[Any, Any, dict[str, Any]]:
    """The torch module, the Flax module, and the arguments of `compare` after them."""
    torch.manual_seed(seed)
    random = np.random.RandomState(seed)
    reference = case.torch().train(case.training)
    shake(reference)
    arguments = {
        "inputs": tuple(make(random) for make in case.inputs),
        "targets": tuple(make(random) for make in case.targets),
        "loss": case.loss,
        "optimizer": case.optimizer,
        "steps": case.steps,
        "layout": case.layout,
        "seed": seed,
    }
    return reference, undrawn(case.flax, seed), arguments


def undrawn(build: Callable[[nnx.Rngs], Any], seed: int) -> Any:
    """The Flax module with zeros as weights: torch's are coming, and drawing takes longer than comparing."""
    made: list[Any] = []

    def state() -> Any:
        module = build(nnx.Rngs(seed))
        made.extend(nnx.split(module) if isinstance(module, nnx.Module) else (module, ()))
        return made[1]

    shapes = jax.eval_shape(state)
    return nnx.merge(made[0], jax.tree.map(zeros, shapes)) if isinstance(made[0], nnx.GraphDef) else made[0]


def zeros(x: jax.ShapeDtypeStruct) -> jax.Array:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    return jnp.asarray(np.zeros(x.shape, x.dtype))


def shake(module: torch.nn.Module) -> None:
    """Weights as after some training: a scale of 1 or a bias of 0 would hide that it is not used."""
    with torch.no_grad():
        for tensor in module.parameters():
            tensor += 0.1 * torch.randn_like(tensor)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.1 * torch.randn_like(buffer)
            if name.endswith("running_var"):
                buffer *= 1 + 0.5 * torch.rand_like(buffer)


def ask(case: Case, level: str = "semantic", seed: int = 0) -> Answer:
    """One comparison. At the numeric level, training over several steps is a trajectory."""
    started = time.perf_counter()
    reference, candidate, arguments = pair(case, seed)
    if level == "numeric" and case.optimizer:
        level = "trajectory"
    comparison = parity.compare(reference, candidate, level=level, **arguments)
    judged = [row for row in comparison.rows if row.outcome is not parity.Outcome.NOISE]
    worst = max(judged, key=lambda row: row.severity)
    divergence = comparison.divergence
    return Answer(
        case.name,
        comparison.same,
        len(comparison.rows),
        worst.difference.relative,
        max(row.difference.ratio_rms or 0.0 for row in judged),
        max(row.difference.ratio_max or 0.0 for row in judged),
        f"{worst.difference.kind.value} {worst.difference.name}".strip(),
        divergence.reference if divergence else "",
        tuple(cause.text for cause in divergence.causes) if divergence else (),
        time.perf_counter() - started,
    )
