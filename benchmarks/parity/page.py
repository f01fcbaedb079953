"""Writes docs/tables/parity_proof.md from what the run found."""

from __future__ import annotations

import dataclasses
import itertools
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from .bugs.bug import Bug
from .fixed import CHECKS
from .proof import SEEDS, Answer

Cells = Iterable[object]


@dataclasses.dataclass
class Findings:
    """What was asked for; the rest is empty.

    Attributes:
      layers, architectures: semantic answers, by section.
      bugs: semantic answers, by section.
      numeric: an answer for each seed, by name of the healthy case.
      fixed: what each fixed tolerance says, by name of the healthy case or of the bug.
    """

    layers: dict[str, list[Answer]] = dataclasses.field(default_factory=dict)
    architectures: dict[str, list[Answer]] = dataclasses.field(default_factory=dict)
    bugs: dict[str, list[tuple[Bug, Answer]]] = dataclasses.field(default_factory=dict)
    numeric: dict[str, list[Answer]] = dataclasses.field(default_factory=dict)
    fixed: dict[str, dict[str, bool]] = dataclasses.field(default_factory=dict)

    @property
    def healthy(self) -> list[Answer]:
        return [*itertools.chain(*self.layers.values(), *self.architectures.values())]

    @property
    def planted(self) -> list[tuple[Bug, Answer]]:
        return [*itertools.chain(*self.bugs.values())]


HEAD = """\
# Does the comparison find bugs? 17 models, 82 planted bugs

Does [compare](../comparison.md) call the same what is the same, and different what is different? Here are
healthy pairs of torch and Flax modules, and such pairs with a bug planted on the Flax side. This page is
printed by

    {command}

{machine}

The sources are in `benchmarks/parity/`: `layers/`, `architectures/` (each file shows torch and Flax side by
side) and `bugs/`. Weights are torch's, shaken so that no scale is 1 and no bias 0, and moved to Flax by name.
Outputs, loss, input gradients, parameter gradients and state are compared, and with an optimizer the weights
after each step."""

LARGEST = "*Largest* is max|c - r| / max|r| of the worst tensor, both sides in float64; the bound is 1e-10."

PLANTED = """\
## Planted bugs

Each is a healthy pair with the Flax side made wrong. *First layer* is the first one that differs when every
layer is given torch's inputs. *Equal if* is what the catalogue of causes says of it."""

NUMERIC = """\
## The numeric level

Both sides in float32, held against torch in float64: the candidate's error over torch's own error, worst
tensor of each seed, root mean square / maximum. The bounds are 4 and 6, and higher for tensors of a few
elements. Optimizers are asked at the level of trajectories."""

FIXED = """\
## What fixed tolerances say

The same tensors of the same cases in float32. *False alarms* are healthy pairs that fail, *misses* are
planted bugs that pass. `assert_close` is `torch.testing.assert_close` with its own tolerances."""


def write(findings: Findings, command: str) -> str:
    parts = [HEAD.format(command=command, machine=machine()), summary(findings)]
    if findings.layers:
        parts += [f"## Layers\n\n{LARGEST}", *itertools.starmap(semantic, findings.layers.items())]
    if findings.architectures:
        parts += ["## Architectures", *itertools.starmap(semantic, findings.architectures.items())]
    if findings.bugs:
        parts += [planted(findings)]
    if findings.numeric:
        parts += [numeric(findings.numeric)]
    if findings.fixed:
        parts += [fixed(findings)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def machine() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "jax", "flax", "optax", "numpy"))
    return (
        f"{versions}; Python {platform.python_version()} on {platform.machine()} ({platform.system()}), CPU."
    )


def summary(findings: Findings) -> str:
    rows: list[Cells] = []
    if findings.healthy:
        same = [answer.same for answer in findings.healthy]
        worst = max(findings.healthy, key=lambda answer: answer.relative)
        rows += [
            ("healthy pairs that are semantic-equal", f"{sum(same)} of {len(same)}"),
            ("tensors in them", f"{sum(answer.tensors for answer in findings.healthy):,}"),
            ("largest number", f"{worst.relative:.1e} ({worst.name})"),
        ]
    if findings.planted:
        caught = [not answer.same for _, answer in findings.planted]
        listed = [named(bug, answer) for bug, answer in findings.planted if bug.cause]
        rows += [
            ("planted bugs that are caught", f"{sum(caught)} of {len(caught)}"),
            ("planted bugs of the catalogue that are named", f"{sum(listed)} of {len(listed)}"),
        ]
    if findings.numeric:
        answers = [*itertools.chain(*findings.numeric.values())]
        alarms, tensors = (
            sum(not answer.same for answer in answers),
            sum(answer.tensors for answer in answers),
        )
        rms, largest = (
            max(getattr(answer, name) for answer in answers) for name in ("ratio_rms", "ratio_max")
        )
        rows += [
            (
                "false alarms at the numeric level",
                f"{alarms} in {len(answers)} comparisons, {tensors:,} tensors",
            ),
            ("largest ratios there, root mean square and maximum", f"{rms:.2f} and {largest:.2f}"),
        ]
    return "## In short\n\n" + table(("", ""), rows)


def semantic(title: str, answers: list[Answer]) -> str:
    rows = [(each.name, verdict(each), each.tensors, f"{each.relative:.1e}", each.where) for each in answers]
    return f"### {title}\n\n" + table(("", "verdict", "tensors", "largest", "in"), rows)


def planted(findings: Findings) -> str:
    parts = [PLANTED]
    for title, found in findings.bugs.items():
        rows = [
            (bug.name, verdict(answer), f"{answer.relative:.1e}", answer.layer, equal_if(bug, answer))
            for bug, answer in found
        ]
        head = ("bug", "verdict", "largest", "first layer", "equal if")
        parts.append(f"### {title}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def named(bug: Bug, answer: Answer) -> bool:
    """Whether one of the causes found is the planted one."""
    return bug.cause is not None and any(bug.cause in cause for cause in answer.causes)


def equal_if(bug: Bug, answer: Answer) -> str:
    """The cause that was planted, if it is among those found; else the best of them."""
    right = [cause for cause in answer.causes if bug.cause is not None and bug.cause in cause]
    nothing = "not in the catalogue" if bug.cause is None else "**not named**"
    return next(iter([*right, *answer.causes]), nothing)


def numeric(answers: Mapping[str, list[Answer]]) -> str:
    head = ("", "verdict", "tensors", *(f"seed {seed}" for seed in SEEDS))
    rows = [
        (
            name,
            "same" if all(answer.same for answer in each) else "**different**",
            each[0].tensors,
            *(f"{answer.ratio_rms:.2f} / {answer.ratio_max:.2f}" for answer in each),
        )
        for name, each in answers.items()
    ]
    return f"{NUMERIC}\n\n{table(head, rows)}"


def fixed(findings: Findings) -> str:
    """The counts first, then each case; bold where a check does not say the truth."""
    healthy = [answer.name for answer in findings.healthy]
    bugs = [bug.name for bug, _ in findings.planted]
    alarms = sum(not answer.same for answer in findings.healthy)
    misses = sum(answer.same for _, answer in findings.planted)
    counts: list[Cells] = [("compare, semantic", f"{alarms} of {len(healthy)}", f"{misses} of {len(bugs)}")]
    for check in CHECKS:
        alarms = sum(not findings.fixed[name][check] for name in healthy)
        misses = sum(findings.fixed[name][check] for name in bugs)
        counts.append((check, f"{alarms} of {len(healthy)}", f"{misses} of {len(bugs)}"))
    parts = [FIXED, table(("", "false alarms", "misses"), counts)]
    for title, names, right in (("Healthy pairs", healthy, True), ("Bugs", bugs, False)):
        rows = [(name, *(said(findings.fixed[name][check], right) for check in CHECKS)) for name in names]
        parts.append(f"### {title}\n\n" + table(("", *CHECKS), rows))
    return "\n\n".join(parts)


def said(passes: bool, right: bool) -> str:
    word = "passes" if passes else "fails"
    return word if passes == right else f"**{word}**"


def verdict(answer: Answer) -> str:
    return "same" if answer.same else "different"


def table(head: tuple[str, ...], rows: Iterable[Cells]) -> str:
    def line(cells: Cells) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *(line(row) for row in rows)])
