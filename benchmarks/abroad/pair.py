"""Pair: a model of transformers or diffusers that its authors wrote in torch and in Flax.

A row is made of names, numbers and functions of NumPy, so that the table can be read without the libraries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Inputs = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Pair:
    """One model in both frameworks, at a small size, with random weights.

    Attributes:
      name: of the family, as in the class names; a row of the page.
      settings: what its config is made of.
      inputs: a random state to (torch's keyword arguments, Flax's).
      torch, flax, config: names of classes; by transformers' custom if left out.
      library: "transformers" or "diffusers".
      layout, outputs, ignore_torch, ignore_flax, torch_kwargs, flax_kwargs: as for `compare`.
      mapping: lines that a user has to write, because `match` does not find them.
      activation: the setting of the activation, None if the config has none.
      cure: settings of Flax's config alone that make both the same, where they are different by themselves.
      bugs: whether some are planted; a variant that is there for its difference has none.
      training: in the mode of training, with the dropout of `settings`.
    """

    name: str
    settings: Mapping[str, Any]
    inputs: Callable[[np.random.RandomState], tuple[Inputs, Inputs]]
    torch: str = ""
    flax: str = ""
    config: str = ""
    library: str = "transformers"
    layout: Any = "same"
    outputs: Any = None
    mapping: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ignore_torch: tuple[str, ...] = ()
    ignore_flax: tuple[str, ...] = ()
    activation: str | None = "hidden_act"
    cure: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: bool = False
    bugs: bool = True

    @property
    def classes(self) -> tuple[str, str, str]:
        """Of the torch model, the Flax model and the config."""
        torch = self.torch or f"{self.name}Model"
        return torch, self.flax or f"Flax{torch}", self.config or f"{torch.removesuffix('Model')}Config"
