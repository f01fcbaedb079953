"""Check a port against its contract: the verdict, the first place, and an edit that was tried."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

from ...errors import FileError
from .._comparison import Comparison
from .._comparison_data import Divergence
from .._files.sealing import digest, read_manifest
from .._trace.reading import TraceFile, read
from .._trace.writing import MANIFEST
from .live import judged
from .making import FORMAT, NAME, PORT, TRACE, VERSION
from .neighbour_search import Progress
from .tries import Tries

ANSWER, ANSWER_VERSION = "jaxpar contract answer", 1
MET, NOT_MET, NO_VERDICT = 0, 1, 2
MOST_ROWS = 20


def check(
    folder: str, port: str | None = None, seconds: float = 300.0, progress: Progress | None = None
) -> tuple[dict[str, Any], int]:
    """Return the answer and the exit code: 0 met, 1 not met, 2 without a verdict.

    Args:
      folder: the contract.
      port: the file that defines the entry points; by default `port.py` in the folder.
      seconds: the time after which no further edit is tried.
      progress: called every few seconds with a line about the search; Ctrl-C then ends the search alone.
    """
    started, target = time.perf_counter(), Path(folder)
    path = Path(port) if port else target / PORT
    answer: dict[str, Any] = {
        "format": ANSWER, "version": ANSWER_VERSION, "contract": str(target), "port": str(path),
        "met": None, "verdict": None, "tensors": None, "place": None, "cause": None, "other_places": [],
        "edit": None, "other_edits": [], "reproduction": None, "unreached": [], "notes": [], "error": None,
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
        tries = Tries(target, path, source, recorded, started + seconds, progress)
        answer |= tries.best(comparison, comparison.divergence)
        answer["notes"] += tries.notes
        answer["reproduction"] = str(_reproduction(target, path, answer, comparison.divergence, tries))
    answer["seconds"] = time.perf_counter() - started
    return answer, MET if comparison.same else NOT_MET


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


def _reproduction(
    folder: Path, port: Path, answer: dict[str, Any], divergence: Divergence, tries: Tries
) -> Path:
    """Write the smallest program that ends with 1 while there is a difference, or else one of the whole."""
    path, sentence = folder / "reproduction.py", answer["place"]["sentence"]
    program = tries.reproduction(divergence)
    if program is not None:
        program.write(path, sentence)
        return path
    path.write_text(
        f'''"""{sentence}"""

import sys
from pathlib import Path

from jaxpar.parity.contract.live import judged

port = sys.argv[1] if len(sys.argv) > 1 else {str(port.resolve())!r}
comparison = judged(Path({str(folder.resolve())!r}), Path(port))
divergence = comparison.divergence
print(divergence.where if divergence else "The same.")
sys.exit(not comparison.same)
''',
        encoding="utf-8",
    )
    return path
