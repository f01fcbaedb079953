"""Writes docs/tables/zoos.md from what the pairs said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..answers import machine, table
from .frame import FRAME, REASONS
from .libraries import PAIRS
from .pair import Pair

Answers = Mapping[str, Mapping[str, Any]]
BUG_KEYS = {"caught": "caught", "placed": "at the right place", "named": "named"}
LIBRARIES = ("torch", "torchvision", "timm", "transformers", "jax", "flax", "equinox", "dm-haiku", "numpy")

HEAD = """\
# Models of JAX libraries, beside the torch models that they follow

Equinox's eqxvision, NNX's bonsai, Linen's jax-resnet, vision_transformer, big_vision and nanodo, and Haiku:
their authors wrote models after torch's, or torch's libraries after theirs. [compare](../compare.md) is
asked whether a file of these libraries is the same function as the model of torchvision, timm or transformers
of its name. This page is printed by

    JAX_ZOOS=FOLDER python benchmarks/zoos/run.py --out docs/tables/zoos.md

where FOLDER holds the libraries' checkouts, and nothing of them is part of jaxpar.

{machine}

Both models of a pair have the same small settings, a batch of 2, and torch's weights and statistics, shaken
so that no scale is 1 and no bias 0. Outputs and gradients of one call are compared at the semantic level, in
float64, in the mode of evaluation. No seed drew what was asked: the files were asked library by library, as
far as time went."""

RESULTS = """\
## What was said

*lines* are those of a mapping: none if all names agree, else those that `match` found with one example; a
user writes none of them. *largest* is max|c - r| / max|r| of the tensor nearest to its bound of 1e-10.
A pair that is different by itself has its explanation below; *cured* is the verdict after that setting
was changed in the torch model."""

BUGS = """\
## Planted bugs

One in each model, in a copy of its torch side, by turns: an epsilon, the weights of two layers exchanged,
another activation. A model that is different by itself is cured first. *At the right place*: the first
place that is named is that layer, or the code between two layers where it is. *Named*: a cause says it."""


def write(answers: Answers) -> str:
    parts = [
        HEAD.format(machine=machine(LIBRARIES)),
        summary(answers),
        RESULTS + "\n\n" + results(answers),
        BUGS + "\n\n" + bugs(answers),
        differences(),
        frame(),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def right(pair: Pair, answer: Mapping[str, Any]) -> bool:
    """Whether the verdict is that of both sources: different where they differ, the same after the cure."""
    expected = "different" if pair.why else "same"
    cured = answer.get("cured")
    return answer["verdict"] == expected and (cured is None or cured["verdict"] == "same")


def good(answers: Answers) -> bool:
    """Whether every pair has the right verdict, and every bug is caught."""
    verdicts = all(right(pair, answers[pair.name]) for pair in PAIRS if pair.name in answers)
    return verdicts and all(bug["caught"] for bug in bugs_in(answers))


def bugs_in(answers: Answers) -> list[Mapping[str, Any]]:
    return [answer["bug"] for answer in answers.values() if answer.get("bug") and "caught" in answer["bug"]]


def summary(answers: Answers) -> str:
    asked = [(pair, answers[pair.name]) for pair in PAIRS if pair.name in answers]
    verdicts = [answer["verdict"] for _, answer in asked]
    different = [(pair, answer) for pair, answer in asked if answer["verdict"] == "different"]
    cured = [answer["cured"] for _, answer in asked if answer.get("cured")]
    planted = bugs_in(answers)
    rows = [
        ("files of models", len(FRAME)),
        ("with a twin in torch", sum(name not in REASONS for name in FRAME)),
        ("asked", len(asked)),
        ("the right verdict", f"{sum(right(*each) for each in asked)} of {len(asked)}"),
        ("the same", verdicts.count("same")),
        ("different, and so they are", sum(right(*each) for each in different)),
        ("named by a cause", f"{sum(answer['named'] for _, answer in different)} of {len(different)}"),
        ("the same after the cure", f"{sum(each['verdict'] == 'same' for each in cured)} of {len(cured)}"),
        ("no verdict", verdicts.count("none")),
        ("lines of mapping that a user writes", sum(written(pair) for pair, _ in asked)),
        *((f"bugs {words}", f"{sum(bool(bug[key]) for bug in planted)} of {len(planted)}")
          for key, words in BUG_KEYS.items()),
    ]  # fmt: skip
    return "## In short\n\n" + table(("", ""), rows)


def written(pair: Pair) -> int:
    """The lines that a user has to write: a mapping, and names to leave out."""
    return sum(len(pair.compared.get(key, ())) for key in ("mapping", "ignore_torch", "ignore_flax"))


def results(answers: Answers) -> str:
    rows = [row(pair, answers[pair.name]) for pair in PAIRS if pair.name in answers]
    return table(("", "verdict", "cured", "lines", "tensors", "largest", "seconds"), rows)


def row(pair: Pair, answer: Mapping[str, Any]) -> tuple[Any, ...]:
    if "error" in answer:
        return pair.name, f"**none**: {answer['error'].splitlines()[0][:200]}", "", "", "", "", ""
    verdict = answer["verdict"] if right(pair, answer) else f"**{answer['verdict']}**"
    if answer["constants"]:
        verdict += " up to float32 constants"
    cured = answer["cured"]["verdict"] if answer.get("cured") else ""
    lines = f"{answer['lines']} found" if answer["lines"] > written(pair) else answer["lines"] or "none"
    numbers = answer["tensors"], f"{answer['largest']:.1e}", f"{answer['seconds']:.0f}"
    return pair.name, verdict, cured, lines, *numbers


def bugs(answers: Answers) -> str:
    rows = [
        (pair.name, bug["name"], *("yes" if bug[key] else "**no**" for key in BUG_KEYS), cause(bug))
        for pair in PAIRS
        if (bug := answers.get(pair.name, {}).get("bug")) and "caught" in bug
    ]
    return table(("", "bug", *BUG_KEYS.values(), "what is said"), rows)


def cause(bug: Mapping[str, Any]) -> str:
    texts = [text for place in bug["places"] for text in place["causes"]]
    return (texts or [place["where"] for place in bug["places"]] or [""])[0][:160]


def differences() -> str:
    parts = [
        "## Differences in their code\n\nEach was said by a comparison on this page and read in both sources."
    ]
    reasons = dict.fromkeys(pair.why for pair in PAIRS if pair.why)
    for why in reasons:
        parts.append(f"* {', '.join(pair.name for pair in PAIRS if pair.why == why)}: {why}")
    return "\n\n".join(parts)


def frame() -> str:
    rows = [
        (name, REASONS.get(name, "asked" if name in {p.file for p in PAIRS} else "not asked"))
        for name in FRAME
    ]
    return "## The frame\n\nEach file of a model in these libraries, and why one has no pair.\n\n" + table(
        ("file", ""), rows
    )
