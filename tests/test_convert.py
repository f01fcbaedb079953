"""`jaxpar convert`: files to files, to exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxpar import parity
from jaxpar._cli.convert import convert

torch = pytest.importorskip("torch")


def jaxpar(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jaxpar", "convert", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def model() -> torch.nn.Module:
    return torch.nn.ModuleDict(
        {"stem": torch.nn.Conv2d(3, 4, 3), "norm": torch.nn.BatchNorm2d(4), "head": torch.nn.Linear(16, 5)}
    )


NNX = """
from flax import nnx
import jaxpar.parity as parity

class Net(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.classifier = nnx.Linear(16, 5, rngs=rngs)

def flax_module():
    return nnx.eval_shape(lambda: Net(nnx.Rngs(0)))

mapping = {"head": parity.flattened("classifier", (4, 2, 2))}
"""
LINEN = """
from flax import linen
import jaxpar.parity as parity
import numpy as np

class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.Conv(4, (3, 3), padding="VALID", name="stem")(x)
        x = linen.BatchNorm(use_running_average=True, name="norm")(x)
        return linen.Dense(5, name="classifier")(x.reshape(len(x), -1))

flax_module = Net()
inputs = np.zeros((1, 3, 4, 4), np.float32)
layout = "channels_last"
mapping = {"head": parity.flattened("classifier", (4, 2, 2))}
"""
SPECS = {
    "nnx": (NNX, "stem.kernel", "norm.mean"),
    "linen": (LINEN, "params.stem.kernel", "batch_stats.norm.mean"),
}


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
@pytest.mark.parametrize("kind", SPECS)
def test_to_flax_and_back(kind, ending, tmp_path):
    text, kernel, mean = SPECS[kind]
    spec = tmp_path / "spec.py"
    spec.write_text(text)
    theirs = model()
    theirs["norm"].running_mean.uniform_()
    paths = [str(tmp_path / name) for name in (f"torch{ending}", f"flax{ending}", f"back{ending}")]
    parity.write_weights(paths[0], theirs.state_dict())
    said = convert(paths[0], paths[1], key=None, spec=str(spec), to="flax")
    assert said.endswith("flax" + ending + ": 8 tensors, 0.0 MB")
    flax = parity.read_weights(paths[1])
    assert np.array_equal(
        np.asarray(flax[kernel]), theirs["stem"].weight.detach().numpy().transpose(2, 3, 1, 0)
    )
    assert np.array_equal(np.asarray(flax[mean]), theirs["norm"].running_mean.numpy())
    convert(paths[1], paths[2], key=None, spec=str(spec), to="torch")
    back = parity.read_weights(paths[2])
    assert back.keys() == theirs.state_dict().keys()
    for name, tensor in theirs.state_dict().items():
        assert np.array_equal(np.asarray(back[name]), tensor.numpy()), name


@pytest.mark.slow
def test_files_of_another_kind(tmp_path):
    theirs = model().bfloat16()
    torch.save({"model": theirs.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pt")
    ended = jaxpar("checkpoint.pt", "w.safetensors", "--key", "model", cwd=tmp_path)
    assert ended.stdout == "checkpoint.pt -> w.safetensors: 9 tensors, 0.0 MB\n", ended.stderr
    assert ended.returncode == 0
    ended = jaxpar("w.safetensors", "w.bin", cwd=tmp_path)
    assert ended.returncode == 0
    back = torch.load(tmp_path / "w.bin")
    assert all(torch.equal(back[name], tensor) for name, tensor in theirs.state_dict().items())


MISUSE = {
    "no arguments": ([], 2, "Missing argument 'IN'"),
    "missing": (
        ["nowhere.pt", "b.pt"],
        2,
        "jaxpar: nowhere.pt: it cannot be read: No such file or directory",
    ),
    "damaged": (["damaged.safetensors", "b.pt"], 2, "jaxpar: damaged.safetensors: "),
    "more than weights": (["checkpoint.pt", "b.safetensors"], 2, "model cannot be written: dict is no array"),
    "an unknown ending": (["good.safetensors", "b.npz"], 2, "b.npz: .npz is unknown"),
    "no folder": (["good.safetensors", "nowhere/b.pt"], 2, "nowhere/b.pt: there is no folder"),
    "a spec alone": (["good.safetensors", "b.pt", "--spec", "spec.py"], 2, "--spec and --to belong together"),
    "no spec": (["good.safetensors", "b.pt", "--spec", "no.py", "--to", "flax"], 2, "there is no such file"),
    "other weights": (
        ["good.safetensors", "b.pt", "--spec", "spec.py", "--to", "flax"],
        1,
        "convert good.safetensors: the state_dict and the Flax model do not match",
    ),
    "other leaves": (
        ["good.safetensors", "b.pt", "--spec", "spec.py", "--to", "torch"],
        1,
        "Only in the file: x; only in the model: ",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISUSE)
def test_misuse(name, tmp_path):
    args, code, message = MISUSE[name]
    parity.write_weights(tmp_path / "good.safetensors", {"x": np.zeros(2)})
    (tmp_path / "damaged.safetensors").write_bytes(b"\0" * 20)
    (tmp_path / "spec.py").write_text(NNX)
    torch.save({"model": {"x": torch.zeros(2)}, "epoch": 3}, tmp_path / "checkpoint.pt")
    before = sorted(os.listdir(tmp_path))
    ended = jaxpar(*args, cwd=tmp_path)
    assert ended.returncode == code, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(set(os.listdir(tmp_path)) - {"__pycache__"}) == before


@pytest.mark.slow
def test_help_starts_nothing():
    code = (
        "import sys\nfrom jaxpar._cli.main import cli\n"
        "try: cli(['convert', '--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'jax', 'flax', 'torch', 'numpy', 'safetensors'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["model.pt", "./model.pt", "linked.pt"])
def test_the_source_is_not_written_over(target, tmp_path):
    torch.save(model().state_dict(), tmp_path / "model.pt")
    (tmp_path / "linked.pt").symlink_to(tmp_path / "model.pt")
    before = (tmp_path / "model.pt").read_bytes()
    ended = jaxpar("model.pt", target, cwd=tmp_path)
    assert ended.returncode == 2
    assert f"{target} is the source, and would be written over" in ended.stderr
    assert (tmp_path / "model.pt").read_bytes() == before
