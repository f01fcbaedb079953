"""`jaxpar demo`: it holds, it can fail, and it ends well whatever is missing."""

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from click.testing import CliRunner

import jaxpar
from jaxpar import parity
from jaxpar._cli.demo import report, run
from jaxpar._cli.demo.report import KINDS
from jaxpar._cli.demo.run import flax_cnn
from jaxpar._cli.demo.settings import TOLERANCE, DemoSettings
from jaxpar._cli.main import cli

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="compares with PyTorch")

SHORT = ["demo", "--epochs", "1", "--batch-size", "1437"]
"""One step, and 1437 rows are uneven over 8 devices."""


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """The command line after `code`, with warnings as errors."""
    script = f"{code}\nfrom jaxpar._cli.main import main\nmain()"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *args], capture_output=True, text=True, check=False
    )


def without(package: str) -> str:
    """Code after which a package is not installed."""
    return f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Absent())
"""


def test_the_largest_difference_of_an_epoch_is_in_any_of_its_steps() -> None:
    kind = KINDS[0]
    rows = [
        SimpleNamespace(severity=severity, difference=SimpleNamespace(step=step, kind=kind))
        for step, severity in enumerate((1, 9, 2, 3), start=1)
    ]
    comparison, settings = SimpleNamespace(rows=rows), SimpleNamespace(steps_per_epoch=2)
    result: Any = SimpleNamespace(comparison=comparison, settings=settings)
    assert [report._worst(result, epoch)[kind.value].difference.step for epoch in (0, 1)] == [2, 4]


@pytest.mark.long
@pytest.mark.slow
@needs_torch
def test_parity_holds_over_even_and_uneven_batches() -> None:
    ended = python("", "demo", "--epochs", "2", "--batch-size", "480", "--devices", "8", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)

    assert found["devices"] == "8 virtual CPU devices"
    assert "torch.nn.DataParallel" in found["reference"]
    assert found["last_batch"] == [60] * 7 + [57]
    assert len(found["epochs"]) == 2
    for number, epoch in enumerate(found["epochs"], start=1):
        [accuracy] = epoch["accuracy"]
        assert 0.2 < accuracy <= 1
        assert list(epoch["differences"]) == [kind.value for kind in KINDS]
        for difference in epoch["differences"].values():
            assert difference["size"] < TOLERANCE
            assert 3 * number - 2 <= difference["step"] <= 3 * number
    [first], [second] = (epoch["loss"] for epoch in found["epochs"])
    assert second < first
    verdict = found["verdict"]
    # Logits, loss and gradient of the images; 8 gradients, updates and weights; 6 statistics.
    assert verdict["compared"] == 2 * 3 * (3 + 3 * 8 + 6)
    assert (verdict["same"], verdict["first"]) == (True, None)
    assert 0 < verdict["largest"]["size"] < TOLERANCE

    held = list(found["bytes_per_device"].values())
    assert len(held) == 8
    assert all(device == held[0] for device in held)
    assert held[0]["parameters"] == 8 * (9 * 8 + 2 * 8 + 9 * 8 * 16 + 2 * 16 + 257 * 10)


@pytest.mark.slow
@needs_torch
def test_tables_and_verdict() -> None:
    ended = CliRunner().invoke(cli, SHORT)
    assert ended.exit_code == 0, ended.output
    for expected in ("ms/step", "gradient", "cpu:7", "Parity holds.", "8 virtual CPU devices", "1e-10"):
        assert expected in " ".join(ended.stdout.split())


def momentum_as_in_flax(patch: pytest.MonkeyPatch) -> None:
    """The fraction of the running statistics that is retained."""

    def cnn(settings: DemoSettings) -> Any:
        net: Any = flax_cnn(settings)
        net.norm1.momentum = net.norm2.momentum = 0.9
        return net

    patch.setattr(run, "flax_cnn", cnn)


def statistics_of_the_whole_batch(patch: pytest.MonkeyPatch) -> None:
    """What plain `jax.jit` computes."""
    patch.setattr(run, "flax_cnn", lambda settings: jaxpar.convert_sync_batchnorm(flax_cnn(settings)))


def mean_of_means(patch: pytest.MonkeyPatch) -> None:
    """The mean of the replicas' means, instead of the mean over rows."""

    def loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        rows = math.ceil(len(losses) / len(jaxpar.devices()))
        return jnp.stack([losses[i : i + rows].mean() for i in range(0, len(losses), rows)]).mean()

    patch.setattr(run, "cross_entropy", loss)


def images_in_reverse(patch: pytest.MonkeyPatch) -> None:
    def compared(*modules: Any, inputs: Any, **options: Any) -> Any:
        return compare(*modules, torch_inputs=inputs, flax_inputs=lambda step: inputs(step)[::-1], **options)

    compare = parity.compare
    patch.setattr(parity, "compare", compared)


@pytest.mark.full
@pytest.mark.sampled(7)
@needs_torch
@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (momentum_as_in_flax, ("state", "norm1.mean")),
        (mean_of_means, ("loss", "")),
        (images_in_reverse, ("output", "")),
        (statistics_of_the_whole_batch, ("output", "")),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], first: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    ended = CliRunner().invoke(cli, [*SHORT, "--json"])
    assert ended.exit_code == 1, ended.output
    found = json.loads(ended.stdout)
    verdict = found["verdict"]
    assert verdict["same"] is False
    assert (verdict["first"]["kind"], verdict["first"]["name"], verdict["first"]["step"]) == (*first, 1)
    assert "Parity FAILS" in found["sentence"]
    assert f"in {' '.join(first).rstrip()}, step 1" in found["sentence"]


@pytest.mark.slow
def test_without_torch_it_trains_and_says_what_was_left_out() -> None:
    ended = python(without("torch"), *SHORT, "--devices", "3")
    assert ended.returncode == 0, ended.stderr
    said = " ".join(ended.stdout.split())
    assert "The comparison with PyTorch was left out, because torch is not installed" in said
    assert "Parity" not in said
    assert "PyTorch ms/step" not in said


@pytest.mark.full
@needs_torch
def test_with_another_torch_it_says_why_it_cannot_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_ref

    def pretend(n: int) -> None:
        raise torch_ref.UnsupportedTorch("comm.scatter")

    monkeypatch.setattr(torch_ref, "pretend", pretend)
    ended = CliRunner().invoke(cli, SHORT)
    assert ended.exit_code == 2
    assert "jaxpar: demo: cannot pretend to have devices" in ended.output
    assert "comm.scatter" in ended.output


@pytest.mark.slow
def test_without_scikit_learn_it_names_the_cure() -> None:
    ended = python(without("sklearn"), *SHORT)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        'jaxpar: demo: the digits come with scikit-learn; pip install "jaxpar[demo]"'
    )
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_ctrl_c_says_what_was_completed() -> None:
    # A shell that starts jobs in the background has them ignore SIGINT.
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from jaxpar._cli.main import main\nmain()"
    )
    command = [sys.executable, "-c", script, "demo", "--epochs", "1000", "--devices", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr
        while not running.stderr.readline().startswith("step 1 "):
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (130, "")
    said = stderr.splitlines()[-1]
    assert said.startswith("Stopped by Ctrl-C. ")
    assert "of 1000 epochs were completed" in said
    assert "Traceback" not in stderr


def test_steps_of_the_default() -> None:
    assert DemoSettings().steps == 5 * 23
