"""One case: its port, and what the proof says of it.

python -m benchmarks.ports.ask GROUP/NAME FILE.json
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

SETTINGS = "line-length = 110\n"
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
os.environ.setdefault("JAX_PLATFORMS", "cpu")


def ask(name: str, out: Path) -> dict[str, Any]:
    """The port is written to `out`."""
    from jaxpar import parity

    from .models import BY_NAME
    from .vision import torchvision

    with contextlib.suppress(ImportError):
        torchvision()  # before transformers, which imports it as well
    case = BY_NAME[name]
    started, worked = time.perf_counter(), time.process_time()
    try:
        inputs, kwargs = case.call()
        port = parity.port(case.make, *inputs, out=out, **kwargs)
    except Exception as error:
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}"
        answer: dict[str, Any] = {"status": 3, "failure": said.partition("\n")[0], "written": False}
    else:
        answer = said_of(port, out)
    spent = {"seconds": time.perf_counter() - started, "processor": time.process_time() - worked}
    return {"name": name, **answer, **spent}


def said_of(port: Any, out: Path) -> dict[str, Any]:
    from jaxpar.parity.measuring import Outcome

    from .names import strange

    return {
        "written": True,
        "status": port.status,
        "holes": list(port.holes),
        "notes": list(port.notes),
        "failure": port.failure,
        "proofs": [each.same for each in port.comparisons],
        "largest": port.largest,
        "constants": any(row.outcome is Outcome.CONSTANTS for each in port.comparisons for row in each.rows),
        "lines": port.lines,
        "torch_lines": port.torch_lines,
        "names": strange(port.source),
        "ruff": ruff(out),
        "build": port.build,
        "text": str(port.comparison) if port.status == 1 else "",
    }


def ruff(path: Path) -> str:
    """What ruff would have otherwise, with its own rules and `SETTINGS`; or nothing."""
    from ruff.__main__ import find_ruff_bin

    said = []
    for arguments in (["check"], ["format", "--check"]):
        command = [find_ruff_bin(), *arguments, "--quiet", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said += [done.stdout + done.stderr] * bool(done.returncode)
    return "".join(said)


def main(name: str, file: str) -> None:
    warnings.filterwarnings("ignore", category=FutureWarning)
    path = Path(file)
    (path.parent / "ruff.toml").write_text(SETTINGS)
    path.write_text(json.dumps(ask(name, path.with_suffix(".py")), indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
