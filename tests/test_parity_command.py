"""jaxpar parity: exit codes, reports, specs with errors, and no JAX for --help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from jaxpar._cli.main import cli
from jaxpar._cli.spec import check_outputs

torch = pytest.importorskip("torch")

SPEC = """
import numpy as np, torch
from flax import nnx

def torch_module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))

class Flax(nnx.Module):
    def __init__(self):
        self.a = nnx.Linear(4, 8, rngs=nnx.Rngs(0))
        self.b = nnx.LayerNorm(8, epsilon=EPSILON, use_fast_variance=False, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.b(self.a(x))

flax_module = Flax
mapping = {"0": "a", "1": "b"}
inputs = np.random.RandomState(0).randn(6, 4)
"""


def parity(folder, *options: str, epsilon: str = "1e-5", spec: str = SPEC):
    (folder / "spec.py").write_text(spec.replace("EPSILON", epsilon))
    return CliRunner().invoke(cli, ["parity", str(folder / "spec.py"), *options])


def test_the_same(tmp_path):
    ended = parity(tmp_path, "--html", str(tmp_path / "r.html"), "--junit", str(tmp_path / "r.xml"))
    assert ended.exit_code == 0, ended.output
    assert "The same at the semantic level" in ended.output
    assert (tmp_path / "r.html").read_text().lower().startswith("<!doctype html>")
    assert ElementTree.parse(tmp_path / "r.xml").getroot() is not None


def test_different(tmp_path):
    ended = parity(tmp_path, "--json", epsilon="1e-6")
    assert ended.exit_code == 1
    document = json.loads(ended.stdout)
    assert document["same"] is False
    assert "epsilon=1e-05 (it acts as 1e-06)" in ended.stdout


@pytest.mark.slow
def test_steps_optimizer_and_replicas(tmp_path):
    (tmp_path / "spec.py").write_text(SPEC.replace("EPSILON", "1e-5"))
    options = ["--steps=3", "--optimizer=adamw:lr=1e-3,weight_decay=0.1", "--replicas=2"]
    command = [sys.executable, "-m", "jaxpar", "parity", str(tmp_path / "spec.py"), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "3 steps, 2 replicas" in ended.stdout


def test_record_and_check(tmp_path):
    record = str(tmp_path / "r.safetensors")
    assert parity(tmp_path, "--record", record).exit_code == 0
    assert parity(tmp_path, "--check", record).exit_code == 0
    assert parity(tmp_path, "--check", record, epsilon="1e-3").exit_code == 1
    assert parity(tmp_path, "--check", record, "--record", record).exit_code == 2


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("x = 1 +\n", (), "line 1: x = 1 +"),
        ("import numpy\n\nnumpy.nothing()\n", (), "line 3: numpy.nothing()"),
        (
            "def torch_module():\n    raise RuntimeError('no')\nflax_module = inputs = 1\n",
            (),
            "line 2: raise RuntimeError",
        ),
        ("inputs = 1\n", (), "it does not define torch_module, flax_module"),
        (SPEC, ("--optimizer", "adamm"), "--optimizer adamm: it is none of"),
        (SPEC, ("--optimizer", "adam:lr"), "write name:setting=value"),
        (SPEC, ("--optimizer", "adam:lr=-1"), "Invalid learning rate"),
        (SPEC, ("--steps", "2"), "steps=2 without an optimizer"),
    ],
)
def test_misuse_says_what_and_where(tmp_path, spec, options, message):
    ended = parity(tmp_path, *options, spec=spec)
    assert (ended.exit_code, "Traceback" in ended.output) == (2, False), ended.output
    assert message in ended.output


RAISES = SPEC.replace("return self.b(self.a(x))", "raise RuntimeError('out of memory')")
LEAVES = SPEC.replace("return self.b(self.a(x))", "raise SystemExit(0)")
NO_VERDICT = {
    "a model that raises": (RAISES, "out of memory"),
    "a model that leaves": (LEAVES, "SystemExit: 0"),
    "a spec that leaves": ("raise SystemExit(0)", "SystemExit: 0\n  line 1: raise SystemExit(0)"),
    "a function of the spec that leaves": (
        SPEC.replace("torch.manual_seed(0)", "raise SystemExit(0)"),
        "torch_module(): SystemExit: 0",
    ),
}


@pytest.mark.parametrize("what", NO_VERDICT)
def test_without_a_verdict_the_code_is_2(tmp_path, what):
    spec, message = NO_VERDICT[what]
    ended = parity(tmp_path, spec=spec)
    assert ended.exit_code == 2, ended.output
    assert message in ended.output


UNREADABLE = "this spec was run"
MISUSED = {
    "no folder for the page": (["--html", "{}/nope/r.html"], "there is no folder"),
    "no folder for JUnit": (["--junit", "{}/nope/r.xml"], "there is no folder"),
    "no folder for the record": (["--record", "{}/nope/r.safetensors"], "there is no folder"),
    "a folder as a file": (["--html", "{}"], "is a directory"),
    "a record of another kind": (["--record", "{}/r.npz"], "a record ends in .safetensors"),
    "one file twice": (["--html", "{}/r", "--junit", "{}/./r"], "would write over --html"),
    "a record's other file": (["--record", "{}/r.safetensors", "--html", "{}/r.json"], "write over"),
    "the spec": (["--html", "{}/spec.py"], "would write over the spec"),
    "what a record says": (["--check", "{}/r.safetensors", "--level", "numeric"], "leave --level out"),
    "steps of a record": (["--check", "{}/r.safetensors", "--steps", "3"], "leave --steps out"),
    "an optimizer": (["--optimizer", "adamm"], "it is none of"),
}


@pytest.mark.parametrize("what", MISUSED)
def test_paths_and_options_are_checked_before_anything_runs(tmp_path, what):
    options, message = MISUSED[what]
    spec = f"raise RuntimeError('{UNREADABLE}')"
    ended = parity(tmp_path, *(option.format(tmp_path) for option in options), spec=spec)
    assert (ended.exit_code, UNREADABLE in ended.output) == (2, False), ended.output
    assert message in " ".join(ended.output.split())
    assert (tmp_path / "spec.py").read_text() == spec


def test_a_file_in_another_spelling_is_the_same_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(click.UsageError, match="would write over the spec"):
        check_outputs("spec.py", {"html": "folder/../spec.py"})
    with pytest.raises(click.UsageError, match="would write over --html"):
        check_outputs("spec.py", {"html": "out", "junit": str(tmp_path / "out")})
    check_outputs("spec.py", {"html": "folder/spec.py", "junit": "out"})


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("epsilon", ["1e-5", "1e-6"])
def test_a_verdict_that_cannot_be_printed_is_none(tmp_path, epsilon):
    (tmp_path / "spec.py").write_text(SPEC.replace("EPSILON", epsilon))
    command = [sys.executable, "-m", "jaxpar", "parity", str(tmp_path / "spec.py"), "--json"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    assert "No space left on device" in ended.stderr


UNREADABLE_FILES = {
    "missing": (lambda path: None, "spec.py: there is no such file."),
    "a folder": (lambda path: path.mkdir(), "spec.py: it is no file."),
    "a pipe": (os.mkfifo, "spec.py: it is no file."),
    "a loop": (lambda path: path.symlink_to(path), "spec.py: it cannot be read: Too many levels of symb"),
    "NULs": (lambda path: path.write_bytes(b"x = 1\ny\0 = 2\n"), "spec.py: line 2 holds a NUL byte"),
    "no UTF-8": (lambda path: path.write_bytes(b"x = '\xff'\n"), "SyntaxError: (unicode error) 'utf-8'"),
    "no Python": (
        lambda path: path.write_text("x = 1\nx = = 2\n"),
        "SyntaxError: invalid syntax (spec.py, lin",
    ),
}


@pytest.mark.parametrize("kind", UNREADABLE_FILES)
@pytest.mark.parametrize("command", ["parity", "estimate", "convert", "port"])
def test_a_file_that_cannot_be_read(kind, command, tmp_path, monkeypatch):
    make, message = UNREADABLE_FILES[kind]
    monkeypatch.chdir(tmp_path)
    make(Path("spec.py"))
    monkeypatch.setattr("jaxpar._cli.main.start_devices", None)  # nothing starts before the file is read
    arguments = {
        "convert": ["weights.pt", "out.pt", "--spec", "spec.py", "--to", "flax"],
        "port": ["spec.py:make", "--out", "out.py"],
    }.get(command, ["spec.py"])
    ended = CliRunner().invoke(cli, [command, *arguments])
    assert ended.exit_code == (3 if command == "port" else 2), ended.output
    assert message in " ".join(ended.output.split())
    assert "Traceback" not in ended.output
    assert "line None" not in ended.output


def test_outputs_may_be_loops_of_links(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(click.UsageError, match="would write over --html"):
        check_outputs(str(tmp_path / "spec.py"), {"html": str(loop), "junit": str(loop)})


@pytest.mark.slow
def test_help_imports_neither_jax_nor_torch():
    program = (
        "import sys\nfrom jaxpar._cli.main import cli\n"
        "try:\n    cli(['parity', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'jax', 'torch', 'flax'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "Compare a torch model and a Flax model" in ended.stdout


def test_a_spec_says_what_is_left_out(tmp_path):
    spec = """
import numpy as np, torch
from flax import nnx

def torch_module():
    net = torch.nn.Linear(4, 8)
    net.register_buffer("table", torch.ones(1))
    return net

flax_module = nnx.Linear(4, 8, rngs=nnx.Rngs(0))
inputs = np.random.RandomState(0).randn(6, 4)
"""
    refused = parity(tmp_path, spec=spec)
    assert refused.exit_code != 0
    ended = parity(tmp_path, spec=spec + 'ignore_torch = ["table"]\n')
    assert ended.exit_code == 0, ended.output
    assert "left out, and not compared: torch's table" in " ".join(ended.output.split())
