"""The torch sides of our own architectures. Linen's twins have those of the models without Linen."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...parity import architectures, case
from ..case import Case, Maker


def tensor(make: case.Maker) -> Maker:
    def made(generator: torch.Generator) -> torch.Tensor:
        seed = int(torch.randint(2**31, (), generator=generator))
        found = torch.from_numpy(np.asarray(make(np.random.RandomState(seed))))
        return found.float() if found.is_floating_point() else found

    return made


def of(twin: Any) -> Case:
    return Case(twin.name, twin.torch, tuple(map(tensor, twin.inputs)))


CASES = tuple(map(of, architectures.cases(small=True)))
