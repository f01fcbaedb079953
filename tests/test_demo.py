"""`jaxpar demo`: it holds, it can fail, and it ends well whatever is missing."""

import json
import math
import signal
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from click.testing import CliRunner

from jaxpar._cli.demo.report import KINDS
from jaxpar._cli.demo.run import Epoch, comparison, judged
from jaxpar._cli.demo.settings import TOLERANCE, Fault, Settings
from jaxpar._cli.main import cli
from jaxpar.parity import Kind, Outcome

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
        ours, theirs = epoch["accuracy"]
        assert ours == theirs
        assert list(epoch["differences"]) == [kind.value for kind in KINDS]
        for difference in epoch["differences"].values():
            assert difference["size"] < TOLERANCE
            assert 3 * number - 2 <= difference["step"] <= 3 * number
    verdict = found["verdict"]
    # Each step: logits, loss, 6 + 2 gradients, 6 statistics, 8 weights. Each epoch: the test logits.
    assert verdict["compared"] == 2 * (3 * 24 + 1)
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


@pytest.mark.sampled
@needs_torch
@pytest.mark.parametrize(
    ("fault", "first"),
    [
        (Fault.BATCH_NORM, ("state", "norm1.running_mean")),
        (Fault.LOSS, ("loss", "cross_entropy")),
        (Fault.ORDER, ("output", "logits")),
        (Fault.WHOLE_BATCH, ("output", "logits")),
    ],
)
def test_a_planted_fault_is_found(fault: Fault, first: tuple[str, str]) -> None:
    ended = CliRunner().invoke(cli, [*SHORT, "--json", "--plant", fault.value])
    assert ended.exit_code == 1, ended.output
    found = json.loads(ended.stdout)
    verdict = found["verdict"]
    assert verdict["same"] is False
    assert (verdict["first"]["kind"], verdict["first"]["name"], verdict["first"]["step"]) == (*first, 1)
    assert "Parity FAILS" in found["sentence"]
    assert " ".join(first) in found["sentence"]


def test_every_fault_is_planted_above() -> None:
    [table] = [mark for mark in test_a_planted_fault_is_found.pytestmark if mark.name == "parametrize"]
    assert [fault for fault, _ in table.args[1]] == list(Fault)


@pytest.mark.slow
def test_without_torch_it_trains_and_says_what_was_left_out() -> None:
    ended = python(without("torch"), *SHORT, "--devices", "3")
    assert ended.returncode == 0, ended.stderr
    said = " ".join(ended.stdout.split())
    assert "The comparison with PyTorch was left out, because torch is not installed" in said
    assert "Parity" not in said
    assert "PyTorch ms/step" not in said


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


def judge_weights(ours: dict, reference: dict) -> Epoch:
    """An epoch of one step that shows nothing but these."""
    return Epoch([], [], [], list(judged([{Kind.WEIGHT: ours}, {Kind.WEIGHT: reference}], step=1)))


@pytest.mark.parametrize(
    ("ours", "reference", "reason"),
    [
        ({}, {"w": np.ones(2)}, "only in the reference"),
        ({"w": np.ones(2)}, {}, "only in the candidate"),
        ({"w": np.ones(2)}, {"w": np.ones((2, 1))}, "shape [2] in the candidate, [2, 1] in the reference"),
        ({"w": np.array([1, np.nan])}, {"w": np.ones(2)}, "1 of 2 NaN or infinities do not agree"),
        ({"w": np.array([np.nan])}, {"w": np.array([np.nan])}, "not finite"),
        ({"w": np.ones(2)}, {"w": np.array([1, np.inf])}, "1 of 2 NaN or infinities do not agree"),
        ({"w": np.ones(2)}, {"w": np.zeros(2)}, "exactly 0 in the reference"),
    ],
)
def test_what_cannot_be_compared_is_infinitely_different(ours: dict, reference: dict, reason: str) -> None:
    epoch = judge_weights(ours, reference)
    [found] = epoch.rows
    assert (found.difference.name, found.difference.relative) == ("w", math.inf)
    assert found.outcome is Outcome.DIFFERENT
    assert reason in found.reason
    assert not comparison([epoch]).same


def test_a_difference_is_relative_to_the_largest_reference_value() -> None:
    [found] = judge_weights({"w": np.array([4.0, 0.1])}, {"w": np.array([4.0, 0.0])}).rows
    assert found.difference.relative == pytest.approx(0.1 / 4)
    [equal] = judge_weights({"w": np.zeros(2)}, {"w": np.zeros(2)}).rows
    assert equal.difference.relative == 0


def test_judging_names_the_first_and_the_largest() -> None:
    sizes = {"a": 1e-11, "b": 0.1, "c": 0.2}
    one = {name: np.ones(1) for name in sizes}
    epoch = judge_weights({name: np.array([1 + size]) for name, size in sizes.items()}, one)
    found = comparison([epoch])
    assert found.different[0] is epoch.rows[1]
    assert found.largest is epoch.rows[2]
    assert comparison([Epoch([], [], [], epoch.rows[:1])]).same


def test_nothing_compared_is_not_the_same() -> None:
    assert not comparison([]).same


def test_steps_of_the_default() -> None:
    assert Settings().steps == 5 * 23
