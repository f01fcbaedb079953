"""Which tests run a statement of jaxpar: those that are not slow, once, on a copy with counting.py in it.

python -m benchmarks.mutants.covered          # a quarter of an hour; it writes .cache/mutants-covered.jsonl
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .tree import NOT_COPIED, ROOT

MAP = ROOT / ".cache" / "mutants-covered.jsonl"
Runs = dict[tuple[str, str], dict[str, tuple[int, float]]]
"""By file and statement: the tests that run it, and of each its number of statements and its seconds."""


def record() -> None:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy, notes = Path(folder) / "copy", Path(folder) / "notes"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
        shutil.copy(Path(__file__).with_name("counting.py"), copy / "sitecustomize.py")
        notes.mkdir()
        settings = {
            "PYTHONPATH": str(copy),
            "MUTANTS_COVERED": str(notes),
            "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "compiled"),
        }
        # pytest's own assertions would need pytest's own loader, which takes no notes.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "sitecustomize",
            "-p",
            "no:xdist",
            "--assert=plain",
        ]
        options = ["--tb=no", "-p", "no:cacheprovider", "-m", "not slow and not long"]
        subprocess.run([*command, *options], cwd=copy, env=os.environ | settings)
        MAP.write_text("".join(path.read_text() for path in sorted(notes.glob("*.jsonl"))))


def read() -> Runs:
    """The map, without tests that failed on the copy."""
    runs: Runs = {}
    for line in MAP.read_text().splitlines():
        entry = json.loads(line)
        if entry["seconds"] != entry["seconds"]:
            continue
        total = sum(map(len, entry["ran"].values()))
        for file, names in entry["ran"].items():
            for name in names:
                by = runs.setdefault((file, name), {})
                by[entry["test"]] = max((total, entry["seconds"]), by.get(entry["test"], (0, 0.0)))
    return runs


if __name__ == "__main__":
    record()
