"""The same training with jaxpar and its peers: lines, seconds, and how far the weights are from torch's DDP.

    make peers

Each script of scripts/ trains the same network on scikit-learn's digits, from the same initial weights and in
the same order of data, with two CPU processes or two CPU devices. The reference is torch's
DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SCRIPTS = Path(__file__).parent / "scripts"
ATTEMPTS = 3
"""Now and then a process of torch 2.13 over gloo aborts in the end, when it leaves the group."""
BIN = Path(sys.executable).parent
IGNORED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


@dataclass(frozen=True)
class Peer:
    """A script, the command that starts it, packages whose versions are printed, and the steps of an epoch.

    An epoch has 28 batches of 64 rows, and one of 5 rows where the peer can train on it.
    """

    name: str
    script: str
    command: tuple[str, ...]
    packages: tuple[str, ...]
    steps: int = 29


PEERS = (
    Peer("torch DDP", "torch_ddp.py", ("torchrun", "--nproc-per-node", "2"), ("torch",)),
    Peer("jaxpar DDP", "jaxpar_ddp.py", ("jaxpar", "launch", "-n", "2"), ("jax", "flax")),
    Peer(
        "accelerate",
        "accelerate_ddp.py",
        (
            "accelerate",
            "launch",
            "--cpu",
            "--num_processes",
            "2",
            "--num_machines",
            "1",
            "--mixed_precision",
            "no",
        ),
        ("accelerate",),
    ),
    Peer("Lightning Fabric", "fabric_ddp.py", ("python",), ("lightning-fabric",)),
    Peer("Keras 3 on JAX", "keras_jax.py", ("python",), ("keras", "jax"), 28),
    Peer("JAX and Flax by hand", "plain_jax.py", ("python",), ("jax", "flax"), 28),
)


def code_lines(path: Path) -> int:
    """The lines of a script that hold code: neither blank, comment nor docstring."""
    lines: set[int] = set()
    with path.open("rb") as file:
        before = tokenize.NEWLINE
        for token in tokenize.tokenize(file.readline):
            docstring = token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT)
            if token.type not in IGNORED and not docstring:
                lines |= set(range(token.start[0], token.end[0] + 1))
            if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING):
                before = token.type
    return len(lines)


def train(peer: Peer, folder: Path) -> tuple[dict[str, np.ndarray], float]:
    """Run a script for an epoch; return its trained arrays and the seconds of the whole command.

    Raises subprocess.CalledProcessError with the script's output if it fails.
    """
    path = folder / f"{peer.script}.npz"
    variables = {
        "PEERS_OUT": str(path),
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": "",
        # Without it two virtual CPU devices wait for each other on two cores, and XLA ends the process.
        "PJRT_NPROC": "4",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2" if peer.command == ("python",) else "",
    }
    program, *options = peer.command
    for attempt in range(ATTEMPTS):
        begin = time.perf_counter()
        run = subprocess.run(
            [BIN / program, *options, SCRIPTS / peer.script],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=600,
        )
        seconds = time.perf_counter() - begin
        if run.returncode == 0:
            break
        print(f"{peer.name}, attempt {attempt + 1}:", run.stdout, run.stderr, file=sys.stderr, sep="\n")
    run.check_returncode()
    with np.load(path) as arrays:
        return dict(arrays), seconds


def distance(arrays: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> float:
    """The largest distance of an array from the reference's, relative to the largest value of that array."""
    return max(
        float(np.abs(arrays[name] - value).max() / np.abs(value).max()) for name, value in reference.items()
    )


def table(peers: Iterable[Peer], rounds: int, folder: Path) -> list[str]:
    reference, rows = {}, []
    for peer in peers:
        print(f"{peer.name} ...", file=sys.stderr, flush=True)
        runs = [train(peer, folder) for _ in range(rounds)]
        arrays, seconds = runs[0][0], sorted(seconds for _, seconds in runs)[rounds // 2]
        reference = reference or arrays
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in peer.packages)
        rows.append(
            f"| {peer.name} | {versions} | {code_lines(SCRIPTS / peer.script)} | {seconds:.1f} "
            f"| {'trained' if peer.steps == 29 else 'dropped'} "
            f"| {distance(arrays, reference):.1e} |"
        )
    return rows


HEAD = (
    "| | versions | lines of code | seconds of an epoch, with the start "
    "| the last 5 rows | distance of the weights from torch's DDP, after an epoch |"
    "\n|---|---|---|---|---|---|"
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each script; medians are printed")
    parser.add_argument(
        "--only", nargs="+", metavar="SCRIPT", help="scripts to run; the first is the reference"
    )
    options = parser.parse_args(arguments)
    peers = [peer for peer in PEERS if not options.only or peer.script in options.only]
    with tempfile.TemporaryDirectory() as folder:
        rows = table(peers, options.rounds, Path(folder))
    print(HEAD, *rows, sep="\n")
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}.")


if __name__ == "__main__":
    main()
