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
from line_by_line import WORDS, differing, lines, page, word_of  # noqa: E402


def test_the_page_is_what_the_scripts_give():
    assert (ROOT / "docs" / "line_by_line.md").read_text() == page(TORCH, PORT), (
        "print it anew: python benchmarks/line_by_line.py > docs/line_by_line.md"
    )


def test_every_word_is_used():
    same = lines(TORCH) & lines(PORT)
    found = [
        word_of(line, side)[1]
        for side, text in (("torch", TORCH), ("port", PORT))
        for line in differing(text, same)
    ]
    assert set(found) == set(WORDS)


def test_every_word_links_a_page():
    for word in WORDS:
        assert re.search(r"\]\([\w-]+\.md", word.text), word.text


FAULTS = {
    "a line without a word": (
        PORT.replace("right = 0", "right = 0\n    wrong = 1"),
        "no word of WORDS explains the port's",
    ),
    "a function of its own": (PORT + "\n\ndef more():\n    pass\n", r"parts of one script only: \['more'\]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_line_is_not_left_unexplained(fault):
    port, message = FAULTS[fault]
    with pytest.raises(ValueError, match=message):
        page(TORCH, port)


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
