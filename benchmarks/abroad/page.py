"""Writes docs/tables/abroad.md from what the pairs said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..answers import machine, table
from .differences import DIFFERENCES
from .pair import Pair
from .pairs import PAIRS, SECTIONS

Answers = Mapping[str, Mapping[str, Any]]
BUG_KEYS = {"caught": "caught", "placed": "at the right place", "named": "named"}
COLUMNS = ("", "verdict", "weights", "tensors", "largest", "in", "seconds")
LIBRARIES = ("transformers", "diffusers", "torch", "jax", "flax", "optax", "numpy")

HEAD = """\
# Models of transformers and diffusers, compared

[compare](../compare.md) promises a verdict that is never wrong. Here it is asked about models that the
authors of transformers and diffusers wrote in torch and in Flax. This page is printed by

    {command}

{machine}

Each model is small and has random weights, shaken so that no scale is 1 and no bias 0. `parity.match` is
given both models and one example. Outputs, gradients and the weights after each of five steps of AdamW
are compared at the semantic level, in the mode of evaluation unless the name says otherwise. The table of
pairs is `benchmarks/abroad/pairs/`."""

TRUST = """\
## What can be trusted

A model that is *same* computes the same function in both frameworks, and trains alike, as far as the
settings of its row go. One that is *different* is explained [below](#differences-in-their-code).

*weights* is the number of lines of mapping: none if all names agree, *found* if `match` printed them,
*given* if a person wrote them. *largest* is max|c - r| / max|r| of the tensor nearest to its bound of
1e-10."""

BUGS = """\
## Planted bugs

Three in each model, in its Flax side: an epsilon, the weights of two layers exchanged, another activation
or a scale. They are compared in outputs and gradients of one step. *At the right place*: the first place
that is named is that layer, or the code between two layers where it is. *Named*: one of the causes says
it. A model that is different by itself is cured first, as its explanation says, and a variant that shows
a difference has none. Pairs that are not in the table were not asked about bugs in this run."""

DIFFERENT = """\
## Differences in their code

Each was found by a comparison on this page and confirmed by hand, as its last sentence says."""


def write(answers: Answers, command: str) -> str:
    parts = [HEAD.format(command=command, machine=machine(LIBRARIES)), summary(answers), TRUST]
    for title, section in SECTIONS.items():
        rows = [row(pair, answers.get(pair.name)) for pair in section]
        parts.append(
            f"### {title}\n\n"
            + table(("", "verdict", "weights", "tensors", "largest", "in", "seconds"), rows)
        )
    parts += [lines_of_mapping(answers), BUGS + "\n\n" + bugs(answers), differences()]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def good(answers: Answers) -> bool:
    """Whether every pair has a verdict, each difference its explanation, and every bug is caught."""
    verdicts = all(right(pair, answers[pair.name]) for pair in PAIRS if pair.name in answers)
    return verdicts and all(
        bug.get("caught") for answer in answers.values() for bug in answer.get("bugs", ())
    )


def right(pair: Pair, answer: Mapping[str, Any]) -> bool:
    """What is different must be explained, and what is explained must be different."""
    expected = "different" if any(pair.name in each.pairs for each in DIFFERENCES) else "same"
    return answer["verdict"] == expected


def summary(answers: Answers) -> str:
    asked = [answers[pair.name] for pair in PAIRS if pair.name in answers]
    correct = [right(pair, answers[pair.name]) for pair in PAIRS if pair.name in answers]
    found = [bug for answer in asked for bug in answer.get("bugs", ())]
    planted = sum(bool(answer.get("bugs")) for answer in asked)
    rows = [
        ("pairs", len(PAIRS)),
        ("with the right verdict", f"{sum(correct)} of {len(asked)}"),
        ("the same", sum(answer["verdict"] == "same" for answer in asked)),
        ("different, and so they are", sum(answer["verdict"] == "different" for answer in asked)),
        ("weights loaded without a line from the user", f"{sum(map(alone, PAIRS))} of {len(PAIRS)}"),
        ("tensors compared", f"{sum(answer.get('tensors', 0) for answer in asked):,}"),
        ("with bugs planted in them", f"{planted} of {sum(bool(pair.bugs) for pair in PAIRS)}"),
        *((f"bugs {words}", f"{sum(bool(bug.get(key)) for bug in found)} of {len(found)}")
          for key, words in BUG_KEYS.items()),
    ]  # fmt: skip
    return "## In short\n\n" + table(("", ""), rows)


def alone(pair: Pair) -> bool:
    return not (pair.mapping or pair.ignore_torch or pair.ignore_flax)


def row(pair: Pair, answer: Mapping[str, Any] | None) -> tuple[Any, ...]:
    if answer is None:
        return (pair.name, "not asked", "", "", "", "", "")
    if "error" in answer:
        return (
            pair.name,
            f"**none**: {answer['error'].splitlines()[0][:200]}",
            weights(pair, answer),
            "",
            "",
            "",
            "",
        )
    seconds = f"{answer['match_seconds'] + answer['compare_seconds']:.0f}"
    largest = f"{answer['largest']:.1e}"
    return (
        pair.name,
        verdict(pair, answer),
        weights(pair, answer),
        answer["tensors"],
        largest,
        answer["in"],
        seconds,
    )


def verdict(pair: Pair, answer: Mapping[str, Any]) -> str:
    text = answer["verdict"]
    if answer["constants"]:
        text += f" up to float32 constants in {', '.join(answer['constants'])}"
    return text if right(pair, answer) else f"**{text}**, which is not explained"


def mapping_lines(answer: Mapping[str, Any]) -> list[str]:
    return [line for line in answer.get("weights", "").splitlines()[1:-1] if not line.strip().startswith("#")]


def weights(pair: Pair, answer: Mapping[str, Any]) -> str:
    given = len(pair.mapping) + len(pair.ignore_torch) + len(pair.ignore_flax)
    found = len(mapping_lines(answer)) - len(pair.mapping)
    words = [f"{given} given"] * bool(given) + [f"{found} found"] * (found > 0)
    return ", ".join(words) or "none"


def lines_of_mapping(answers: Answers) -> str:
    """What users have to write, word by word."""
    parts = ["## Lines that a user needs"]
    for pair in PAIRS:
        lines = [f"{torch!r}: {flax!r}" for torch, flax in pair.mapping.items()]
        lines += [f"ignore_torch={list(pair.ignore_torch)}"] * bool(pair.ignore_torch)
        lines += [f"ignore_flax={list(pair.ignore_flax)}"] * bool(pair.ignore_flax)
        if lines:
            parts.append(f"{pair.name}:\n\n" + "\n".join(f"    {line}" for line in lines))
    if len(parts) == 1:
        parts.append("None: `match` finds the weights of all pairs.")
    return "\n\n".join(parts)


def bugs(answers: Answers) -> str:
    rows = [
        (pair.name, bug["name"], *(mark(bug, key) for key in BUG_KEYS), cause(bug))
        for pair in PAIRS
        for bug in answers.get(pair.name, {}).get("bugs", ())
    ]
    return table(("", "bug", *BUG_KEYS.values(), "what is said"), rows)


def mark(bug: Mapping[str, Any], key: str) -> str:
    return "yes" if bug.get(key) else "**no**"


def cause(bug: Mapping[str, Any]) -> str:
    if "error" in bug:
        return bug["error"].splitlines()[0][:160]
    texts = [text for place in bug["places"] for text in place["causes"]]
    return (texts or [place["where"] for place in bug["places"]] or [""])[0][:200]


def differences() -> str:
    parts = [DIFFERENT]
    parts += [f"### {each.title}\n\n{', '.join(each.pairs)}. {each.text}" for each in DIFFERENCES]
    return "\n\n".join(parts)
