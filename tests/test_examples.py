"""Every example runs as it stands, in its own process, and ends with the line its catalogue names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import free_port

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CATALOGUE = (EXAMPLES / "README.md").read_text()
LAST = {
    "01_placement.py": r"rows on \[0, 1, 2, 3\] -> \(10, 2\)",
    "02_cpu_and_gpu.py": r"next word right: (9\d|100)%",
    "03_split_model.py": r"test error 0\.\d+; predicting the mean gives 0\.\d+",
    "04_distributed.py": r"1 x \d+ devices: 2[89]\d of 297 right, 9\d%",
    "05_resume.py": r"after 8 steps: loss \d\.\d{6}, to the last bit 0x1\.[0-9a-f]+p[+-]\d",
    "06_regression.py": r"test error 0\.[3-6]\d+; predicting the mean gives 0\.937",
    "07_digits_cnn.py": r"accuracy on 347 images: \d+\.\d%",
    "08_accumulation.py": r"8 replicas, 12 updates of 4 batches; accuracy [6-9]\d\.\d%",
    "09_resnet18.py": r"top-1 \d+\.\d%, top-5 \d+\.\d% of 367 images",
    "10_inner_block.py": r"rows of block2 on \[0, 1, 2, 3\]; accuracy [6-9]\d\.\d%",
    "11_language_model.py": r"perplexity of other text: \d+; from the frequencies alone \d+",
    "12_gpt.py": r"other text: \d\.\d\d bits a character; from the frequencies alone 4\.\d\d",
    "13_dcgan.py": r"taken for real: \d+% of the digits, \d+% of what was made",
    "14_dqn.py": r"the pole stands for \d+ moves of at most 500; with moves at random for \d+",
    "15_from_torch_checkpoint.py": r"right in jaxpar: (\d+\.\d)%, back in torch: \1%",
}
TORCH = "--torch --float64 --devices"
ARGUMENTS = {
    "05_resume.py": "--run {folder} --devices 2 --steps 8",
    "06_regression.py": f"{TORCH} 8 --steps 20",
    "07_digits_cnn.py": f"{TORCH} 4 --steps 8 --width 4 --batch-size 58",
    "08_accumulation.py": f"{TORCH} 8 --steps 12",
    "09_resnet18.py": f"{TORCH} 2 --steps 3 --width 4 --size 8 --batch-size 75",
    "10_inner_block.py": f"{TORCH} 4 --steps 30",
    "11_language_model.py": f"{TORCH} 4 --steps 10 --words 6000",
    "12_gpt.py": f"{TORCH} 2 --steps 8 --layers 1 --width 16 --text 12000",
    "13_dcgan.py": f"{TORCH} 2 --steps 3 --width 4",
    "14_dqn.py": f"{TORCH} 4 --steps 10",
    "15_from_torch_checkpoint.py": f"{TORCH} 2 --torch-steps 10 --steps 8",
}
LONG = {"09_resnet18.py", "13_dcgan.py"}  # XLA compiles them for half a minute


def test_the_catalogue_names_every_example():
    files = {path.name for path in EXAMPLES.glob("*.py")}
    assert files == set(LAST) == set(re.findall(r"^\| \[(\S+)\]", CATALOGUE, re.M))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in LAST]
)
def test_it_runs(name, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("PJRT_NPROC", "JAX_NUM_CPU_DEVICES")}
    arguments = ARGUMENTS.get(name, "").format(folder=tmp_path).split()
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment | {"PYTHONPATH": str(EXAMPLES.parent), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(LAST[name], done.stdout.strip().split("\n")[-1]), done.stdout
    if TORCH in ARGUMENTS.get(name, ""):
        (apart,) = re.findall(r"torch.*largest difference (\S+)", done.stdout)
        assert float(apart) <= 1e-9


@pytest.mark.long
def test_the_split_model_learns():
    """What 03 prints is better than predicting the mean."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "03_split_model.py"],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
    )
    error, mean = map(float, re.findall(r"0\.\d+", done.stdout.strip().split("\n")[-1]))
    assert error < 0.8 * mean


@pytest.mark.parametrize("launcher", ["jaxpar launch", pytest.param("torchrun", marks=pytest.mark.long)])
def test_the_distributed_example_in_two_processes(launcher):
    if launcher == "torchrun":
        pytest.importorskip("torch")
        options = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
        options.append(f"--master-port={free_port()}")
    else:
        options = ["-m", "jaxpar", "launch", "-n", "2"]
    done = subprocess.run(
        [sys.executable, *options, EXAMPLES / "04_distributed.py"],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ
        | {"PYTHONPATH": str(EXAMPLES.parent), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )
    assert done.returncode == 0, done.stderr
    # One rank prints, and no image is counted twice.
    (line,) = re.findall(r"^.*right, 9\d%", done.stdout, re.M)
    assert re.search(r"2 x \d+ devices: 2[89]\d of 297 right", line), done.stdout
