"""The page that explains a training script line by line, and its two scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import free_port

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "docs" / "line_by_line"
TORCH, PORT = ((SCRIPTS / f"{side}_script.py").read_text() for side in ("torch", "jaxpar"))

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
    planted = PORT.replace("right = 0", "right = 0\n    wrong = 1")
    with pytest.raises(ValueError, match="no word of WORDS explains the port's line 'wrong = 1'"):
        page(TORCH, planted)


def test_a_function_of_one_side_is_explained_too():
    planted = PORT.replace("def train(", "def validate(net):\n    evaluate(net)\n\n\ndef train(")
    (text,) = re.findall(r"^## `validate`\n\n(.*?)\n## `train`", page(TORCH, planted), re.M | re.S)
    assert text.startswith("Only in the jaxpar script.")
    assert "```diff\n+ def validate(net):\n+ evaluate(net)\n```" in text


def test_parts_stand_in_the_order_of_both():
    assert in_order(["a", "b", "d"], ["a", "c", "d", "e"]) == ["a", "b", "c", "d", "e"]


def epochs(side: str, folder: Path, epochs: int) -> list[str]:
    """The lines that a script prints in a process of its own."""
    command = [sys.executable, SCRIPTS / f"{side}_script.py", "--double", "--run", folder / side]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    there = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run(
        [*command, "--epochs", str(epochs)],
        env=there | (alone if side == "torch" else {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.slow
def test_both_scripts_print_the_same_and_resume(tmp_path):
    pytest.importorskip("torch")
    theirs = epochs("torch", tmp_path / "whole", 4)
    assert len(set(theirs)) == 4
    ours = epochs("jaxpar", tmp_path / "halves", 2)
    ours += epochs("jaxpar", tmp_path / "halves", 4)
    assert ours == theirs
