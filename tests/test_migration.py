"""docs/migration.md: the left side and the right side of every pair print the same."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
from pathlib import Path

import pytest
from processes import free_port

import jaxpar

torch = pytest.importorskip("torch")
import torch_ref  # noqa: E402

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "migration.md").read_text()
BLOCK = r"```py\n(.*?)```"
PAIR = re.compile(rf"^## (.*?)$(?:(?!^## ).)*?{BLOCK}\s*</td><td>\s*{BLOCK}", re.M | re.S)
PAIRS = {title: (left, right) for title, left, right in PAIR.findall(PAGE)}
FIRST = "What all pairs begin with"


def run(blocks: list[str], folder: Path) -> list[str]:
    """What each block prints, in one namespace."""
    module = types.ModuleType("migration")
    module.__dict__["folder"] = str(folder)
    sys.modules[module.__name__] = module  # for classes that look themselves up
    said = []
    try:
        for block in blocks:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block, "docs/migration.md", "exec"), module.__dict__)
            said.append(printed.getvalue())
    finally:
        del sys.modules[module.__name__]
    return said


@pytest.fixture
def one_process(monkeypatch):
    """The variables of torchrun for one process, and torch as it was."""
    port = str(free_port())
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        monkeypatch.setenv(name, value)
    torch.set_num_threads(1)
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def both(title: str, folder: Path) -> tuple[list[str], list[str]]:
    titles = [FIRST, title] if title != FIRST else [FIRST]
    lefts, rights = zip(*(PAIRS[t] for t in titles), strict=True)
    with torch_ref.pretend(8):
        theirs = run(list(lefts), folder)
    if torch.distributed.is_initialized():  # the two sides are one process, and one port
        torch.distributed.destroy_process_group()
    return theirs, run(list(rights), folder)


def check(title: str, folder: Path) -> None:
    theirs, ours = both(title, folder)
    assert ours == theirs
    assert ours[-1].strip()


@pytest.mark.parametrize("title", PAIRS)
def test_both_sides_print_the_same(title, one_process, tmp_path):
    check(title, tmp_path)


@pytest.mark.parametrize(
    ("title", "old", "new"),
    [
        ("Clipping and schedules", "T_max=10", "T_max=11"),
        ("TensorDataset, DataLoader", "seed=3", "seed=4"),
    ],
    ids=["schedule", "order"],
)
def test_a_planted_difference_is_found(title, old, new, one_process, tmp_path, monkeypatch):
    left, right = PAIRS[title]
    assert old in right
    monkeypatch.setitem(PAIRS, title, (left, right.replace(old, new)))
    with pytest.raises(AssertionError):
        check(title, tmp_path)


def test_every_code_block_belongs_to_a_pair():
    assert PAGE.count("```py\n") == 2 * len(PAIRS)
    without_pairs = {"Different names", "Words without a pair"}
    assert set(re.findall("^## (.*)$", PAGE, re.M)) - set(PAIRS) == without_pairs
    assert jaxpar.__name__ in "".join(right for _, right in PAIRS.values())
