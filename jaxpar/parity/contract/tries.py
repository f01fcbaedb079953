"""Try edits of a port: an edit is proven by a run that agrees at the place and makes nothing else worse."""

from __future__ import annotations

import itertools
import runpy
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._comparison import Comparison
from .._comparison_data import Cause, Divergence
from .._trace.reading import TraceFile
from .edits import proposals
from .live import judged, makes
from .making import SIDE
from .neighbour_search import NeighbourSearch, Progress
from .plain_edits import plain_edits
from .plain_run import is_forward
from .reproduction import Reproduction, reproduction, smallest
from .source import diff

MOST_EDITS = 40  # that a comparison judges
MOST_PROVEN = 3  # edits in an answer
Suggested = tuple[str, Cause | None, int]  # a source, its cause, and the batch of a neighbour, otherwise 0


class Tries:
    """Edits of a port, each judged by a run."""

    def __init__(
        self,
        folder: Path,
        port: Path,
        source: str,
        recorded: TraceFile,
        deadline: float,
        progress: Progress | None = None,
    ):
        self.folder, self.port, self.source, self.recorded = folder, port, source, recorded
        self.deadline, self.progress = deadline, progress
        self.mended: str | None = None
        self._search: NeighbourSearch | None = None

    def best(self, comparison: Comparison, divergence: Divergence) -> dict[str, Any]:
        """Return the cause with its proof: an edit without which this place, and no other, differs."""
        proven: list[tuple[str, Cause | None, Comparison]] = []
        batch_of_proof = None
        for changed, cause, batch in itertools.islice(self._changed(divergence), MOST_EDITS):
            if proven and batch != batch_of_proof:
                break
            again = self._again(changed)
            if again is not None and mends(comparison, again):
                proven.append((changed, cause, again))
                batch_of_proof = batch
                if not batch or len(proven) == MOST_PROVEN:
                    break
        if not proven:
            first = divergence.causes[0] if divergence.causes else None
            guess = first and {"text": first.text, "proven": False, "relative": first.relative}
            return {"cause": guess, "edit": None, "other_edits": []}
        self.mended, cause, _ = proven[0]
        text = cause.text if cause else _without_cause(divergence)
        edits = [self._edit(changed, again) for changed, _, again in proven]
        return {
            "cause": {"text": text, "proven": True, "relative": cause.relative if cause else None},
            "edit": edits[0],
            "other_edits": edits[1:],
        }

    def _edit(self, changed: str, again: Comparison) -> dict[str, str]:
        verdict = "same" if again.same else "this place agrees; others differ"
        return {
            "file": str(self.port),
            "diff": diff(self.source, changed, self.port.name),
            "verdict": verdict,
        }

    def neighbours(self, divergence: Divergence) -> NeighbourSearch | None:
        if self._search is None:
            side = self.folder / SIDE
            hints = side.read_text(encoding="utf-8") if side.exists() else ""
            arguments = self.source, self.port, self.recorded, divergence, self.deadline, hints
            try:
                self._search = NeighbourSearch(*arguments)
            except Exception:
                return None  # a port that can only be run as a whole, such as one that drops by itself
        return self._search

    @property
    def notes(self) -> list[str]:
        is_stopped = self._search is not None and self._search.stopped
        return ["The search for an edit was stopped; a later one may mend the port."] if is_stopped else []

    def _changed(self, divergence: Divergence) -> Iterator[Suggested]:
        tried = {self.source}
        for changed, cause, batch in self._suggested(divergence):
            if time.perf_counter() > self.deadline:
                return
            if changed not in tried:
                tried.add(changed)
                yield changed, cause, batch

    def _suggested(self, divergence: Divergence) -> Iterator[Suggested]:
        """Yield the edits of causes' rules, torch's own settings, and neighbours that agree."""
        causes: tuple[Cause | None, ...] = divergence.causes or (None,)
        is_factory = makes(runpy.run_path(str(self.port)).get("flax_module"))
        search = self.neighbours(divergence)
        for cause in causes if search else ():
            assert search
            edits = plain_edits(search.code, cause.text if cause else "")
            agreeing = (x for x in edits if not search.first or search.wrong(x) is not None)
            yield from ((changed, cause, 0) for changed in agreeing)
        settings = [
            (changed, cause, 0)
            for cause in causes
            for changed in proposals(self.source, divergence, cause, self.recorded, is_factory)
        ]
        yield from settings if not is_forward(divergence) else ()
        if search:
            first = divergence.causes[0] if divergence.causes else None
            for batch, changed in search.agreeing(self._agrees, self.progress):
                yield changed, first, batch
        yield from settings if is_forward(divergence) else ()

    def reproduction(self, divergence: Divergence) -> Reproduction | None:
        """Return the smallest program that shows the place; None if a whole step is needed."""
        search = self.neighbours(divergence)
        if search is None:
            return None
        try:
            program = reproduction(search.run, search.arrived, divergence, self.source)
            return program and smallest(program, self.mended)
        except Exception:
            return None  # a port that can only be run as a whole

    def _agrees(self, changed: str) -> bool:
        again = self._again(changed, search=False)
        return again is not None and again.same

    def _again(self, changed: str, search: bool = True) -> Comparison | None:
        # Beside the port, so that it imports what the port imports.
        with tempfile.NamedTemporaryFile(
            "w", suffix=".py", dir=self.port.resolve().parent, encoding="utf-8"
        ) as file:
            file.write(changed)
            file.flush()
            try:
                return judged(self.folder, Path(file.name), search)
            except Exception:
                return None  # the edited port does not run


def _without_cause(divergence: Divergence) -> str:
    code = f"the code in front of {divergence.candidate} is as the edit has it"
    return code if is_forward(divergence) else f"torch's own settings at {divergence.candidate}"


def mends(before: Comparison, after: Comparison) -> bool:
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
