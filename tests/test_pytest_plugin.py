"""The pytest plugin: it costs nothing, makes devices, compares, records and checks."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest.importorskip("torch")

COMPARING = """
import numpy as np, torch, pytest
from flax import nnx

def twins():
    torch.manual_seed(0)
    flax = nnx.LayerNorm(4, epsilon={epsilon}, use_fast_variance=False, rngs=nnx.Rngs(0))
    return lambda: torch.nn.LayerNorm(4), flax

def test_pair(parity):
    reference, flax = twins()
    parity(reference(), flax, np.random.RandomState(0).randn(3, 4))

def test_recorded(parity):
    reference, flax = twins()
    parity.recorded("layer norm", reference, flax, np.random.RandomState(0).randn(3, 4))
"""


INSTALLED = any(point.name == "jaxpar" for point in entry_points(group="pytest11"))
PLUGIN = [] if INSTALLED else ["-p", "jaxpar._pytest_plugin"]
"""pytest finds the plugin of an installed jaxpar by itself, and refuses it a second time."""


def run(folder, test: str, *options: str) -> subprocess.CompletedProcess:
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN, *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
def test_it_imports_neither_jax_nor_torch(tmp_path):
    ended = run(
        tmp_path,
        "import sys\ndef test_light():\n    assert not {'jax', 'torch', 'flax'} & set(sys.modules)\n",
    )
    assert ended.returncode == 0, ended.stdout


@pytest.mark.slow
def test_the_mark_makes_devices(tmp_path):
    test = (
        "import jax, pytest\n@pytest.mark.devices(3)\ndef test_three():\n    assert len(jax.devices()) == 3\n"
    )
    ended = run(tmp_path, test, "--strict-markers")
    assert ended.returncode == 0, ended.stdout


@pytest.mark.slow
def test_too_few_devices_are_a_failure_that_says_why(tmp_path):
    test = "import jax, pytest\nx = jax.numpy.ones(1)\n@pytest.mark.devices(3)\ndef test_three(): pass\n"
    ended = run(tmp_path, test)
    assert ended.returncode == 1
    assert "needs 3 devices and JAX has 1: virtual_devices: JAX already runs with" in ended.stdout


@pytest.mark.slow
def test_records_are_made_checked_and_made_again(tmp_path):
    healthy, wrong = COMPARING.format(epsilon=1e-5), COMPARING.format(epsilon=1e-6)
    ended = run(tmp_path, healthy)
    assert "1 failed, 1 passed" in ended.stdout
    assert "make the record with parity.record" in ended.stdout
    assert run(tmp_path, healthy, "--parity-record").returncode == 0
    record = tmp_path / "parity_records" / "layer_norm.safetensors"
    first = record.read_bytes()
    ended = run(tmp_path, wrong)
    assert "2 failed" in ended.stdout
    assert "equal to" in ended.stdout
    assert "epsilon=1e-05 (it acts as 1e-06)" in ended.stdout
    assert run(tmp_path, healthy, "--parity-update", "-k", "recorded").returncode == 0
    assert record.read_bytes() == first


PROVEN = """
import jax, jax.numpy as jnp, pytest
from jax.sharding import PartitionSpec as P

def step_of(mean):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def step(w, x):
        gradient = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - 0.1 * (jax.lax.pmean(gradient, "d") if mean else gradient)
    sharded = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False)
    shapes = [((3, 1), P()), ((8, 3), P("d"))]
    arrays = [jax.ShapeDtypeStruct(s, "float32", sharding=jax.NamedSharding(mesh, p)) for s, p in shapes]
    return jax.jit(sharded, donate_argnums=0), arrays

@pytest.mark.devices(4)
@pytest.mark.parametrize("mean", [True, False])
def test_step(program, mean):
    step, arrays = step_of(mean)
    assert program(step, *arrays).verdict == "right"
"""


@pytest.mark.slow
def test_a_step_is_proven_or_fails_with_the_report(tmp_path):
    ended = run(tmp_path, PROVEN)
    assert ended.returncode == 1
    assert "1 failed, 1 passed" in ended.stdout
    assert "jaxpar.errors.ProgramError: wrong: step on 4 x cpu" in ended.stdout
    assert "missing: " in ended.stdout
