"""Examples that are interrupted or killed go on: the same steps in the log, the same loss to the last bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import jaxpar

ROOT = Path(__file__).resolve().parents[1]
KILLED = ["--steps", "16", "--save-every", "5", "--kill-at", "13"]


def environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("PJRT_NPROC", "JAX_NUM_CPU_DEVICES")}
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return inherited | quick | {"PYTHONPATH": str(ROOT), "JAXPAR_PROGRESS": "off"}


def run(*command: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=200, env=environment()
    )
    return done.returncode, done.stdout, done.stderr


def wait_for_rows(log: Path, rows: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 150
    while not log.exists() or len(log.read_text().splitlines()) < rows:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_and_a_log(tmp_path):
    example = ROOT / "examples" / "12_gpt.py"
    # 276 rows of text in batches of 23: one shape, so that no step waits for a compiler.
    small = ["--run", tmp_path, "--layers", "1", "--width", "16", "--text", "12033", "--batch-size", "23"]
    process = subprocess.Popen(
        [sys.executable, example, *small, "--steps", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        wait_for_rows(tmp_path / "metrics.jsonl", 5, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    step = jaxpar.Checkpointer(tmp_path).latest_valid()
    assert f"stopped after step {step}; to go on: --run {tmp_path}" in out
    assert jaxpar.MetricsLog.read(tmp_path)["step"].tolist() == list(range(1, step + 1))

    code, out, err = run(example, *small, "--steps", step + 3)
    assert code == 0, err
    log = jaxpar.MetricsLog.read(tmp_path)
    assert log["step"].tolist() == list(range(1, step + 4))
    assert np.isfinite(log["loss"]).all()


@pytest.fixture(scope="module")
def last_line(tmp_path_factory):
    """What the run prints that nobody stops."""
    example = ROOT / "examples" / "05_resume.py"
    code, out, err = run(example, "--run", tmp_path_factory.mktemp("whole"), *KILLED[:4], "--devices", 2)
    assert code == 0, err
    return out.strip().split("\n")[-1]


@pytest.mark.long
def test_killed_and_started_again_by_hand(tmp_path, last_line):
    example = ROOT / "examples" / "05_resume.py"
    code, _, err = run(example, "--run", tmp_path, *KILLED, "--devices", 2)
    assert code == -signal.SIGKILL, err
    code, out, err = run(example, "--run", tmp_path, *KILLED[:4], "--devices", 2)
    assert code == 0, err
    assert "goes on after step" in err
    assert out.strip().split("\n")[-1] == last_line
    assert "after 16 steps: loss" in last_line


@pytest.mark.long
def test_killed_and_started_again_by_the_launcher(tmp_path, last_line):
    options = [
        "-n",
        "1",
        "--devices-per-process",
        "2",
        "--max-restarts",
        "1",
        "--no-tee",
        "--log-dir",
        tmp_path,
    ]
    example = ROOT / "examples" / "05_resume.py"
    code, _, err = run("-m", "jaxpar", "launch", *options, example, "--run", tmp_path / "run", *KILLED)
    assert code == 0, err
    first, second = (tmp_path / f"attempt_{i}" / "rank_0.log" for i in range(2))
    assert "goes on after step" not in first.read_text()
    assert "goes on after step" in second.read_text()
    assert second.read_text().strip().split("\n")[-1] == last_line
