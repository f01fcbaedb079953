"""port: lines that the example does not run have no name that nothing defines."""

import subprocess

import pytest
import torch
from porting import unrun
from ruff.__main__ import find_ruff_bin

from jaxpar import parity


@pytest.mark.slow
def test_lines_that_did_not_run_have_no_undefined_name(tmp_path):
    path = tmp_path / "port.py"
    port = parity.port(unrun.Noise, torch.randn(2, 3, 4), out=path)
    assert port.status == 0, f"{port.source}\n{port.failure}"
    command = [find_ruff_bin(), "check", "--isolated", "--select", "F821,F841", str(path)]
    assert subprocess.run(command, check=False).returncode == 0, port.source
    for name in ("undefined", "dynamo"):
        assert any(name in note and "no written line defines this name" in note for note in port.notes)
    for name in ("nn.Linear(4, 4)", "torch.multinomial", "torch.empty(4).uniform_()"):
        assert any(name in note and "did not run" in note for note in port.notes)
