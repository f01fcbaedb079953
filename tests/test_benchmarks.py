"""Benchmarks still run: their imports from jaxpar are there, and some run as commands, small."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpar._cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"

# ------------------------------------------------------------------------------ commands that pages name

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    BENCHMARKS / "README.md",
    *(ROOT / "docs").glob("*.md"),
]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.M | re.S)
COMMAND = re.compile(
    r"^(?:\.venv\S*/bin/)?(?:python (?:-m )?(benchmarks\S+)|make ([\w-]+)|jaxpar ([a-z]+))\b(.*)"
)

SMALL = {
    "beside_torch.py": (["06_regression", "--devices", "2", "--steps", "2"], ""),
    "data.py": (["loader", "--rounds", "1"], ""),
    "distributed_data_parallel.py": (["--rounds", "1", "--small"], "jaxpar sends 1 message"),
    "first_call.py": (
        ["--rounds", "1", "--small", "--model", "many", "gpt"],
        "DistributedDataParallel / shard_map by hand",
    ),
    "from_jax.py": (["--small", "--only", "linear_regression"], "drawn from Flax's examples"),
    "memory.py": (["--devices", "2", "--rows", "2"], ""),
    "nn.py": (["Conv", "--rounds", "1", "--small"], ""),
    "parity_measure.py": (["--elements", "1000"], ""),
    "parity_weights.py": (["--gigabytes", "0.001", "--repeats", "1"], ""),
    "scale/run.py": (
        ["--small", "--only", "leaves", "new step"],
        "| collectives of the lowered program | count |",
    ),
    "torch_random.py": (["--n", "1000", "--rounds", "1", "--repeat", "1"], ""),
    "virtual_devices.py": (["matmul", "--n", "2", "--size", "16", "--rounds", "1"], ""),
    "uneven.py": (["--rounds", "1", "--models", "MLP", "--no-steps"], ""),
}
"""The arguments, and a text that only a finished run prints."""

ELSEWHERE = {
    "abroad/ask.py": "a process of abroad/run.py",
    "abroad/run.py": "hours, and an environment of its own; tests/test_abroad.py",
    "checkpoints.py": "kills processes for minutes; tests/test_checkpointer.py",
    "data_parallel.py": "minutes",
    "digests.py": "three minutes, for two commits",
    "distributed.py": "minutes",
    "examples.py": "minutes; tests/test_examples.py",
    "gpu/side.py": "a process of gpu/run.py",
    "gpu/run.py": "GPUs; tests/test_gpu_command.py",
    "gpu_programs.py": "XLA's compiler for GPUs, 280 MB; tests/gpu_programs",
    "line_by_line.py": "tests/test_line_by_line.py prints the page",
    "parity/adversarial.py": "minutes; tests/test_adversarial.py",
    "parity/keras_models.py": "minutes; tests/test_keras.py has the pairs, and models",
    "parity/drawn.py": "minutes; tests/test_drawn.py",
    "parity/mended_by_hand.py": "an hour; tests/test_mended.py",
    "parity/mended_drawn.py": "half an hour; its edits are in tests/test_drawn.py",
    "parity/mended.py": "half an hour; tests/test_mended.py has the loop",
    "parity/from_trace.py": "hours for all cases; tests/test_trace.py",
    "mutants/covered.py": "all tests, one by one; tests/test_mutants.py",
    "mutants/nursery.py": "reads lines from mutants/run.py",
    "mutants/run.py": "hours; tests/test_mutants.py",
    "loops/run.py": "minutes; tests/test_compare_loops.py prints the page",
    "loops/run_chains.py": "minutes; tests/test_compare_chains.py prints the page",
    "invariance/run.py": "half an hour of processes; tests/test_invariance.py",
    "precision/run.py": "minutes; tests/test_precision.py prints a page",
    "runs/run.py": "minutes; tests/test_bisect.py prints the page",
    "runs/cost.py": "a minute, and times that mean something only on a quiet machine",
    "optim.py": "minutes",
    "program/run.py": "minutes; tests/test_program_judge.py",
    "parity/run.py": "an hour; tests/test_parity_proof.py",
    "ports/ask.py": "a process of ports/run.py",
    "ports/run.py": "hours, and an environment of its own; tests/test_ported.py",
    "ports/step.py": "minutes",
    "published.py": "XLA's compiler for GPUs",
    "random_models.py": "tests/test_laws.py has the laws",
    "side_by_side.py": "tests/test_side_by_side.py prints the page",
    "survival.py": "kills processes for an hour; tests/test_survival.py",
    "zoos/ask.py": "a process of zoos/run.py, whose sources are not on PyPI; tests/test_zoos.py",
    "torch_form.py": "minutes; tests/against_torch has the same tables",
    "train_step/ahead.py": "minutes",
    "train_step/run.py": "minutes",
}
"""What is not run here, and why; where `--help` is an option, that is."""


def commands() -> list[tuple[str, str, str, str, str]]:
    """Page, benchmark, target of make, command of jaxpar, and what follows, of all that pages name."""
    texts: dict[Path, str] = {}
    for page in PAGES:
        blocks = FENCE.findall(page.read_text())
        texts[page] = "".join(text for language, text in blocks if language in ("sh", "bash"))
    texts |= {file: ast.get_docstring(ast.parse(file.read_text())) or "" for file in BENCHMARKS.rglob("*.py")}
    lines = [(page.name, line.strip()) for page, text in texts.items() for line in text.splitlines()]
    return [(page, *parts(match)) for page, line in lines if (match := COMMAND.match(line))]


def parts(match: re.Match[str]) -> tuple[str, ...]:
    file, *others = match.groups(default="")
    return file if file.endswith(".py") or not file else f"{file.replace('.', '/')}.py", *others


def unknown(command: tuple[str, str, str, str, str]) -> list[str]:
    """What a command names that is not there: its file, target, command or options."""
    _, file, target, name, rest = command
    given = set(re.findall(r"(?<!\S)\[?(--[a-z][\w-]*)", rest.partition("#")[0]))
    if target:
        makefile = (ROOT / "Makefile").read_text()
        return [] if re.search(rf"^{target}:", makefile, re.M) else [target]
    if name:
        if name not in cli.commands:
            return [name]
        options = {option for parameter in cli.commands[name].params for option in parameter.opts}
        return sorted(given - options - {"--help"})
    if not (ROOT / file).is_file():
        return [file]
    return sorted(option for option in given if option[2:] not in (ROOT / file).read_text())


def test_every_command_that_a_page_names_is_there():
    found = commands()
    assert len(found) > 50
    assert [(command, unknown(command)) for command in found if unknown(command)] == []
    named = {file.removeprefix("benchmarks/") for _, file, *_ in found if file}
    assert named == {*SMALL, *ELSEWHERE}


def test_planted_wrong_commands_are_found():
    for line in (
        "python benchmarks/none.py",
        "python benchmarks/optim.py [--milions 25]",
        "make tests",
        "jaxpar ports",
        "jaxpar port m.py:make --inputs 2",
    ):
        match = COMMAND.match(line)
        assert match
        assert len(unknown(("", *parts(match)))) == 1, line


def run(name: str, *arguments: str) -> str:
    process = subprocess.run(
        [sys.executable, BENCHMARKS / name, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


OFTEN = ("from_jax.py", "virtual_devices.py")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in OFTEN else pytest.mark.long) for name in SMALL],
)
def test_a_benchmark_runs(name):
    pytest.importorskip("torch")
    arguments, printed = SMALL[name]
    output = run(name, *arguments)
    assert output.strip()
    assert printed in output


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name in ELSEWHERE if "argparse" in (BENCHMARKS / name).read_text()]
)
def test_a_benchmark_has_help(name):
    pytest.importorskip("torch")
    assert "usage: " in run(name, "--help")


# ------------------------------------------------------------------------------------------- their imports


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
