"""jaxpar.distributed against torch.distributed over gloo: four real processes on both sides, bit for bit.

`gloo/collective_cases.py` has the values and the groups, `gloo/collective_sides.py` the calls.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from processes import ROOT, outputs, ranks

pytest.importorskip("torch")

GLOO = Path(__file__).parent / "gloo"
sys.path.insert(0, str(GLOO))
import collective_cases as cases  # noqa: E402

pytestmark = pytest.mark.timeout(600)  # of a machine that has much else to do; alone they take seconds

PATH = {"PYTHONPATH": f"{ROOT}:{GLOO}"}
Seen = list[dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Seen, Seen]:
    """What jaxpar's ranks saw, and torch's."""
    folder = tmp_path_factory.mktemp("collectives")
    outputs(
        ranks(
            1, f"import collective_sides; collective_sides.torch_main({str(folder)!r})", env=PATH, timeout=200
        )
    )
    outputs(
        ranks(
            cases.W,
            f"import collective_sides; collective_sides.jaxpar_main({str(folder)!r})",
            env=PATH,
            timeout=200,
        )
    )
    sides = ("jaxpar", "torch")
    ours, theirs = ([dict(np.load(folder / f"{side}.{r}.npz")) for r in range(cases.W)] for side in sides)
    return ours, theirs


def as_bits(x: np.ndarray) -> tuple:
    # gloo adds booleans as bytes: a True of torch's may be a 3 in memory.
    x = x.view(np.uint8) != 0 if x.dtype == bool else x
    return x.dtype, x.shape, x.tobytes()


def differences(ours: Seen, theirs: Seen) -> list[str]:
    """What is not the same, to the bit; what only one side has, too."""
    found = []
    for rank, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for key in sorted(mine.keys() | other.keys()):
            x, y = mine.get(key), other.get(key)
            if x is None or y is None or as_bits(x) != as_bits(y):
                found.append(f"rank {rank}: {key}: {x} and {y}")
    return found


@pytest.mark.slow
def test_collectives_give_torchs_results(both):
    ours, theirs = both
    assert not differences(ours, theirs)


PLANTED = {
    "all/all_reduce sum float32": lambda x: x + np.float32(2**-20),
    "pairs/broadcast int64": lambda x: x.astype("int32"),
    "late/gather uint8 1": lambda x: x[::-1].copy(),
    "turned/all_gather_into_tensor bool": lambda x: ~x,
    "all/scatter_object_list": lambda x: np.array(str(x).replace("float -0.0", "float 0.0")),
    "late/about": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("key", PLANTED)
def test_a_planted_fault_is_found(both, key):
    _, theirs = both
    fault = PLANTED[key]
    rank = next((r for r in range(cases.W) if key in theirs[r]), 0)
    bad = [dict(one) for one in theirs]
    bad[rank][key] = np.zeros(1) if fault is None else fault(bad[rank][key])
    assert len(differences(bad, theirs)) == 1
