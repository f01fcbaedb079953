"""Try edits of a port: an edit is proven by a run that agrees at the place and makes nothing else worse."""

from __future__ import annotations

import inspect
import runpy
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import FileError
from .._comparison import Comparison
from .._comparison_data import Cause, Divergence
from .._exactness import exact
from .._trace.judging import against, paired
from .._trace.reading import TraceFile
from .edits import proposals
from .making import ENTRY_POINTS, TRACE
from .plain_edits import FACTOR, numbers, plain_edits
from .plain_run import Arrived, LineEvents, PlainRun, Wrong, is_forward, lines_before
from .reproduction import Reproduction, reproduction, smallest
from .source import Code, diff

MOST_EDITS = 12  # that a comparison judges
MOST_RUNS = 600  # of the plain code


def judged(folder: Path, port: Path) -> Comparison:
    """Run a port's file and hold it against the contract's trace."""
    sys.path.insert(0, str(port.resolve().parent))
    try:
        module, options = _entry_points(runpy.run_path(str(port)), port)
    finally:
        sys.path.pop(0)
    return against(folder / TRACE, module, **options)


def _entry_points(defined: dict[str, Any], port: Path) -> tuple[Any, dict[str, Any]]:
    """Return the model that a port defines, and the options of `against`."""
    if "flax_module" not in defined:
        raise FileError(f"{port}: it does not define flax_module.")
    options = {name: defined[name] for name in ENTRY_POINTS if name in defined}
    for name in ("loss", "optimizer"):
        both = options.get(name)
        if isinstance(both, tuple | list) and not hasattr(both, "_fields"):
            options[name] = both[1]  # of pairs for both frameworks
    module = options.pop("flax_module")
    return module() if _makes(module) else module, options


def _makes(module: Any) -> bool:
    return inspect.isclass(module) or inspect.isfunction(module)


class Tries:
    """Edits of a port, each judged by a run."""

    def __init__(self, folder: Path, port: Path, source: str, recorded: TraceFile, deadline: float):
        self.folder, self.port, self.source, self.recorded = folder, port, source, recorded
        self.deadline = deadline

    def best(self, comparison: Comparison, divergence: Divergence) -> dict[str, Any]:
        """Return the cause with its proof: an edit without which this place, and no other, differs."""
        causes = divergence.causes or (None,)
        self.mended: str | None = None
        for changed, cause in self._changed(divergence, causes):
            again = self._again(changed)
            if again is not None and _mends(comparison, again):
                self.mended = changed
                text = cause.text if cause else _without_cause(divergence)
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

    @cached_property
    def plain(self) -> PlainTries | None:
        try:
            return PlainTries(self)
        except Exception:
            return None  # a port that can only be run as a whole, such as one that drops by itself

    def _changed(
        self, divergence: Divergence, causes: tuple[Cause | None, ...]
    ) -> Iterator[tuple[str, Cause | None]]:
        defined = runpy.run_path(str(self.port))
        is_factory = _makes(defined.get("flax_module"))
        tried = {self.source}
        for changed, cause in self._suggested(divergence, causes, is_factory):
            if time.perf_counter() > self.deadline or len(tried) > MOST_EDITS:
                return
            if changed not in tried:
                tried.add(changed)
                yield changed, cause

    def _suggested(
        self, divergence: Divergence, causes: tuple[Cause | None, ...], is_factory: bool
    ) -> Iterator[tuple[str, Cause | None]]:
        """Yield the edits of plain code that agree when it runs alone, and then the edits of layers."""
        plain = self.plain if is_forward(divergence) else None
        for cause in causes:
            text = cause.text if cause else ""
            if plain:
                yield from ((changed, cause) for changed in plain.agreeing(text))
            else:
                yield from ((changed, cause) for changed in plain_edits(Code(self.source), text))
        for cause in causes:
            for changed in proposals(self.source, divergence, cause, self.recorded, is_factory):
                yield changed, cause

    def reproduction(self, divergence: Divergence) -> Reproduction | None:
        """Return the smallest program that shows the place; None if a whole step is needed."""
        if self.plain is None:
            return None
        try:
            program = reproduction(self.plain.run, self.plain.arrived, divergence, self.source)
            return program and smallest(program, self.mended)
        except Exception:
            return None  # a port that can only be run as a whole

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


class PlainTries:
    """Edits of the code between layers, each tried in a run of that code alone."""

    def __init__(self, tries: Tries):
        self.tries, self.runs = tries, 0
        events: list[tuple[str, Any]] = []
        with exact():
            pair, batches, _ = self._loaded(tries.source)
            self.run = PlainRun(pair, batches)
            with LineEvents(str(tries.port), events):
                self.before = self.run.wrong(self._loaded(tries.source)[0], events)
        self.arrived = self.run.arrived
        # Without a wrong place of this code, no edit can be seen to mend one.
        self.first = next(iter(self.before), None)
        self.code = Code(tries.source, lines_before(events, self.first) if self.first else ())

    def agreeing(self, text: str) -> Iterator[str]:
        """Yield the edits for a cause that leave fewer wrong places, the fewest first."""
        ranked: list[tuple[int, str]] = []
        for changed in self._fitted(text) if self.first else ():
            self.runs += 1
            if self.runs > MOST_RUNS or time.perf_counter() > self.tries.deadline:
                break
            wrong = self._wrong(changed)
            if wrong is not None and self.first not in wrong and wrong.keys() < self.before.keys():
                ranked.append((len(wrong), changed))
                if not wrong:
                    break
        yield from (changed for _, changed in sorted(ranked, key=lambda row: row[0]))

    def _fitted(self, text: str) -> Iterator[str]:
        """Yield the edits for a cause; a number to be fitted is the one that makes torch's array."""
        for changed in plain_edits(self.code, text):
            if FACTOR not in changed:
                yield changed
                continue
            arrays = []
            for number in ("1.0", "2.0"):
                if self._wrong(changed.replace(FACTOR, number)) is None or self.first not in self.run.arrived:
                    break
                arrays.append(self.run.arrived[self.first])
            if len(arrays) == 2 and (factor := linear(*arrays)):
                yield from (changed.replace(FACTOR, text) for text in numbers(factor))

    def _wrong(self, changed: str) -> Wrong | None:
        try:
            with exact():
                return self.run.wrong(self._loaded(changed)[0])
        except Exception:
            return None  # the edited code does not run

    def _loaded(self, source: str) -> Any:
        port = self.tries.port
        defined: dict[str, Any] = {"__name__": "port", "__file__": str(port)}
        sys.path.insert(0, str(port.resolve().parent))
        try:
            exec(compile(source, str(port), "exec"), defined)
        finally:
            sys.path.pop(0)
        module, options = _entry_points(defined, port)
        return paired(self.tries.recorded, module, **options)


def _without_cause(divergence: Divergence) -> str:
    code = f"the code in front of {divergence.candidate} is as the edit has it"
    return code if is_forward(divergence) else f"torch's own settings at {divergence.candidate}"


def linear(first: Arrived, second: Arrived) -> float | None:
    """Return the factor that makes torch's array, from the arrays of the factors 1 and 2."""
    slope = second.flax - first.flax
    size = float((slope * slope).sum())
    return float(((first.torch - first.flax) * slope).sum()) / size + 1 if size else None


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
