"""How far the losses of jaxpar and torch are apart in the examples: every one with a torch twin, in float64.

    python benchmarks/examples.py                        # 1, 4 and 8 replicas, 50 steps
    python benchmarks/examples.py 09 12 --devices 4      # some of them

Both sides begin with the same weights and take the same batches, uneven ones among them; beside_torch.py says
how. 12_gpt.py has its twin in the file (--torch). The table is Markdown. A run that fails ends with its last
words.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TWINS = sorted(path.stem for path in (ROOT / "benchmarks" / "twins").glob("*.py"))
NAMES = sorted([*TWINS, "12_gpt"])


def largest_difference(name: str, devices: int, steps: int) -> str:
    """Of an example's losses over so many steps, as it is printed."""
    command = [ROOT / "benchmarks" / "beside_torch.py", name]
    if name not in TWINS:
        command = [ROOT / "examples" / f"{name}.py", "--torch", "--float64"]
    done = subprocess.run(
        [sys.executable, *command, "--devices", str(devices), "--steps", str(steps)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAXPAR_PROGRESS": "off"},
    )
    found = re.findall(r"torch.*?(\d+) steps.*largest difference (\S+)", done.stdout)
    if done.returncode or len(found) != 1 or int(found[0][0]) != steps:
        sys.exit(f"{name} --devices {devices}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return found[0][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="how the files' names begin; all if left out")
    parser.add_argument("--devices", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    print("| example |", *(f"N = {n} |" for n in options.devices), "seconds |")
    print("|---|" + "---|" * len(options.devices) + "---|")
    for name in NAMES:
        if options.names and not name.startswith(tuple(options.names)):
            continue
        begun = time.monotonic()
        cells = [largest_difference(name, n, options.steps) for n in options.devices]
        print("|", " | ".join([f"{name}.py", *cells, f"{time.monotonic() - begun:.0f}"]), "|", flush=True)


if __name__ == "__main__":
    main()
