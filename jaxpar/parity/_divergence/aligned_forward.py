"""AlignedForward: a forward pass of torch and of the JAX model, layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

from .._comparison_data import LayerResult
from .._sides.candidate import Candidate
from .._sides.step_data import Batch, Named, Observation
from .._sides.torch_side import TorchSide
from .._weights import Link
from .flax_replay import Key, Replay, ReplayedPass
from .torch_trace import LayerCall, Nth, Op, Trace


@dataclasses.dataclass(frozen=True)
class AlignedForward(ReplayedPass):
    """One traced forward pass of torch and its replay in Flax, both with the reference's weights."""

    step: int  # from 1
    batch: Batch
    links: dict[str, Link]
    reference: TorchSide
    candidate: Candidate
    initial: dict[str, torch.Tensor]  # torch's parameters and buffers before the pass
    trace: Trace
    free: Trace  # the pass as torch makes it; `trace` may have a recorded model's arrays
    observed: Observation
    outputs: Named  # torch's, with what the layers return in `trace`
    inputs: Mapping[Nth, Mapping[int, np.ndarray]]  # what replaces the layers' inputs in `trace`
    replay: Replay = dataclasses.field(default_factory=lambda: Replay({}, {}, {}, {}, {}, {}))
    channels_last: frozenset[Key] = frozenset()
    layers: tuple[LayerResult, ...] = ()  # in torch's order

    @property
    def module(self) -> torch.nn.Module:
        return self.reference.module

    def kind(self, call: LayerCall) -> str:
        return type(self.module.get_submodule(call.path)).__name__

    def may_be_turned(self, call: LayerCall) -> bool:
        is_custom = not type(self.module.get_submodule(call.path)).__module__.startswith("torch.nn.")
        return (is_custom or not self.links[call.path].rule) and not self.reference.task.layout.in_torchs_axes

    def ops(self, call: LayerCall) -> list[Op]:
        return self.trace.ops[call.first : call.last]
