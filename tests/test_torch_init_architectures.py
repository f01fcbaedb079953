"""torch_init on the architectures of the parity proof: what load_torch gives of the constructed twin."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from bits import assert_same_bits
from flax import nnx

from jaxpar import parity
from jaxpar.random import torch_init

torch = pytest.importorskip("torch")

sys.path.append(str(Path(__file__).resolve().parents[1]))  # benchmarks is no installed package

from benchmarks.parity.architectures import SMALL  # noqa: E402

EVERYDAY = {"bert", "gpt2", "vit"}
"""`-m slow` has all."""


def small(x, generator):
    np.multiply(generator.normal_(x), np.float32(0.02), out=x)


PARAMETERS = {"vit": {"token": small, "position": small}}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(build, id=build.__name__, marks=() if build.__name__ in EVERYDAY else pytest.mark.slow)
        for build in SMALL
        if not build.__name__.endswith("_linen")
    ],
)
def test_architectures(build):
    case = build(**SMALL[build])
    torch.manual_seed(3)
    twin = case.torch()
    # Under x64 some of Flax's parameters are float64; the twin's are float32.
    parameters = PARAMETERS.get(build.__name__)
    module = torch_init(case.flax(nnx.Rngs(0)), 3, parameters=parameters, dtype=np.float32)
    got = leaves(module)
    want = leaves(parity.load_torch(module, twin))
    assert got.keys() == want.keys()
    for path in want:
        assert_same_bits(path, got[path], torch.from_numpy(want[path]))


def leaves(module):
    state = nnx.to_flat_state(nnx.state(module, nnx.Any(nnx.Param, nnx.BatchStat)))
    return {".".join(map(str, path)): np.array(variable.get_raw_value()) for path, variable in state}
