"""Writes docs/tables/ports.md from what was said of the cases."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ..answers import machine, table
from . import halves
from .models import FRAMES, GROUPS

Answer = Mapping[str, Any]
Answers = Mapping[str, Answer]
LIBRARIES = (
    *("torch", "torchvision", "transformers", "timm", "segmentation-models-pytorch", "vit-pytorch"),
    *("jax", "flax", "optax", "numpy"),
)
TITLES = {
    "ours": "Our own architectures",
    "torchvision_cnn": "torchvision: classifiers of convolutions",
    "torchvision_modern": "torchvision: attention, and what came after it",
    "torchvision_segmentation": "torchvision: segmentation",
    "torchvision_video": "torchvision: video",
    "transformers": "transformers",
    "pytorch_examples": "pytorch/examples",
    "timm": "timm",
    "smp": "segmentation-models-pytorch",
    "vit_pytorch": "vit-pytorch",
    "denoising_diffusion": "denoising-diffusion-pytorch",
    "labml": "labml_nn",
    "pytorch_cifar": "pytorch-cifar",
    "monai": "monai.networks.nets",
    "diffusers": "diffusers",
    "x_transformers": "x_transformers",
    "open_clip": "open_clip",
    "kornia": "kornia",
    "torchaudio": "torchaudio",
}
LIMIT = 1e-10
"""The largest relative difference. Beyond it compare says "same" of constants that torch has in float32, and
of numbers whose digits cancel in torch, too."""
MOST_LINES = 1.3
"""Lines of a port for each of torch's."""
BARS = {
    "our own architectures, the same": (("ours",), "same", 1.0),
    "torchvision, the same": (tuple(name for name in GROUPS if name.startswith("torchvision")), "same", 0.95),
    "transformers, without holes": (("transformers",), "without holes", 0.6),
}
"""What is counted in which groups, and the part of them that it should be."""

OTHERS = [group for group in GROUPS if group not in FRAMES]
HALVES = ("development", "reported")
IN_HALVES = """\
## In halves

The frames are all of a library: of each file of `timm.models` its smallest model; 40 pairs of an encoder
and a decoder of segmentation-models-pytorch, less 5 that torch refuses; of vit-pytorch the model of each file
that takes images, video or signals alone; of denoising-diffusion-pytorch the network of each file that has
one; of each file of labml_nn that imports, one module; of pytorch-cifar, of which PYTORCH_CIFAR names a
checkout, the smallest model of each file, less one that torch refuses; of each file of monai.networks.nets
one network, less ten files that need other packages, weights or lists of images; of diffusers, 29 small
configurations of its networks and their blocks; of x_transformers, a decoder with one of 24 options that are
off by default; of open_clip, 16 small configurations of its towers and losses; of kornia, 32 of 67 modules of
its packages that take images alone; of torchaudio, 13 of its models. A seed shuffles a frame's
names. The failures of the first half are read, and the rules mended; of the second half, the numbers are
only reported. A sample of the reported half is its first names. *beyond* is the same but for constants that
torch has in float32, or for digits that cancel; *out of time* needed more than its run allowed (120, 240, 300
or 600 seconds) beside other work. *lines* is the median ratio to torch's, and *seconds* the median of the
processor's."""

HEAD = """\
# Ported models: torchvision, transformers, pytorch/examples

[`jaxpar port`](../port.md) writes a torch module as Flax source code, and proves that it is the same. Here it
is asked about models that others wrote. This page is printed by

    {command}

{machine}

The models have random weights, small images and few words, and their own widths and depths where they have
no smaller ones. *Same* is what [compare](../compare.md) says of the written file in float64: outputs,
gradients, statistics and weights over five steps of training, and in evaluation of other shapes, at 1e-10.
*Same where digits do not cancel* has a larger difference, in numbers that a unit of float64 moves as far in
torch. *largest* is the largest relative difference in all of that, *lines* are those of the written file
and of what it was written from, without empty ones, and *seconds* what the processor spent on everything:
building, watching, writing and proving. A model that was not *asked* is not in the tables. The cases are in
`benchmarks/ports/models/`."""


def write(answers: Answers, command: str) -> str:
    parts = [HEAD.format(command=command, machine=machine(LIBRARIES)), short(answers), bars(answers)]
    parts += libraries(answers)
    for group in OTHERS:
        found = of(answers, group)
        if found:
            rows = [row(answer) for answer in found]
            head = ("", "verdict", "largest", "lines", "torch's", "ratio", "seconds")
            parts.append(f"## {TITLES[group]}\n\n{table(head, rows)}")
            parts += reasons(found)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def of(answers: Answers, *groups: str) -> list[Answer]:
    """What was said of the cases of groups, in their order."""
    names = [f"{group}/{case.name}" for group in groups for case in GROUPS[group]]
    return [answers[name] for name in names if name in answers]


def good(answers: Answers) -> bool:
    """Whether no file is different from its torch module."""
    return not any(answer["status"] == 1 for answer in answers.values())


def same(answer: Answer) -> bool:
    return bool(answer["status"] == 0 and answer["largest"] <= LIMIT)


def verdict(answer: Answer) -> str:
    holes = len(answer.get("holes", ()))
    constants = answer.get("constants", False)
    out_of_time = "timed out" in answer.get("failure", "")
    beyond = "same but for constants in float32" if constants else "same where digits do not cancel"
    return {
        0: "same" if same(answer) else beyond,
        1: "**different**",
        2: f"{holes} hole{'s' * (holes != 1)}",
        3: "no proof" if answer["written"] else "out of time" if out_of_time else "no file",
    }[answer["status"]]


def row(answer: Answer) -> tuple[object, ...]:
    name = answer["name"].partition("/")[2]
    if not answer["written"]:
        return (name, verdict(answer), "", "", "", "", "")
    largest = f"{answer['largest']:.1e}" if answer["proofs"] else ""
    seconds = f"{answer['processor']:.0f}"
    lines = (answer["lines"], answer["torch_lines"], f"{ratio(answer):.2f}")
    return (name, verdict(answer), largest, *lines, seconds)


def ratio(answer: Answer) -> float:
    return answer["lines"] / answer["torch_lines"]


def reasons(found: Iterable[Answer]) -> list[str]:
    """What stands in the way, and of which models."""
    by_reason: dict[str, list[str]] = {}
    for answer in found:
        name = answer["name"].partition("/")[2]
        for each in answer.get("holes") or filter(None, [answer.get("failure", "")]):
            by_reason.setdefault(each, []).append(name)
    if not by_reason:
        return []
    rows = [(f"`{reason[:200]}`", ", ".join(names)) for reason, names in by_reason.items()]
    return [table(("what stands in the way", "of"), rows)]


def short(answers: Answers) -> str:
    rows = [_counted(TITLES[group], len(GROUPS[group]), of(answers, group)) for group in OTHERS]
    head = ("", "models", "asked", "written", "same", "holes", "different", "no proof", "largest", "lines")
    return "## In short\n\n" + table(head, rows)


def _counted(title: str, cases: int, found: list[Answer]) -> tuple[object, ...]:
    statuses = [answer["status"] for answer in found]
    written = [answer for answer in found if answer["written"]]
    return (
        title,
        cases,
        len(found),
        len(written),
        sum(map(same, found)),
        statuses.count(2),
        statuses.count(1),
        statuses.count(3),
        f"{max((answer['largest'] for answer in found if same(answer)), default=0):.1e}",
        f"{statistics.median(map(ratio, written)):.2f}" if written else "",
    )


def libraries(answers: Answers) -> list[str]:
    """The halves of each frame in one table, then each frame's models."""
    rows, parts = [], []
    for group in FRAMES:
        drawn = dict(zip(HALVES, halves.halves(case.name for case in GROUPS[group]), strict=True))
        half_of = {name: half for half, names in drawn.items() for name in names}
        found = of(answers, group)
        for half, names in drawn.items():
            asked = [answer for answer in found if answer["name"].partition("/")[2] in names]
            rows.append((TITLES[group], halves.SEED, half, len(names), *_outcome(asked)))
        if found:
            models = [(name, half_of[name], *cells) for name, *cells in map(row, found) if name in half_of]
            head = ("", "half", "verdict", "largest", "lines", "torch's", "ratio", "seconds")
            parts.append(f"## {TITLES[group]}\n\n{table(head, models)}")
            parts += reasons(x for x in found if x["name"].partition("/")[2] in drawn[HALVES[0]])
    head = ("frame", "seed", "half", "models", "asked", "same", "beyond", "holes", "different")
    head += ("no proof", "no file", "out of time")
    return [IN_HALVES, table((*head, "lines", "seconds"), rows), *parts]


def _outcome(asked: list[Answer]) -> tuple[object, ...]:
    """How many were asked, the counts of the verdicts, and two medians."""
    verdicts = [verdict(answer) for answer in asked]
    counts = [
        verdicts.count(text) for text in ("same", "**different**", "no proof", "no file", "out of time")
    ]
    beyond = sum(text.startswith("same ") for text in verdicts)
    holes = sum("hole" in text for text in verdicts)
    written = [answer for answer in asked if answer["written"]]
    lines = f"{statistics.median(map(ratio, written)):.2f}" if written else ""
    seconds = f"{statistics.median(answer['processor'] for answer in written):.0f}" if written else ""
    return len(asked), counts[0], beyond, holes, *counts[1:], lines, seconds


def bars(answers: Answers) -> str:
    written = [answer for answer in of(answers, *OTHERS) if answer["written"]]
    rows = [_bar(title, answers, groups, what, bar) for title, (groups, what, bar) in BARS.items()]
    rows += [
        ("different, of these groups", "0", str(sum(x["status"] == 1 for x in of(answers, *OTHERS)))),
        ("names that are not in the source", "0", str(sum(len(answer["names"]) for answer in written))),
        ("undefined and unused names, also in libraries", "0", str(sum(map(_loose_names, answers.values())))),
        ("files that ruff would have otherwise", "0", str(sum(bool(answer["ruff"]) for answer in written))),
        ("lines for each of torch's, at most", str(MOST_LINES), f"{max(map(ratio, written), default=0):.2f}"),
    ]
    return "## Bars\n\n" + table(("", "bar", "is"), rows)


def _loose_names(answer: Answer) -> int:
    """How many names ruff finds that nothing defines, or nothing uses."""
    return len(re.findall(r"\bF(?:821|841|401)\b", answer.get("ruff", "")))


def _bar(
    title: str, answers: Answers, groups: tuple[str, ...], what: str, bar: float
) -> tuple[str, str, str]:
    """Of all cases: one that was not asked counts as none."""
    found = of(answers, *groups)
    count = sum(
        same(answer) if what == "same" else answer["written"] and not answer["holes"] for answer in found
    )
    return title, f"{bar:.0%}", f"{count} of {sum(len(GROUPS[group]) for group in groups)}"
