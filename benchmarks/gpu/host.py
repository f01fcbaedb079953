"""The machine: whether it has a GPU, and what it is called.

Nothing here imports JAX, which would take the memory of the cards.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

NONE = (
    "make gpu: this host has no GPU ({found}). Start it on one that has, or say `make gpu ON=cpu` to try "
    "the same programs small on virtual CPU devices."
)
DRIVERS = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""What NVIDIA's driver makes, the one of Windows' Linux, and AMD's."""


def has_gpu() -> bool:
    """Whether a driver of a GPU is there; whether JAX sees it is asked later."""
    return any(map(os.path.exists, DRIVERS))


def environment(variables: dict[str, str]) -> dict[str, dict]:
    """What `jaxpar env --json` says, in a process that gives the cards back."""
    command = [sys.executable, "-m", "jaxpar", "env", "--json"]
    run = subprocess.run(command, env=variables, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"make gpu: `{' '.join(command)}` failed:\n{run.stderr.strip()[-2000:]}")
    return json.loads(run.stdout)


def driver() -> str:
    """NVIDIA's version of it, as the kernel or nvidia-smi tells."""
    told = Path("/proc/driver/nvidia/version")
    found = re.search(r"Module.*?(\d+\.[\d.]+)", told.read_text()) if told.exists() else None
    if found:
        return found[1]
    if not shutil.which("nvidia-smi"):
        return "none"
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(ask, capture_output=True, text=True).stdout.split("\n")[0] or "unknown"


def processor() -> str:
    told = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", told.read_text(), re.M) if told.exists() else None
    return f"{os.cpu_count()} x {found[1] if found else 'unknown'}"


def facts(found: dict[str, dict], devices: int) -> dict[str, str]:
    """What stands above the table, by name."""
    kinds = [name.split(" ", 1)[1] for name in found["backends"]["devices"]]
    versions = {name: v for name, v in found["versions"].items() if v != "not installed"}
    return {
        "devices": f"{devices} of {len(kinds)} x {kinds[0]}",
        "driver": driver(),
        "host": processor(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "variables": ", ".join(f"{k}={v}" for k, v in found["variables"].items()) or "none that matter",
    }


if __name__ == "__main__":  # before anything is downloaded
    if sys.argv[1:] != ["cpu"] and not has_gpu():
        print(NONE.format(found="no driver of one"), file=sys.stderr)
        sys.exit(2)
