"""jaxpar.random.check: nothing differs here, and what differs elsewhere is found."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from jaxpar import random

torch = pytest.importorskip("torch")


def test_nothing_differs_from_the_installed_torch():
    if not torch.__version__.startswith(random.TORCH_VERSIONS):
        pytest.fail(f"torch is {torch.__version__}; the numbers are those of {random.TORCH_VERSIONS}")
    before = torch.get_rng_state()
    check = random.check(n=20_000)
    assert torch.equal(before, torch.get_rng_state())
    assert check.different == (), str(check)
    assert len(check.draws) == len({draw.name for draw in check.draws}) == 22
    assert min(draw.compared for draw in check.draws) == sum(range(16))
    assert str(check).count("same") == 22
    with pytest.raises(TypeError, match="has no truth value"):
        bool(check)


def test_a_planted_fault_is_found(monkeypatch):
    monkeypatch.setattr("jaxpar.random._normal.shift", lambda values, mean, std: np.nextafter(values, 9))
    different = {draw.name: draw for draw in random.check(n=100).different}
    assert different["randn, float64"].different == 100
    assert not any(name.startswith(("rand,", "uniform_", "bernoulli", "randperm")) for name in different)


@pytest.mark.slow
def test_a_processor_without_avx2():
    """What docs/random.md says of it."""
    code = "from jaxpar import random; print([d.name for d in random.check(n=5000).different])"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    different = eval(child.stdout)
    assert {"uniform_, float32", "uniform_, float64", "randn, float32", "trunc_normal_"} <= set(different)
    for name in different:
        assert name.startswith(("uniform_", "randn, ", "trunc_normal_")), name
        assert name != "randn, float64"
