"""Compare the worlds of a script, and find out what makes them differ."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...parity import Bisection, bisect
from .names import ACCUMULATE, ALONE
from .running import Script, ScriptWorld, WorldRun, run_world

FORMAT, VERSION = "jaxpar.Invariance", 1
PERHAPS = "perhaps"
LATER = 3
"""So many steps are run again from the first that differs, when a suspect is removed."""

NO_TAPS = """it ended without taps, so there is nothing to compare. Train by jaxpar.train_step, or add
  tap = jaxpar.parity.Tap("taps", start=params)
before the loop, and in it, after the update,
  tap(step, batch=(x, y), loss=loss, gradients=gradients, parameters=params, optimizer=opt_state)"""

SAME = "without {} the worlds are the same"
SUSPECTS = {
    "statistics": (
        "BatchNorm normalises by the rows of each {}, as in torch ({}): " + SAME.format("batch statistics"),
        {
            "device": "jaxpar.convert_sync_batchnorm takes those of all devices",
            "accumulated batch": "only whole batches have the statistics of the whole batch",
        },
    ),
    "draws": (
        "random draws in the step (dropout, noise) depend on the {} ({}): " + SAME.format("draws"),
        {
            "device": "there is {}; draw for the whole batch, outside of what each device runs",
            "accumulated batch": "an update draws once for each",
        },
    ),
}


@dataclass(frozen=True)
class Pair:
    """A world, the world that it is compared with, and the result; None if one could not run."""

    reference: ScriptWorld
    world: ScriptWorld
    result: Bisection | None

    @property
    def distance(self) -> float:
        """The largest relative difference of any quantity in any step."""
        curves = self.result.curves if self.result is not None else {}
        return max((d for part, c in curves.items() if part != "batch" for d in c.distances), default=0.0)

    def headline(self) -> str:
        assert self.result is not None
        result, worlds = self.result, (self.world, self.reference)
        if result.same:
            bits = " (to the last bit)" if self.distance == 0 else ""
            return "{} is as {}: {} steps, to {:.1e}{}".format(*worlds, result.steps, self.distance, bits)
        since = "before the first step" if result.step == -1 else f"from step {result.step} on"
        quantity = result.headline().rpartition(": ")[2].rstrip(".")
        return "{} differs from {} {}: {}".format(*worlds, since, quantity)


@dataclass(frozen=True)
class Invariance:
    """The worlds of a script, compared."""

    script: str
    runs: tuple[WorldRun, ...]
    pairs: tuple[Pair, ...]
    errors: tuple[str, ...]

    @property
    def same(self) -> bool:
        return all(pair.result is not None and pair.result.same for pair in self.pairs)

    @property
    def exit_code(self) -> int:
        return 2 if self.errors else int(not self.same)

    def headline(self) -> str:
        if self.errors:
            return f"{self.script}: no verdict: {len(self.errors)} of its worlds could not be judged."
        if not self.same:
            different = [str(p.world) for p in self.pairs if p.result is not None and not p.result.same]
            return f"{self.script}: its training depends on the world: {', '.join(different)}."
        distance = max((pair.distance for pair in self.pairs), default=0.0)
        worlds = ", ".join(str(run.world) for run in self.runs)
        return f"{self.script}: the same in all worlds ({worlds}) to {distance:.1e}."

    def __str__(self) -> str:
        return "\n".join([self.headline(), *self._lines()])

    def _lines(self) -> Iterator[str]:
        notes: dict[str, None] = {}
        for pair in self.pairs:
            if pair.result is None:
                continue
            yield f"  {pair.headline()}"
            for i, cause in enumerate(pair.result.causes):
                yield f"    {'or' if i else 'Because'}: {cause}"
            if not pair.result.same and not pair.result.causes:
                yield "    No known cause explains it."
            for p in pair.result.partings[:1]:
                leaf = f" of {p.leaf}" if p.leaf else ""
                yield f"    {p.part}{leaf}: {p.a:.15g} and {p.b:.15g} (relative distance {p.distance:.2g})"
            notes |= dict.fromkeys(pair.result.notes)
        yield from (f"  Note: {text}" for text in notes)
        yield from (f"  {text}" for text in self.errors)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON, with a format and a version."""
        pairs = [
            {
                "reference": str(pair.reference),
                "world": str(pair.world),
                "same": pair.result.same,
                "distance": str(pair.distance) if pair.distance == float("inf") else pair.distance,
                "step": pair.result.step,
                "part": pair.result.part,
                "causes": list(pair.result.causes),
                "bisection": pair.result.as_dict(),
            }
            for pair in self.pairs
            if pair.result is not None
        ]
        runs = [{"world": str(r.world), "seconds": round(r.seconds, 2), "error": r.error} for r in self.runs]
        verdict = {"same": self.same and not self.errors, "exit_code": self.exit_code}
        return {
            "format": FORMAT, "version": VERSION, "script": self.script, **verdict,
            "errors": list(self.errors), "runs": runs, "pairs": pairs,
        }  # fmt: skip


def judged(
    script: Script,
    worlds: Sequence[tuple[int, int]],
    accumulate: Sequence[int],
    say: Callable[[str], None] = lambda text: None,
) -> Invariance:
    """Run the script in every world; compare worlds at the first accumulation, accumulations in a world."""
    runs: dict[ScriptWorld, WorldRun] = {}
    pairs: list[Pair] = []
    errors: list[str] = []
    first = ScriptWorld(*worlds[0], accumulate[0])
    for pair, k in itertools.product(worlds, accumulate):
        world = ScriptWorld(*pair, k)
        say(f"{world}: runs")
        run = runs[world] = run_world(script, world)
        reference = ScriptWorld(*pair, accumulate[0]) if k != accumulate[0] else first
        if run.taps is None:
            errors.append(f"{world}: {NO_TAPS if run.error == 'no taps' else run.error}")
            say(f"{world}: {run.seconds:.1f} s, could not run")
            if world == first or run.error == "no taps":
                break
        elif world == first or runs[reference].taps is None:
            say(f"{world}: {run.seconds:.1f} s")
        else:
            result = _compared(script, runs[reference], run, say)
            pairs.append(Pair(reference, world, result))
            say(f"{world}: {run.seconds:.1f} s; {pairs[-1].headline()}")
            if error := _untested(pairs[-1], run):
                errors.append(error)
                break
    return Invariance(script.path, tuple(runs.values()), tuple(pairs), tuple(errors))


def _untested(pair: Pair, run: WorldRun) -> str:
    """Return that the script takes no number of batches to accumulate, if that is so."""
    assert run.taps is not None
    assert pair.result is not None
    accumulations = pair.world.accumulate != pair.reference.accumulate
    if not accumulations or run.taps.name == ALONE or not pair.result.same or pair.distance:
        return ""
    return (
        f"{pair.world}: the script does the same to the last bit as in {pair.reference}: it takes no number "
        f"of batches to accumulate. Read int(os.environ.get({ACCUMULATE!r}, 1)), give it an argument with "
        "{accumulate}, or train by jaxpar.train_step, whose batches are divided without a change."
    )


def _compared(script: Script, a: WorldRun, b: WorldRun, say: Callable[[str], None]) -> Bisection:
    result = _bisected(a, b)
    assert result is not None
    suspects = sorted({*a.uses, *b.uses}, reverse=True)
    if result.same or result.step is None or not suspects:
        return result
    if not all(cause.startswith(PERHAPS) for cause in result.causes):
        return result
    again = dataclasses.replace(script, steps=max(result.step, 0) + LATER)
    kind = "accumulated batch" if a.world[:2] == b.world[:2] else "device"
    for without in [*((suspect,) for suspect in suspects), *([tuple(suspects)] if len(suspects) > 1 else [])]:
        removed = ", ".join(without)
        say(f"{b.world}: differs from step {result.step} on; {a.world} and {b.world} run without {removed}")
        pair = [run_world(again, run.world, without) for run in (a, b)]
        rerun = _bisected(*pair)
        # The running variance has n / (n - 1) of a device's rows even if the batch's variance is removed.
        allowed = {"extra"} if "statistics" in without else set()
        if rerun is not None and {parting.part for parting in rerun.partings} <= allowed:
            keys = "a key for each" if pair[1].keys > pair[0].keys else "the same key on several"
            texts = [SUSPECTS[name] for name in without]
            causes = tuple(text.format(kind, cure[kind].format(keys)) for text, cure in texts)
            return dataclasses.replace(result, causes=causes)
    proven = [cause for cause in (() if rerun is None else rerun.causes) if not cause.startswith(PERHAPS)]
    note = f"{b.world} also differs from {a.world} without {' and '.join(suspects)}"
    return dataclasses.replace(result, causes=tuple(proven) or result.causes, notes=(*result.notes, note))


def _bisected(a: WorldRun, b: WorldRun) -> Bisection | None:
    if a.taps is None or b.taps is None:
        return None
    return bisect(a.taps, b.taps, worlds=(str(a.world), str(b.world)))
