"""The page: from what the visits found to Markdown. Every row that was asked for is on it, or says why."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping

from ask import Answer, Ask
from side import REFERENCES

LONGEST = 160
"""Of a reason, letters."""

SMALL = "Small models on CPU devices: this shows that the programs run, and no speed."
LEGEND = """\
Each visit of a side is a process of its own; sides take turns, in an order that changes. A number is the
median of the visits, for all devices together. `x` is how many times as fast a side is as the one in the
head; `spread` is from its fastest visit to its slowest. Memory is the peak on the fullest device, as the
framework's own allocator counts it."""
NOT_YET = "not run: stopped before its turn"
HEAD = ("model", "precision", "side", "a second", "spread", "ms a step", "first loss", "peak memory")


@dataclasses.dataclass(frozen=True)
class Result:
    """All visits of a side, the medians of them; `why` if one failed."""

    ask: Ask
    answers: tuple[Answer, ...] = ()

    @property
    def why(self) -> str | None:
        if not self.answers:
            return NOT_YET
        return next((answer.why for answer in self.answers if answer.why is not None), None)

    @property
    def seconds(self) -> float | None:
        return None if self.why else statistics.median(a.seconds for a in self.answers)

    @property
    def rate(self) -> float | None:
        """Images or tokens a second, of all devices together."""
        return None if self.seconds is None else self.ask.items / self.seconds

    @property
    def spread(self) -> float:
        """From the fastest visit to the slowest, as a part of the median."""
        seconds = [a.seconds for a in self.answers]
        return (max(seconds) - min(seconds)) / statistics.median(seconds)

    @property
    def memory(self) -> int | None:
        return max((a.memory for a in self.answers if a.memory is not None), default=None)


def table(results: Iterable[Result]) -> str:
    """A row for each side; a ratio is how many times as fast it is as the reference in that column."""
    results = list(results)
    head = [*HEAD, *(f"x {name}" for name in REFERENCES)]
    rates = {(r.ask.model, r.ask.precision, r.ask.side): r.rate for r in results}
    lines = [head, ["---"] * len(head)]
    for r in results:
        same = [rates.get((r.ask.model, r.ask.precision, name)) for name in REFERENCES]
        lines.append([f"{r.ask.model}, {r.ask.rows} a device", r.ask.precision, r.ask.side, *cells(r, same)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(r: Result, references: list[float | None]) -> list[str]:
    if r.rate is None:
        return [reason(r.why), *["-"] * (len(HEAD) - 4 + len(references))]
    loss, memory = r.answers[0].loss, r.memory
    return [
        f"{r.rate:,.0f} {r.ask.shape.unit}",
        f"{r.spread:.0%}",
        f"{r.seconds * 1e3:.2f}",
        "-" if loss is None else f"{loss:.3f}",
        "-" if memory is None else f"{memory / 2**30:.2f} GiB",
        *("-" if other is None else f"{r.rate / other:.3f}" for other in references),
    ]


def reason(why: str) -> str:
    """In one line of a table, without its bars."""
    words = " ".join(why.split()).replace("|", "/")
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}..."


def page(
    date: str,
    facts: Mapping[str, str],
    results: Iterable[Result],
    tests: Mapping[str, str],
    others: Mapping[str, str],
    *,
    small: bool,
) -> str:
    """The whole file: the machine, the table, the tests, what the other benchmarks printed."""
    warning = f"{SMALL}\n\n" if small else ""
    machine = "\n".join(f"* {name}: {value}" for name, value in {"date": date, **facts}.items())
    ran = "\n".join(f"* `{name}`: {ended}" for name, ended in tests.items()) or "None ran."
    printed = "\n\n".join(f"### {name}\n\n```\n{text.strip()}\n```" for name, text in others.items())
    return (
        f"# Measured on a machine\n\n`make gpu` wrote this page.\n\n{warning}{machine}\n\n"
        f"## Training steps\n\n{LEGEND}\n\n"
        f"{table(results)}\n\n## Tests\n\n{ran}\n\n## Other benchmarks\n\n{printed or 'None ran.'}\n"
    )
