"""The two models of a pair, and what `compare` is asked with."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from typing import Any

import numpy as np
import optax
import torch
from flax import linen

from benchmarks.parity.proof import shake

from .pair import Inputs, Pair

RATE, DECAY, STEPS = 1e-3, 0.01, 5


@dataclasses.dataclass(frozen=True)
class Built:
    """Attributes:
    torch, flax: the models.
    torch_inputs, flax_inputs: keyword arguments of one call, in torch's layout and in Flax's.
    mapping: what `match` found, or nothing.
    """

    pair: Pair
    torch: torch.nn.Module
    flax: linen.Module
    torch_inputs: Inputs
    flax_inputs: Inputs
    mapping: Any = None

    @property
    def call(self) -> dict[str, Any]:
        """Arguments that `match` and `compare` share."""
        return {
            "torch_inputs": self.torch_inputs,
            "flax_inputs": self.flax_inputs,
            "layout": self.pair.layout,
            "outputs": self.pair.outputs,
            "ignore_torch": self.pair.ignore_torch,
            "ignore_flax": self.pair.ignore_flax,
        }

    def flax_with(self, **settings: Any) -> linen.Module:
        """The Flax model with other settings."""
        return flax_of(self.pair, config_of(self.pair, **self.pair.cure | settings))

    @property
    def cured(self) -> Built:
        """With what makes both the same."""
        return dataclasses.replace(self, flax=self.flax_with()) if self.pair.cure else self


TRAINING = {
    "optimizer": (
        lambda parameters: torch.optim.AdamW(parameters, RATE, weight_decay=DECAY),
        optax.adamw(RATE, weight_decay=DECAY),
    ),
    "steps": STEPS,
}


def build(pair: Pair) -> Built:
    torch.manual_seed(0)
    reference = torch_of(pair, config_of(pair)).train(pair.training)
    shake_trained(reference)
    there, here = pair.inputs(np.random.RandomState(0))
    here = moved(here) if first(pair.layout) == "channels_last" else here
    return Built(pair, reference, flax_of(pair, config_of(pair)), there, here)


def shake_trained(module: torch.nn.Module) -> None:
    """All but tables that torch keeps among its frozen weights: Flax may compute them."""
    frozen = {x: x.clone() for x in module.parameters() if not x.requires_grad}
    shake(module)
    for parameter, values in frozen.items():
        parameter.data.copy_(values)


def first(layout: Any) -> Any:
    return layout[0] if isinstance(layout, tuple) else layout


def moved(inputs: Inputs) -> Inputs:
    """Images with the channels at the end: inputs that are given for Flax alone are in its layout."""
    return {name: np.moveaxis(x, 1, -1) if np.ndim(x) == 4 else x for name, x in inputs.items()}


def config_of(pair: Pair, **settings: Any) -> Any:
    """A setting with a dot belongs to a config inside."""
    if pair.library == "diffusers":
        return dict(pair.settings) | settings
    values = copy.deepcopy(dict(pair.settings))
    for name, value in settings.items():
        *inside, last = name.split(".")
        at = values
        for key in inside:
            at = at[key]
        at[last] = value
    return named(pair, pair.classes[2])(**values)


def named(pair: Pair, name: str) -> Any:
    return getattr(importlib.import_module(pair.library), name)


def torch_of(pair: Pair, config: Any) -> torch.nn.Module:
    make = named(pair, pair.classes[0])
    return make(**config) if pair.library == "diffusers" else make(config)


def flax_of(pair: Pair, config: Any) -> linen.Module:
    make = named(pair, pair.classes[1])
    return make(**config) if pair.library == "diffusers" else make.module_class(config=config)
