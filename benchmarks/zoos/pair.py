"""Pair: a model file of a JAX library, and the torch model that it follows.

A library is imported by the functions of a row alone, so that the table can be read without any.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

SOURCES = "JAX_ZOOS"
"""Of the environment: the folder of the checkouts, each by its repository's name."""
ROWS, CLASSES, WORDS = 2, 7, 30


@dataclasses.dataclass(frozen=True)
class Pair:
    """One model in both frameworks, at a small size, with random weights.

    Attributes:
      file: in its repository, whose name comes first.
      torch: makes the torch model.
      jax: makes the JAX model as `compare` takes it.
      inputs: a random state to the torch model's inputs.
      compared: other arguments of `compare`.
      cure: settings of torch's layers that make both the same, where they are different by themselves.
      cause: a pattern that a cause of the difference must fit.
      why: the difference, read in both sources.
      training: in the mode of training.
    """

    file: str
    torch: Callable[[], Any]
    jax: Callable[[], Any]
    inputs: Callable[[np.random.RandomState], Any]
    compared: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cure: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cause: str = ""
    why: str = ""
    training: bool = False

    @property
    def name(self) -> str:
        return self.file + ", training" * self.training


TANH: Mapping[str, Any] = {
    "cure": {"approximate": "tanh"},
    "cause": "gelu",
    "why": "`jax.nn.gelu` and Flax's `gelu` are tanh's form of GELU by default; torch's is exact.",
}


def images(size: int = 32) -> Callable[[np.random.RandomState], Any]:
    return lambda random: random.randn(ROWS, 3, size, size)


def words(length: int = 8) -> Callable[[np.random.RandomState], Any]:
    return lambda random: random.randint(3, WORDS, (ROWS, length))


def source(repository: str, module: str) -> Any:
    """A module of a checkout."""
    folder = os.environ.get(SOURCES)
    if folder is None:
        raise FileNotFoundError(f"{SOURCES} is not set: the folder of checkouts such as {repository}")
    path = str(Path(folder) / repository)
    if path not in sys.path:
        sys.path.insert(0, path)
    return importlib.import_module(module)
