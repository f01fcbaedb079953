"""A copy of the working tree, with one mistake at a time."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from .plant import MisfitError, Plant

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = ".git", ".cache", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "shared"
RESULTS = {0: "survived", 1: "killed"}
NO_TESTS = 5  # pytest's exit status
"""By pytest's exit code; the others say that no test was run, or that pytest itself failed."""


@dataclasses.dataclass(frozen=True)
class Result:
    """`kind`: killed, survived, timed out, misfit or broken; `by`: the test that failed, or what is wrong;
    `checked`: that test passes without the plant."""

    kind: str
    by: str = ""
    checked: bool = False


class Tree:
    """Nothing is planted where somebody works. The copy shares the repository's compiled programs."""

    def __init__(self, folder: Path):
        self.root = folder
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=True)
        self.nursery = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py"))],
            cwd=folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, plant: Plant, seconds: float) -> Result:
        file = self.root / plant.file
        if not file.exists():
            return Result("misfit", f"{plant.file} is not there")
        healthy = file.read_text()
        try:
            self._write(file, plant.apply(healthy))
        except MisfitError as error:
            return Result("misfit", str(error))
        try:
            return self.test(plant.arguments(), seconds)
        finally:
            self._write(file, healthy)

    def test(self, arguments: list[str], seconds: float) -> Result:
        # `full` has the rows of sampled tables, which take no longer than their neighbours.
        quick = ["-m", "not slow and (not long or full)"]
        if "-m" in arguments or any("::" in word for word in arguments):
            quick = []
        code, said = self._pytest(["-x", *quick, *arguments], seconds)
        if code == NO_TESTS and quick:  # `-k` selects slow ones only
            code, said = self._pytest(["-x", *arguments], seconds)
        if code is None:
            return Result("timed out", f"{seconds:g} s")
        failed = _failed(said)
        if code in RESULTS or failed:  # with another code if a test's file cannot be imported
            return Result(RESULTS.get(code, "killed"), "".join(failed[:1]))
        ending = said.replace(f"{self.root}/", "").strip()[-300:]
        return Result("broken", f"pytest ends with {code}: {ending}")

    def failing(self, tests: list[str], seconds: float) -> list[str]:
        """Those of some tests that do not pass."""
        code, said = self._pytest(tests, seconds)
        if code not in RESULTS:
            raise RuntimeError(f"pytest ends with {code}: {said.strip()[-2000:]}")
        return _failed(said)

    def _pytest(self, arguments: list[str], seconds: float) -> tuple[int | None, str]:
        options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=no"]
        answer = self._ask({"arguments": [*options, *arguments], "seconds": seconds})
        return answer["code"], answer["said"]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(json.dumps(question) + "\n")
        self.nursery.stdin.flush()
        answer = self.nursery.stdout.readline()
        if not answer:
            raise RuntimeError(f"the nursery has ended with {self.nursery.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """Ends the nursery, and the tests that it runs."""
        self.nursery.terminate()
        self.nursery.wait()

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(self.root),
            "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "compiled"),
        }

    def _write(self, file: Path, content: str) -> None:
        """Python takes a compiled file of the same second and length for the right one."""
        file.write_text(content)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()


def _failed(said: str) -> list[str]:
    """The tests that pytest's summary names; in brackets may be a dash, as before the reason."""
    return re.findall(r"^(?:FAILED|ERROR) (tests/[^\[\n]+?(?:\[.*?\])?)(?: - .*)?$", said, re.MULTILINE)
