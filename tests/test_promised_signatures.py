"""Calls of the last release still work: a public signature changes only where the changelog names it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from promised_signatures import FILE, broken, signatures

PROMISED = json.loads(FILE.read_text())
CHANGELOG = (Path(__file__).resolve().parents[1] / "CHANGELOG.md").read_text()


def announced(version: str) -> str:
    """The sections "Changed" and "Removed" of what has come since a release."""
    later = CHANGELOG.split(f"\n## {version}")[0]
    return "\n".join(
        re.findall(r"^### (?:Changed|Removed)\n(.*?)(?=^##|\Z)", later, re.MULTILINE | re.DOTALL)
    )


def test_every_signature_is_kept_or_its_change_is_announced():
    current, text = signatures(), announced(PROMISED["version"])
    problems = {}
    for name, old in PROMISED["signatures"].items():
        why = "it is gone" if name not in current else broken(old, current[name])
        if why and f"`{name.rpartition('.')[2]}" not in text and name not in text:
            problems[name] = why
    assert not problems, "name them in CHANGELOG.md under Changed, or keep the old form with a warning"
    assert len(current) > 900


OLD = [["x", "any", True], ["dim", "any", False], ["eps", "keyword", False]]
CASES = {
    "the same": (OLD, None),
    "one more": ([*OLD, ["new", "keyword", False]], None),
    "one more in the middle": ([OLD[0], ["new", "any", False], *OLD[1:]], "dim is no longer argument 1"),
    "one more that is required": ([*OLD, ["new", "keyword", True]], "new has to be given"),
    "renamed": ([OLD[0], ["axis", "any", False], OLD[2]], "dim is gone"),
    "keyword only": ([OLD[0], ["dim", "keyword", False], OLD[2]], "dim is no longer argument 1"),
    "positional only": ([["x", "positional", True], *OLD[1:]], "x cannot be named any more"),
    "required now": ([OLD[0], ["dim", "any", True], OLD[2]], "dim has to be given"),
    "keywords are free": ([*OLD[:2], ["others", "**", True]], None),
    "all is free": ([["args", "*", True], ["kwargs", "**", True]], None),
}


@pytest.mark.parametrize("case", CASES)
def test_what_breaks_a_call(case):
    new, why = CASES[case]
    assert broken(OLD, new) == why
