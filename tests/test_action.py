"""The GitHub action: its steps, run by bash as a runner would, on specs that agree, differ and do not run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from jaxpar.parity import recorder

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parents[1] / "action"
STEPS = yaml.safe_load((FOLDER / "action.yml").read_text())
SPEC = """
from flax import nnx
norm = nnx.LayerNorm(4, epsilon={epsilon}, use_fast_variance=False, rngs=nnx.Rngs(0))
flax_module = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), norm)
"""


def run(folder: Path, **inputs: str) -> tuple[int, list[list[str]]]:
    """Run the steps with a command; return the exit code and the rows of the summary's last table."""
    values = {f"inputs.{name}": entry["default"] for name, entry in STEPS["inputs"].items()}
    values |= {"inputs.install": "", "github.action_path": str(FOLDER)}
    values |= {f"inputs.{name}": value for name, value in inputs.items()}
    summary = folder / "summary.md"
    summary.unlink(missing_ok=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {
        "GITHUB_STEP_SUMMARY": str(summary),
        "PATH": path,
        "PYTHONPATH": str(FOLDER.parent),
    }
    for step in STEPS["runs"]["steps"]:
        if "run" in step:
            script = re.sub(r"\$\{\{ (\S+) \}\}", lambda match: values[match[1]], step["run"])
            done = subprocess.run([step["shell"], "-ec", script], cwd=folder, env=environment)
            if done.returncode:
                break
    lines = summary.read_text().splitlines()[2:]
    return done.returncode, [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


@pytest.mark.slow
def test_a_table_stands_beside_that_of_the_last_commit(tmp_path):
    folder = tmp_path / "parity"
    folder.mkdir()
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    recorder.record(folder / "net.trace", net, np.random.RandomState(0).randn(5, 3))
    spec = folder / "net.py"
    spec.write_text(SPEC.format(epsilon="1e-5"))
    code, [[name, verdict, before, largest, place, cause]] = run(tmp_path)
    assert (code, name, verdict, before, place, cause) == (0, "parity/net.py", "same", "-", "", "")
    assert float(largest) < 1e-10

    spec.write_text(SPEC.format(epsilon="1e-3"))
    code, [[_, verdict, before, largest, place, cause]] = run(tmp_path)
    assert (code, verdict, before) == (1, "**different**", "same")
    assert float(largest) > 1e-4
    assert place.startswith("layers.1 (LayerNorm) differs")
    assert cause == "epsilon=1e-05 (it acts as 0.001)"

    (folder / "broken.py").write_text("flax_module = 1 |\n")
    code, [broken, different] = run(tmp_path)
    assert (code, broken[1], different[1:3]) == (2, "**no verdict**", ["**different**", "different"])
    assert "flax_module = 1 \\" in broken[5]


def test_answers_are_restored_and_saved_where_the_table_reads_and_writes_them():
    restore, *_, table, save = STEPS["runs"]["steps"]
    assert restore["with"]["path"] == save["with"]["path"]
    assert f"--answers {save['with']['path']} " in table["run"]
    assert save["if"] == "always()"
