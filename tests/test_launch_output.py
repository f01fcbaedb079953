"""jaxpar launch: a full disk, a closed pipe and a terminal that stands still never stop a job.

What could not be written is counted, and said at the end.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxpar._tools.launch import sink
from jaxpar._tools.launch.sink import Sink

LINES, WIDTH = 3000, 1000
FLOOD = f"""
import sys
for i in range({LINES}):
    print(str(i) * {WIDTH // 4}, file=sys.stderr if "err" in sys.argv else sys.stdout, flush=True)
open("done", "w").close()
"""
CHILD = """
import os, subprocess
child = subprocess.Popen(["sleep", "600"])
open("child", "w").write(str(child.pid))
"""


def launch(path: Path, source: str, *arguments: str, options: tuple[str, ...] = (), **where: object):
    (path / "train.py").write_text(source)
    line = [sys.executable, "-m", "jaxpar", "launch", "-n", "1", *options, "train.py", *arguments]
    return subprocess.Popen(line, cwd=path, text=True, **where)  # type: ignore[call-overload]


def lost(text: str) -> int:
    found = re.search(r"([\d,]+) bytes of output could not be written to (\S+): (.+)", text)
    assert found, text
    return int(found[1].replace(",", ""))


@pytest.mark.slow
def test_a_full_disk_behind_stdout(tmp_path):
    with open("/dev/full", "w") as full:
        process = launch(tmp_path, FLOOD, stdout=full, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, (tmp_path / "done").exists()) == (0, True)
    assert lost(err) > LINES * 250
    assert "No space left on device" in err


@pytest.mark.slow
def test_a_full_disk_behind_stderr(tmp_path):
    with open("/dev/full", "w") as full:
        process = launch(tmp_path, FLOOD, "err", stdout=subprocess.PIPE, stderr=full)
        process.communicate(timeout=60)
    assert (process.returncode, (tmp_path / "done").exists()) == (0, True)


@pytest.mark.slow
def test_a_full_disk_behind_the_log_files(tmp_path):
    folder = tmp_path / "logs" / "attempt_0"
    folder.mkdir(parents=True)
    (folder / "rank_0.log").symlink_to("/dev/full")
    options = ("--log-dir", "logs", "--no-tee")
    process = launch(tmp_path, FLOOD, options=options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, (tmp_path / "done").exists()) == (0, "", True)
    assert lost(err) > LINES * 250
    assert "rank_0.log: No space left on device" in err


@pytest.mark.slow
def test_a_reader_that_goes_away(tmp_path):
    process = launch(tmp_path, FLOOD, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    with process.stderr:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert (process.wait(60), (tmp_path / "done").exists()) == (0, True)
    assert "stdout: Broken pipe" in err


@pytest.mark.slow
def test_a_terminal_that_stands_still(tmp_path):
    process = launch(tmp_path, FLOOD, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not (tmp_path / "done").exists():  # nobody has read a byte
        assert time.monotonic() < end
        time.sleep(0.05)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert len(out.splitlines()) == LINES


@pytest.mark.slow
def test_what_a_rank_started_ends_with_the_launch(tmp_path):
    process = launch(tmp_path, CHILD, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    child = Path("/proc", (tmp_path / "child").read_text(), "stat")
    end = time.monotonic() + 10
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < end, "what the rank started still runs"
        time.sleep(0.05)


# ---------------------------------------------------------------------------------------- a sink alone


def test_all_is_written_in_order():
    reading, writing = os.pipe()
    place = Sink("a pipe", writing)
    pieces = [b"%d\n" % i * 999 for i in range(200)]
    got: list[bytes] = []

    def read():
        while data := os.read(reading, 1 << 16):
            got.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    for piece in pieces:
        place.put(piece)
    place.close(10)
    os.close(writing)
    reader.join()
    os.close(reading)
    assert b"".join(got) == b"".join(pieces)
    assert place.report() == ""


def test_a_system_that_takes_a_few_bytes_at_a_time(monkeypatch, tmp_path):
    write, file = os.write, tmp_path / "out"
    monkeypatch.setattr(sink.os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    with open(file, "wb") as opened:
        one = sink.Sink("file", opened.fileno())
        for i in range(20):
            one.put(b"line %d of twenty\n" % i)
        one.close(5)
    assert file.read_bytes() == b"".join(b"line %d of twenty\n" % i for i in range(20))
    assert one.report() == ""


def test_what_does_not_fit_is_counted(monkeypatch):
    monkeypatch.setattr(sink, "ROOM", 1 << 18)
    reading, writing = os.pipe()
    place = Sink("a pipe", writing)
    for _ in range(100):
        place.put(b"x" * 10_000)
        assert place.size <= 1 << 18
    place.close(0.2)
    arrived = len(os.read(reading, 1 << 20))
    assert 0 < arrived < 1_000_000
    # The piece that is being written may have been written in part.
    assert 0 <= place.lost + arrived - 1_000_000 <= 10_000
    assert place.report() == f"{place.lost:,} bytes of output could not be written to a pipe: it stood still"
    os.close(reading)
    place.thread.join(5)
    os.close(writing)
