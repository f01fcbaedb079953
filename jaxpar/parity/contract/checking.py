"""Check a port against its contract: the verdict, the first place, and an edit that was tried."""

from __future__ import annotations

import inspect
import runpy
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import FileError
from .._comparison import Comparison
from .._comparison_data import Cause, Divergence
from .._files.sealing import digest, read_manifest
from .._trace.judging import against
from .._trace.names import MANIFEST
from .._trace.reading import TraceFile, read
from .edits import diff, proposals
from .making import ENTRY_POINTS, FORMAT, NAME, PORT, TRACE, VERSION

ANSWER, ANSWER_VERSION = "jaxpar contract answer", 1
MET, NOT_MET, NO_VERDICT = 0, 1, 2
MOST_ROWS, MOST_EDITS = 20, 12


def check(folder: str, port: str | None = None, seconds: float = 300.0) -> tuple[dict[str, Any], int]:
    """Return the answer and the exit code: 0 met, 1 not met, 2 without a verdict.

    Args:
      folder: the contract.
      port: the file that defines the entry points; by default `port.py` in the folder.
      seconds: the time after which no further edit is tried.
    """
    started, target = time.perf_counter(), Path(folder)
    path = Path(port) if port else target / PORT
    answer: dict[str, Any] = {
        "format": ANSWER, "version": ANSWER_VERSION, "contract": str(target), "port": str(path),
        "met": None, "verdict": None, "tensors": None, "place": None, "cause": None, "other_places": [],
        "edit": None, "reproduction": None, "unreached": [], "notes": [], "error": None,
    }  # fmt: skip
    try:
        recorded = _contract(target)
        source = path.read_text(encoding="utf-8")
        comparison = judged(target, path)
    except (Exception, SystemExit) as error:  # the port's own code may raise anything
        answer["error"] = _error(error, path)
        answer["seconds"] = time.perf_counter() - started
        return answer, NO_VERDICT
    answer |= _described(comparison)
    if comparison.divergence:
        tries = Tries(target, path, source, recorded, started + seconds)
        answer |= tries.best(comparison, comparison.divergence)
        answer["reproduction"] = str(_reproduction(target, path, answer))
    answer["seconds"] = time.perf_counter() - started
    return answer, MET if comparison.same else NOT_MET


def judged(folder: Path, port: Path) -> Comparison:
    """Run a port's file and hold it against the contract's trace."""
    sys.path.insert(0, str(port.resolve().parent))
    try:
        defined = runpy.run_path(str(port))
    finally:
        sys.path.pop(0)
    if "flax_module" not in defined:
        raise FileError(f"{port}: it does not define flax_module.")
    options = {name: defined[name] for name in ENTRY_POINTS if name in defined}
    for name in ("loss", "optimizer"):
        both = options.get(name)
        if isinstance(both, tuple | list) and not hasattr(both, "_fields"):
            options[name] = both[1]  # of pairs for both frameworks
    module = options.pop("flax_module")
    return against(folder / TRACE, module() if _makes(module) else module, **options)


def _makes(module: Any) -> bool:
    return inspect.isclass(module) or inspect.isfunction(module)


def _contract(folder: Path) -> TraceFile:
    what = "no contract; `jaxpar contract make` writes one"
    contract = read_manifest(folder / NAME, what, FORMAT, VERSION)
    recorded = read(folder / TRACE)
    if digest(folder / TRACE / MANIFEST) != contract.get("trace_sha256"):
        raise FileError(f"{folder / TRACE}: it is not the trace that {NAME} was written for.")
    return recorded


def _described(comparison: Comparison) -> dict[str, Any]:
    divergence = comparison.divergence
    rows = comparison.different
    return {
        "met": comparison.same,
        "verdict": "same" if comparison.same else "different",
        "tensors": {
            "compared": len(comparison.rows),
            "different": len(rows),
            "first": [
                {
                    "kind": row.difference.kind.value,
                    "name": row.difference.name,
                    "step": row.difference.step,
                    "relative": _finite(row.difference.relative),
                    "limit": _finite(row.limit),
                    "fault": row.difference.fault,
                }
                for row in rows[:MOST_ROWS]
            ],
        },
        "place": _place(divergence) if divergence else None,
        "other_places": [
            {**_place(other), "causes": [cause.text for cause in other.causes]} for other in divergence.others
        ]
        if divergence
        else [],
        "unreached": [*comparison.unreached],
        "notes": [*comparison.notes],
    }


def _place(divergence: Divergence) -> dict[str, str]:
    return {
        "torch": divergence.reference,
        "jax": divergence.candidate,
        "kind": divergence.kind,
        "sentence": divergence.where,
    }


def _finite(x: float) -> float | str:
    return x if abs(x) < float("inf") else str(x)


def _error(error: BaseException, path: Path) -> dict[str, Any]:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = frames[-1].lineno if frames else None
    return {"type": type(error).__name__, "text": str(error), "line": line}


class Tries:
    """Edits of a port, each judged by a run."""

    def __init__(self, folder: Path, port: Path, source: str, recorded: TraceFile, deadline: float):
        self.folder, self.port, self.source, self.recorded = folder, port, source, recorded
        self.deadline = deadline

    def best(self, comparison: Comparison, divergence: Divergence) -> dict[str, Any]:
        """Return the cause with its proof: an edit without which this place, and no other, differs."""
        causes = divergence.causes or (None,)
        for changed, cause in self._changed(divergence, causes):
            again = self._again(changed)
            if again is not None and _mends(comparison, again):
                text = cause.text if cause else f"torch's own settings at {divergence.candidate}"
                return {
                    "cause": {"text": text, "proven": True, "relative": cause.relative if cause else None},
                    "edit": {
                        "file": str(self.port),
                        "diff": diff(self.source, changed, self.port.name),
                        "verdict": "same" if again.same else "this place agrees; others differ",
                    },
                }
        first = divergence.causes[0] if divergence.causes else None
        cause_of_guess = first and {"text": first.text, "proven": False, "relative": first.relative}
        return {"cause": cause_of_guess, "edit": None}

    def _changed(
        self, divergence: Divergence, causes: tuple[Cause | None, ...]
    ) -> Iterator[tuple[str, Cause | None]]:
        defined = runpy.run_path(str(self.port))
        is_factory = _makes(defined.get("flax_module"))
        tried = {self.source}
        for cause in causes:
            for changed in proposals(self.source, divergence, cause, self.recorded, is_factory):
                if time.perf_counter() > self.deadline or len(tried) > MOST_EDITS:
                    return
                if changed not in tried:
                    tried.add(changed)
                    yield changed, cause

    def _again(self, changed: str) -> Comparison | None:
        # Beside the port, so that it imports what the port imports.
        with tempfile.NamedTemporaryFile(
            "w", suffix=".py", dir=self.port.resolve().parent, encoding="utf-8"
        ) as file:
            file.write(changed)
            file.flush()
            try:
                return judged(self.folder, Path(file.name))
            except Exception:
                return None  # the edited port does not run


def _mends(before: Comparison, after: Comparison) -> bool:
    """Whether the first place agrees with the edit, and nothing differs that agreed before."""
    if after.same:
        return True
    first, now = before.divergence, after.divergence
    if first is None or now is None:
        return False
    before_edit, after_edit = (
        {(d.candidate, d.kind) for d in divergences} for divergences in (first.others, (now, *now.others))
    )
    return (first.candidate, first.kind) not in after_edit and after_edit <= before_edit


def _reproduction(folder: Path, port: Path, answer: dict[str, Any]) -> Path:
    """Write a program that shows the difference, and ends with 1 while there is one."""
    path = folder / "reproduction.py"
    path.write_text(
        f'''"""{answer["place"]["sentence"]}"""

import sys
from pathlib import Path

from jaxpar.parity.contract.checking import judged

comparison = judged(Path({str(folder.resolve())!r}), Path({str(port.resolve())!r}))
divergence = comparison.divergence
print(divergence.where if divergence else "The same.")
sys.exit(not comparison.same)
''',
        encoding="utf-8",
    )
    return path
