"""The blocks in docs/ that need the compiler, run as test_docs.py runs those that do not."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))

from test_docs import run  # noqa: E402

BLOCKS = {"topology.md": 3, "multi-gpu.md": 3}
"""How many of them a page has."""


@pytest.mark.parametrize("page", BLOCKS)
def test_the_page_runs(page):
    text = (ROOT / "docs" / page).read_text()
    assert text.count("```py\n") == BLOCKS[page]
    run(page, text.replace("```python\n", "```skipped\n").replace("```py\n", "```python\n"))


def test_a_planted_fault_is_found():
    with pytest.raises(AssertionError):
        run("topology.md", "```python\nassert 1 == 2\n```\n")
