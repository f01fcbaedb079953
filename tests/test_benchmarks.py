"""Benchmarks still run: their imports from jaxpar are there, and some run as commands, small."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

COMMANDS = {
    "first_call.py": (["--rounds", "1", "--small"], "DistributedDataParallel / shard_map by hand"),
    "distributed_data_parallel.py": (["--rounds", "1", "--small"], "jaxpar sends 1 message"),
    "from_jax.py": (["--small", "--only", "linear_regression"], "drawn from Flax's examples"),
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


def missing(source: str) -> list[str]:
    """The names that a file imports from jaxpar, wherever in the file, and that are not there."""
    names = [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaxpar"
        for alias in node.names
    ]
    return [f"{module}.{name}" for module, name in names if not there(module, name)]


def there(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(
            importlib.import_module(f"{module}.{name}")
        )
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("jaxpar"):
            raise
        return False


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: path.name)
def test_what_a_benchmark_imports_is_there(path):
    assert not missing(path.read_text())


def test_planted_missing_imports_are_found():
    source = (
        "from jaxpar.distributed.guard import Guard\ndef f():\n    from jaxpar import nn, scatter, none\n"
    )
    assert missing(source) == ["jaxpar.distributed.guard.Guard", "jaxpar.none"]
