"""The command line: fast, and plain about misuse."""

import subprocess
import sys
import time

import pytest
from click.testing import CliRunner


def jaxpar(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jaxpar", *args], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_help_is_fast() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        ended = jaxpar("--help")
        seconds.append(time.perf_counter() - start)
        assert ended.returncode == 0
        assert "demo" in ended.stdout
    assert min(seconds) < 1


@pytest.mark.slow
@pytest.mark.parametrize("args", [["--help"], ["--version"], ["demo", "--help"], ["demo", "--devices", "0"]])
def test_saying_something_starts_nothing(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from jaxpar._cli.main import cli\n"
        f"try: cli({args!r})\n"
        "except SystemExit: pass\n"
        "print(sorted({'jax', 'flax', 'torch', 'numpy', 'rich'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_version() -> None:
    ended = jaxpar("--version")
    assert (ended.returncode, ended.stdout.split()[0]) == (0, "jaxpar")


@pytest.mark.slow
def test_demo_help_names_the_defaults() -> None:
    said = " ".join(jaxpar("demo", "--help").stdout.split())
    for expected in ("[default: 5; x>=1]", "8 virtual CPU devices", "--json", "jaxpar demo --devices 4"):
        assert expected in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["demo", "--devices", "0"], "Invalid value for '--devices': 0 is not in the range x>=1"),
        (["demo", "--devices", "many"], "'many' is not a valid integer range"),
        (["demo", "--batch-size", "0"], "Invalid value for '--batch-size'"),
        (["launch", "-n", "1", "--step-timeout", "nan", "x.py"], "nan is not a finite number"),
        (["launch", "-n", "1", "--grace", "NaN", "x.py"], "NaN is not a finite number"),
        (["launch", "-n", "1", "--grace", "inf", "x.py"], "inf is not a finite number"),
        (["estimate", "x.py", "--products", "nan"], "nan is not a finite number"),
        (["estimate", "x.py", "--flops", "nan"], "nan is not a finite number"),
        (["estimate", "x.py", "--png", "nowhere/x.png"], "there is no folder"),
        (["devices", "--watch", "nan"], "nan is not a finite number"),
    ],
)
def test_misuse_exits_with_2(args: list[str], message: str) -> None:
    ended = jaxpar(*args)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", ["demo", "parity", "devices", "env"])
def test_devices_are_started_before_a_command_runs(command, monkeypatch, tmp_path):
    from jaxpar._cli import main

    counts = []

    def started(count):
        counts.append(count)
        raise KeyboardInterrupt  # nothing more of the command runs

    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.setattr(main, "start_devices", started)
    (spec := tmp_path / "spec.py").write_text("")
    arguments = [command, *([str(spec)] if command == "parity" else []), "--devices", "3"]
    CliRunner().invoke(main.cli, arguments)
    assert counts == [3]
