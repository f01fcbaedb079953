"""The blocks of docs/topology.md that need the compiler, run as test_docs.py runs those that do not."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))

from test_docs import run  # noqa: E402

PAGE = (ROOT / "docs" / "topology.md").read_text()


def test_the_page_runs():
    assert PAGE.count("```py\n") == 3
    run("topology.md", PAGE.replace("```python\n", "```skipped\n").replace("```py\n", "```python\n"))


def test_a_planted_fault_is_found():
    with pytest.raises(AssertionError):
        run("topology.md", "```python\nassert 1 == 2\n```\n")
