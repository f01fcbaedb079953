"""How far the losses of jaxpar and torch are apart in the examples: every one that has --torch, in float64.

    python benchmarks/examples.py                        # 1, 4 and 8 replicas, 50 steps
    python benchmarks/examples.py 09 12 --devices 4      # some of them

Each example trains both from the same weights on the same batches, uneven ones among them, and prints the
largest difference of the losses. The table is Markdown. A run that fails ends with its last words.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FEWER = {
    # Options that make a run cheaper and leave the comparison as it is.
    "09_resnet18.py": ["--width", "4"],
}


def largest_difference(example: Path, devices: int, steps: int) -> str:
    """Of an example's losses over so many steps, as it prints it."""
    with tempfile.TemporaryDirectory() as run:
        done = subprocess.run(
            [
                *(sys.executable, example, "--torch", "--float64", "--run", run),
                *("--devices", str(devices), "--steps", str(steps), *FEWER.get(example.name, [])),
            ],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "JAXPAR_PROGRESS": "off"},
        )
    found = re.findall(r"torch.*?(\d+) steps.*largest difference (\S+)", done.stdout)
    if done.returncode or len(found) != 1 or int(found[0][0]) != steps:
        sys.exit(f"{example.name} --devices {devices}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return found[0][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="how the files' names begin; all if left out")
    parser.add_argument("--devices", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    files = sorted((ROOT / "examples").glob("*.py"))
    files = [file for file in files if '"--torch"' in file.read_text()]
    files = [file for file in files if not options.names or file.name.startswith(tuple(options.names))]
    print("| example |", *(f"N = {n} |" for n in options.devices), "seconds |")
    print("|---|" + "---|" * len(options.devices) + "---|")
    for file in files:
        begun = time.monotonic()
        cells = [largest_difference(file, n, options.steps) for n in options.devices]
        print("|", " | ".join([file.name, *cells, f"{time.monotonic() - begun:.0f}"]), "|", flush=True)


if __name__ == "__main__":
    main()
