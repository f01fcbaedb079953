"""docs/reinforcement_learning.md: PPO in torch and in jaxpar, from their seeds, print the same lines."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "reinforcement_learning.md").read_text()
SHARED = "\n".join(
    block
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S)
    if ">>>" not in block and "raises" not in block
)
(THEIRS, OURS) = re.findall(r"```py\n(.*?)```", PAGE, re.S)


def train(side: str, monkeypatch) -> list[str]:
    module = types.ModuleType("reinforcement_learning")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    dtype = torch.get_default_dtype()
    try:
        exec(compile(SHARED + side, "docs/reinforcement_learning.md", "exec"), module.__dict__)
        return module.train(module.act, module.step)
    finally:
        torch.set_default_dtype(dtype)


@pytest.fixture(scope="module")
def theirs():
    with pytest.MonkeyPatch.context() as monkeypatch, torch.random.fork_rng():
        return train(THEIRS, monkeypatch)


@pytest.mark.full
def test_both_sides_print_the_same(theirs, monkeypatch):
    assert train(OURS, monkeypatch) == theirs
    assert len(theirs) == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Generator(1)", "Generator(2)"),
        ("ddof=1", "ddof=0"),
        ("- 0.01 * policy", "- 0.02 * policy"),
    ],
)
def test_a_planted_difference_is_found(theirs, monkeypatch, old, new):
    assert OURS.count(old) == 1
    assert train(OURS.replace(old, new), monkeypatch) != theirs
