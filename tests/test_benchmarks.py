"""Benchmarks that benchmarks/README.md names still run: each as its command, small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

COMMANDS = {
    "distributed_data_parallel.py": (["--rounds", "1", "--small"], "jaxpar sends 1 message"),
}
"""The arguments, and a text that only a finished run prints."""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_runs(name):
    pytest.importorskip("torch")
    arguments, printed = COMMANDS[name]
    process = subprocess.run(
        [sys.executable, BENCHMARKS / name, *arguments], capture_output=True, text=True, timeout=280
    )
    assert process.returncode == 0, process.stderr
    assert printed in process.stdout
