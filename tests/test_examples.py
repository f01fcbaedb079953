"""Every example runs as it stands, in its own process, ends with the line its catalogue names, and does what
torch does."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import free_port

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, TWINS = ROOT / "examples", ROOT / "benchmarks" / "twins"
CATALOGUE = (EXAMPLES / "README.md").read_text()
LAST = {
    "01_placement.py": r"rows on \[0, 1, 2, 3\] -> \(10, 2\)",
    "02_cpu_and_gpu.py": r"next word right: (9\d|100)%",
    "03_split_model.py": r"test error 0\.\d+; predicting the mean gives 0\.\d+",
    "04_distributed.py": r"1 x \d+ devices: 2[89]\d of 297 right, 9\d%",
    "05_resume.py": r"after 8 steps: loss \d\.\d{6}, to the last bit 0x1\.[0-9a-f]+p[+-]\d",
    "06_regression.py": r"test error 0\.[3-6]\d+; predicting the mean gives 0\.937",
    "07_digits_cnn.py": r"accuracy on 347 images: [89]\d\.\d%",
    "08_accumulation.py": r"4 replicas, 88 updates of 4 batches; accuracy [6-9]\d\.\d%",
    "09_resnet18.py": r"top-1 [89]\d\.\d%, top-5 \d+\.\d% of 367 images",
    "10_inner_block.py": r"rows of block2 on \[0, 1, 2, 3\]; accuracy [6-9]\d\.\d%",
    "11_language_model.py": r"perplexity of other text: 1[0-4]\d; from the frequencies alone 1[5-7]\d",
    "12_gpt.py": r"other text: \d\.\d\d bits a character; from the frequencies alone 4\.\d\d",
    "13_dcgan.py": r"taken for real: \d+% of the digits, \d+% of what was made",
    "14_dqn.py": r"the pole stands for \d+ moves of at most 500; with moves at random for \d+",
    "15_from_torch_checkpoint.py": r"right in jaxpar: (\d+\.\d)%, back in torch: \1%",
}
ARGUMENTS = {
    "05_resume.py": "--devices 2 --steps 8",
    "12_gpt.py": "--torch --float64 --devices 2 --steps 8 --layers 1 --width 16 --text 12000",
}
BESIDE_TORCH = {
    # replicas and steps
    "06_regression.py": (8, 20),
    "07_digits_cnn.py": (4, 8),
    "08_accumulation.py": (8, 48),
    "09_resnet18.py": (2, 3),
    "10_inner_block.py": (4, 30),
    "11_language_model.py": (4, 10),
    "13_dcgan.py": (2, 3),
    "14_dqn.py": (4, 10),
    "15_from_torch_checkpoint.py": (2, 8),
}
LONG = {"09_resnet18.py", "13_dcgan.py"}  # XLA compiles them for half a minute
EVERYTHING = {"05_resume.py", "12_gpt.py"}  # with options, log, checkpoints and Ctrl-C


def test_the_catalogue_names_every_example():
    files = {path.name for path in EXAMPLES.glob("*.py")}
    assert files == set(LAST) == set(re.findall(r"^\| \[(\S+)\]", CATALOGUE, re.M))


@pytest.mark.parametrize("name", LAST)
def test_it_is_short_and_uses_public_names(name):
    text = (EXAMPLES / name).read_text()
    assert text.count("\n") < 100 or name in EVERYTHING
    assert "What it adds: " in ast.get_docstring(ast.parse(text))
    assert not re.search(r"jaxpar[.\w]*\._|import _", text)


def marked(names):
    return [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in names]


def python(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("PJRT_NPROC", "JAX_NUM_CPU_DEVICES")}
    quick = {"PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAXPAR_PROGRESS": "off"}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=280,
        env=inherited | quick | environment,
    )


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", marked(LAST))
def test_it_runs(name):
    done = python("-W", "error", EXAMPLES / name, *ARGUMENTS.get(name, "").split())
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(LAST[name], done.stdout.strip().split("\n")[-1]), done.stdout
    if name == "12_gpt.py":
        assert apart(done) <= 1e-9


def apart(done: subprocess.CompletedProcess[str]) -> float:
    """The largest difference of jaxpar's losses and torch's, as a run prints it."""
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"^losses of jaxpar and torch.*largest difference (\S+)$", done.stdout, re.M)
    return float(found)


def beside_torch(name: str, *options: object) -> float:
    devices, steps = BESIDE_TORCH[name]
    return apart(
        python(
            *("-W", "error", ROOT / "benchmarks" / "beside_torch.py", Path(name).stem),
            *("--devices", devices, "--steps", steps, *options),
        )
    )


def test_every_twin_is_compared():
    assert set(BESIDE_TORCH) == {path.name for path in TWINS.glob("*.py")}


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", marked(BESIDE_TORCH))
def test_it_does_what_torch_does(name):
    assert beside_torch(name) <= 1e-9


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("06_regression.py", "weight_decay=1e-2", "weight_decay=1.1e-2"),
        ("14_dqn.py", "example.RENEW == 0", "example.RENEW == 5"),
    ],
)
def test_a_twin_that_does_something_else_is_found(name, old, new, tmp_path):
    text = (TWINS / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new))
    assert beside_torch(name, "--twin", tmp_path / name) > 1e-9


@pytest.mark.long
def test_the_split_model_learns():
    """What 03 prints is better than predicting the mean."""
    done = python(EXAMPLES / "03_split_model.py")
    error, mean = map(float, re.findall(r"0\.\d+", done.stdout.strip().split("\n")[-1]))
    assert error < 0.8 * mean


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["jaxpar launch", pytest.param("torchrun", marks=pytest.mark.long)])
def test_the_distributed_example_in_two_processes(launcher):
    if launcher == "torchrun":
        pytest.importorskip("torch")
        options = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
        options.append(f"--master-port={free_port()}")
    else:
        options = ["-m", "jaxpar", "launch", "-n", "2"]
    done = python(*options, EXAMPLES / "04_distributed.py", JAX_PLATFORMS="cpu", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    # One rank prints, and no image is counted twice.
    (line,) = re.findall(r"^.*right, 9\d%", done.stdout, re.M)
    assert re.search(r"2 x \d+ devices: 2[89]\d of 297 right", line), done.stdout
