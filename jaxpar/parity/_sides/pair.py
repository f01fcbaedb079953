"""Pair: the two modules that should be the same, which leaf is which, and sides of them in any type."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import torch
from flax import linen

from .._judge import Level
from .._levels import Sides
from .._weights import Links, links_of
from .flax_side import FlaxSide
from .task import Batch, Task
from .torch_masks import refuse_unwatchable
from .torch_side import TorchSide


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two modules and their task.

    Attributes:
      variables: of a Linen module; zeros where the weights are torch's.
      links: which Flax leaf is made of which torch tensors.
      weights: "torch" if Flax gets torch's, "own" if each keeps its own.
    """

    torch_module: torch.nn.Module
    flax_module: Any
    variables: Any
    task: Task
    links: Links
    weights: str
    _made: dict[str, FlaxSide] = dataclasses.field(default_factory=dict, compare=False)
    """One side of each type: its compiled step serves all that follow."""

    @staticmethod
    def check(torch_module: Any) -> None:
        if not isinstance(torch_module, torch.nn.Module):
            raise TypeError(
                f"parity.compare: the first argument is a torch.nn.Module, not {type(torch_module).__name__}."
            )

    @classmethod
    def of(
        cls,
        torch_module: torch.nn.Module,
        flax_module: Any,
        task: Task,
        mapping: Any,
        weights: str,
        variables: Any,
        batch: Batch,
    ) -> Pair:
        """Matches the leaves; `batch` is what a Linen module has to be called with for that.

        Raises:
          TypeError: the second is no Flax module.
          MatchError: leaves without a counterpart.
          NotImplementedError: torch draws random numbers where they cannot be seen.
        """
        _refuse_random(torch_module, task)
        inputs = tuple(task.layout.inputs(x) for x in batch.inputs)
        if isinstance(flax_module, linen.Module) and variables is None and weights == "torch":
            variables = _zeros(flax_module, inputs, task)
        links = links_of(
            flax_module,
            torch_module,
            mapping=mapping,
            inputs=inputs,
            kwargs=task.flax_kwargs,
            variables=variables,
        )
        return cls(torch_module, flax_module, variables, task, links, weights)

    def reference(self, dtype: str) -> TorchSide:
        return TorchSide(self.torch_module, self.links, self.task, dtype)

    def candidate(self, reference: TorchSide) -> FlaxSide:
        """In the reference's type, with its weights unless both have their own."""
        dtype = reference.dtype
        if dtype not in self._made:
            self._made[dtype] = FlaxSide(self.flax_module, self.task, dtype, self.variables)
        side = self._made[dtype].fresh()
        if self.weights == "torch":
            side.load(reference.weights(), reference.state())
        return side

    def sides(self, level: Level, dtype: str) -> Sides:
        """Those that a level needs, all from the same weights."""
        if level is Level.SEMANTIC:
            reference = self.reference("float64")
            return Sides(reference, self.candidate(reference), single=self.reference("float32"))
        reference, oracle = self.reference(dtype), self.reference("float64")
        # The oracle starts from the rounded weights: what rounding them does is nobody's error.
        oracle.continue_from(reference)
        return Sides(reference, self.candidate(reference), oracle)


def _zeros(module: linen.Module, inputs: tuple, task: Task) -> Any:
    """The variables of a Linen module, without the work of drawing them."""

    def init() -> Any:
        rngs = {"params": jax.random.key(0), "dropout": jax.random.key(0)}
        return module.init(rngs, *inputs, **task.flax_kwargs)

    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(init))


def _refuse_random(module: torch.nn.Module, task: Task) -> None:
    if not task.training:
        return
    refuse_unwatchable(module)
    if task.replicas == 1:
        return
    for path, layer in module.named_modules():
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise NotImplementedError(
                f"parity.compare: {path} ({type(layer).__name__}) would drop in {task.replicas} replicas at "
                "once, in threads whose order is not fixed. Compare replicas with dropout 0 or in evaluation "
                "mode, and dropout with replicas=1."
            )
