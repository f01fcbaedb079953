"""A training beside accelerate, Fabric, Keras and JAX by hand: lines are counted, and distances are true."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # benchmarks is no installed package

from benchmarks.peers.run import PEERS, SCRIPTS, code_lines, distance, train  # noqa: E402

PAGE = (ROOT / "docs" / "gained_and_paid.md").read_text()
ROWS = {
    cells[0]: cells
    for line in PAGE.splitlines()
    if len(cells := re.findall(r"(?<=\| )[^|]+(?= \|)", line)) == 6
}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_the_page_has_the_lines_of_each_script(peer):
    assert ROWS[peer.name][2] == str(code_lines(SCRIPTS / peer.script))


SMALL = {"torch_ddp.py", "jaxpar_ddp.py", "plain_jax.py"}
"""Scripts whose libraries the environment of the tests has."""

SOURCES = {
    "a docstring of two lines": ('"""One.\n\nTwo."""\n\nx = 1\n', 1),
    "comments and blank lines": ("# why\n\nx = 1  # because\n", 1),
    "a call over three lines": ("f(\n    1,\n)\n", 3),
    "a docstring of a function": ('def f():\n    """One."""\n    return "text"\n', 2),
    "a text that is no docstring": ('x = """\n"""\n', 2),
}


@pytest.mark.parametrize("name", SOURCES)
def test_lines_of_code_are_counted(name, tmp_path):
    source, count = SOURCES[name]
    path = tmp_path / "script.py"
    path.write_text(source)
    assert code_lines(path) == count


@pytest.mark.long
@pytest.mark.slow
def test_jaxpar_has_the_weights_of_torch_and_statistics_of_the_whole_batch_are_seen(tmp_path):
    """JAX by hand normalises over the whole batch and drops five rows, which is the planted difference."""
    trained = {peer.name: train(peer, tmp_path)[0] for peer in PEERS if peer.script in SMALL}
    reference = trained["torch DDP"]
    assert distance(reference, reference) == 0
    assert distance(trained["jaxpar DDP"], reference) < 1e-3
    assert distance(trained["JAX and Flax by hand"], reference) > 0.1
