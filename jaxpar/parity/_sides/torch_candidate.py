"""TorchCandidate: a torch module in the place of the JAX model, with the reference's weights and masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from ..._typing import PyTree, Shape
from .._tensors import tensor_of
from .._weights.torch_tree import TorchTree
from .constants import Constants
from .flax_calls import Handler
from .step_data import Batch, Layout, Named, Observation, Task, real_parts, same
from .torch_choices import counted
from .torch_side import TorchLinks, TorchSide, to_numpy


class TorchCandidate(TorchSide):
    """Has FlaxSide's methods, and its own names and layout, to which the reference's are converted."""

    is_recorded = False

    def __init__(
        self,
        module: torch.nn.Module,
        task: Task,
        dtype: str,
        factors: Named | None = None,
        ignored: Collection[str] = (),
        constants: Constants | None = None,
    ):
        self._again = partial(TorchCandidate, module, task, dtype, factors, ignored, constants)
        self.factors, self.layout = factors, task.layout
        self.tx = task.optimizer[1] if task.optimizer else None
        mirrored = dataclasses.replace(
            task,
            loss=(task.loss[1], task.loss[0]) if task.loss else None,
            optimizer=(task.optimizer[1], task.optimizer[0]) if task.optimizer else None,
            layout=Layout(),
        )
        links = TorchLinks(module, set(TorchTree(module).leaves) - set(ignored))
        super().__init__(module, links, mirrored, dtype, constants)
        if task.outputs is not None:
            self.chosen = {name: common for common, name in task.outputs.items()}
        # Shared by the copies: what the first step of all of them did not reach.
        self.notes: list[str] = []

    def restarted(self) -> TorchCandidate:
        side = self._again()
        side.notes = self.notes
        return side

    def unoptimised(self) -> TorchCandidate:
        return self.restarted()

    def load(self, weights: Named, state: Named) -> None:
        tensors = self.module.state_dict()
        for name, x in {**weights, **state}.items():
            if name in tensors:
                tensors[name].copy_(tensor_of(np.array(x, order="C")))

    def step(  # type: ignore[override]
        self,
        batch: Batch,
        masks: tuple[np.ndarray, ...] = (),
        keep: bool = True,
        reseeded: bool = False,
        forward_only: bool = False,
    ) -> Observation:
        """Take a training step; without `keep`, this object is unchanged."""
        if not keep:
            copy = self.restarted()
            copy.continue_from(self)
            results = copy.step(batch, masks, forward_only=forward_only)
            self.returned = copy.returned
            return results
        mirrored = dataclasses.replace(
            batch,
            torch_call=batch.flax_call,
            targets=tuple(map(self.layout.inputs, batch.targets)),
            common={name: (name, same) for name, _ in batch.common.values()},
        )
        watching = nullcontext() if self.notes else counted(self.notes, self.module)
        return super().step(mirrored, watching, forward_only, masks)

    def projection(self, shapes: Mapping[str, Shape]) -> Named:
        if self.factors is not None:
            return self.factors
        back, number = self.layout.outputs_back, np.zeros((), np.float32)
        of_reference = {name: back(np.broadcast_to(number, shape)).shape for name, shape in shapes.items()}
        return {name: self.layout.outputs(x) for name, x in super().projection(of_reference).items()}

    def loss_factors(self, batch: Batch, masks: tuple[np.ndarray, ...]) -> Named:
        outputs = self.step(batch, masks, keep=False, forward_only=True).outputs
        return self.projection({name: x.shape for name, x in real_parts(outputs).items()})

    def gaps(self, training: bool) -> Iterator[str]:
        """Yield nothing more than `notes` have."""
        yield from ()

    def draws(self, batch: Batch) -> bool:
        """Return False: both sides draw from torch's generator, with the same seed."""
        return False

    def intercepted(
        self, batch: Batch, masks: tuple[np.ndarray, ...], arrays: PyTree, handler_of: Callable[[PyTree], Any]
    ) -> tuple[Any, Named, Named]:
        """Run the model forward under a handler of its layers' calls, which gets arrays; see FlaxSide."""
        side, handler = self.restarted(), handler_of(arrays)
        side.continue_from(self)
        for path, layer in side.module.named_modules():
            layer.forward = _handled(handler, path, layer)
        results = side.step(batch, masks, forward_only=True)
        return handler.records, results.outputs, results.state


class _Opaque(Exception):
    """Has what a layer returns, which cannot be taken apart, such as a PackedSequence."""


def _handled(handler: Handler, path: str, layer: torch.nn.Module) -> Callable[..., PyTree]:
    forward = layer.forward

    def call(*args: Any, **kwargs: Any) -> PyTree:
        outputs = forward(*_tensors(args), **_tensors(kwargs))
        arrays = _mapped(to_numpy, torch.Tensor, outputs)
        if any(isinstance(x, torch.Tensor) for x in jax.tree.leaves(arrays)):
            raise _Opaque(outputs)
        return arrays

    def handled(*args: Any, **kwargs: Any) -> PyTree:
        try:
            arrays = _mapped(to_numpy, torch.Tensor, (args, kwargs))
            return _tensors(handler(path, layer, call, *arrays))
        except _Opaque as opaque:
            return opaque.args[0]

    return handled


def _tensors(tree: PyTree) -> PyTree:
    return _mapped(lambda x: tensor_of(np.array(x, order="C")), (np.ndarray, jax.Array), tree)


def _mapped(function: Callable[[Any], Any], kind: Any, tree: PyTree) -> PyTree:
    """Map the leaves of a kind in plain containers; others, such as a PackedSequence, are kept."""
    if isinstance(tree, dict) and type(tree) is dict:
        return {name: _mapped(function, kind, x) for name, x in tree.items()}
    if isinstance(tree, tuple | list) and type(tree) in (tuple, list):
        return type(tree)(_mapped(function, kind, x) for x in tree)
    return function(tree) if isinstance(tree, kind) else tree
