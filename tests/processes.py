"""Real processes: a script in n of them, with the variables that torchrun sets, on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ended:
    """How a process ended. `code` is negative for a signal, as in `subprocess`."""

    code: int
    out: str
    err: str


def free_port() -> int:
    """A port of this host that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def environment(rank: int, n: int, port: int, devices: int = 1) -> dict[str, str]:
    """What torchrun gives rank `rank` of `n`; every process has `devices` CPU devices."""
    inherited = {k: v for k, v in os.environ.items() if "PJRT_NPROC" not in k and k not in OURS}
    return inherited | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(n),
        "LOCAL_WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        "JAXPAR_DEVICES": str(devices),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # as in conftest.py: compiling is most of the work
        "PYTHONDONTWRITEBYTECODE": "",  # hundreds of processes import jaxpar: a sixth of the time it takes
    }


def ranks(
    n: int, source: str, *, devices: int = 1, env: dict[str, str] | None = None, timeout: float = 120
) -> list[Ended]:
    """Runs the text of a script in n processes and waits until all have ended; at the timeout, kills them."""
    port, script = free_port(), textwrap.dedent(source)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=environment(rank, n, port, devices) | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]
    deadline = time.monotonic() + timeout
    try:
        ended = []
        for process in started:
            out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            ended.append(Ended(process.returncode, out, err))
        return ended
    finally:
        for process in started:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                pipe.close()


def outputs(ended: list[Ended]) -> list[str]:
    """What each rank printed; fails with the log of every rank that did not end well."""
    bad = [f"rank {r}: exit {e.code}\n{e.out}\n{e.err}" for r, e in enumerate(ended) if e.code]
    assert not bad, "\n".join(bad)
    return [e.out for e in ended]
