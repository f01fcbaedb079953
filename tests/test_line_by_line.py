"""The page that explains a training script line by line. What its two scripts compute: test_ports.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PORTS = ROOT / "examples" / "ports"
TORCH, PORT = ((PORTS / f"imagenet{side}.py").read_text() for side in ("_torch", ""))

sys.path.insert(0, str(ROOT / "benchmarks"))
from line_by_line import WORDS, in_order, page  # noqa: E402


def test_the_page_is_what_the_scripts_give():
    assert (ROOT / "docs" / "line_by_line.md").read_text() == page(TORCH, PORT), (
        "print it anew: python benchmarks/line_by_line.py > docs/line_by_line.md"
    )


def test_every_word_links_a_page():
    for word in WORDS:
        assert re.search(r"\]\([\w-]+\.md", word.text), word.text


def test_a_planted_line_is_not_left_unexplained():
    planted = PORT.replace("history = []", "history = []\n    wrong = 1")
    with pytest.raises(ValueError, match="no word of WORDS explains the port's line 'wrong = 1'"):
        page(TORCH, planted)


def test_a_function_of_one_side_is_explained_too():
    planted = PORT.replace("def train(", "def test(net):\n    evaluate(net)\n\n\ndef train(")
    (text,) = re.findall(r"^## `test`\n\n(.*?)\n## `train`", page(TORCH, planted), re.M | re.S)
    assert text.startswith("Only in the jaxpar script.")
    assert "```diff\n+ def test(net):\n+ evaluate(net)\n```" in text


def test_parts_stand_in_the_order_of_both():
    assert in_order(["a", "b", "d"], ["a", "c", "d", "e"]) == ["a", "b", "c", "d", "e"]
