"""The table of modules that are ported, the page about them, and what is asked of a written file.

None of it needs torchvision or transformers: `make ports` does.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import jax
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # benchmarks is no installed package

from porting import modules  # noqa: E402

from benchmarks.ports import ask, halves, models, names, page, run  # noqa: E402
from jaxpar import parity  # noqa: E402
from jaxpar.parity._port.writing import formatted  # noqa: E402

SAME = {"name": "ours/MLP", "status": 0, "written": True, "holes": [], "notes": [], "failure": "",
        "proofs": [True] * 3, "largest": 1e-15, "lines": 12, "torch_lines": 10, "names": [], "ruff": "",
        "seconds": 3.0, "processor": 2.0}  # fmt: skip
DIFFERENT = {**SAME, "status": 1, "proofs": [False]}
HOLES = {**SAME, "status": 2, "proofs": [], "holes": ["m.py:3: x.item(): a number"], "largest": 0.0}
NO_FILE = {"name": "ours/MLP", "status": 3, "written": False, "failure": "out of time"}


def test_names_of_cases_are_names_of_files():
    places = [run.kept(name) for name in models.BY_NAME]
    assert len(set(places)) == len(places) == sum(map(len, models.GROUPS.values()))
    assert page.TITLES.keys() == models.GROUPS.keys()


@pytest.mark.parametrize("name", models.BY_NAME)
def test_a_call_is_the_same_each_time(name):
    one, other = (models.BY_NAME[name].call() for _ in range(2))
    assert one[1].keys() == other[1].keys()
    for mine, its in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert torch.equal(mine, its) if isinstance(mine, torch.Tensor) else mine == its


def test_groups_and_names_are_chosen():
    every = list(models.BY_NAME)
    assert run.chosen_names(None, every) == every
    assert run.chosen_names(["ours/MLP"], every) == ["ours/MLP"]
    assert run.chosen_names(["ours"], every) == [name for name in every if name.startswith("ours/")]
    with pytest.raises(SystemExit, match="no such group"):
        run.chosen_names(["theirs"], every)


@pytest.mark.parametrize(
    ("answer", "good", "said"),
    [
        (SAME, True, "same"),
        ({**SAME, "largest": 4e-8, "constants": True}, True, "same but for constants in float32"),
        ({**SAME, "largest": 4e-8}, True, "same where digits do not cancel"),
        (DIFFERENT, False, "**different**"),
        (HOLES, True, "1 hole"),
        (NO_FILE, True, "no file"),
        ({**NO_FILE, "failure": "it timed out after 300 seconds"}, True, "out of time"),
    ],
)
def test_the_page_says_what_was_said(answer, good, said):
    answers = {"ours/MLP": answer}
    assert page.good(answers) is good
    assert f"| MLP | {said} |" in page.write(answers, "make ports")
    for reason in (*answer.get("holes", ()), answer["failure"]):
        assert reason in page.write(answers, "make ports")


def test_halves_are_drawn_by_a_seed():
    names = [str(number) for number in range(9)]
    development, reported = halves.halves(names)
    assert sorted(development + reported) == names
    assert halves.halves(names[::-1]) == (development, reported) != halves.halves(names, seed=33)
    assert "PAN, vgg11_bn" not in [*itertools.chain(*halves.halves(["PAN, vgg11_bn", *names]))]


def test_a_sample_takes_turns_of_the_frames():
    first = run.drawn(1, 2)
    assert [name.partition("/")[0] for name in first] == [*models.FRAMES] * 2
    assert not {*first} & {*run.drawn(0, None)}


def test_a_half_is_counted_alone():
    development, reported = (
        f"timm/{half[0]}" for half in halves.halves(c.name for c in models.GROUPS["timm"])
    )
    text = page.write({development: {**HOLES, "name": development}, reported: {**SAME, "name": reported}}, "")
    assert "| timm | 32 | development | 49 | 1 | 0 | 0 | 1 | 0 |" in text
    assert "| timm | 32 | reported | 49 | 1 | 1 | 0 | 0 | 0 |" in text


@pytest.mark.full
def test_names_are_those_of_the_source(tmp_path):
    port = parity.port(modules.MLP, torch.ones(3, 6))
    assert names.strange(port.source) == []
    for planted in ("def inner_1():\n    pass\n", "value_7 = 1\n", "modules.layer_12 = 1\n"):
        assert names.strange(f"{port.source}\n{planted}") != []


def test_ruff_is_asked(tmp_path):
    path = tmp_path / "port.py"
    path.write_text("x = 1\n")
    assert ask.ruff(path) == ""
    for planted in ("import os\n", "x  =  1\n"):
        path.write_text(planted)
        assert ask.ruff(path) != ""


def test_the_authors_style_stays_and_ruff_is_told(tmp_path):
    path = tmp_path / "port.py"
    path.write_text(
        formatted('"""Two."""\n\ndef f(b):\n    unused = 3\n    return int(round(b))\n', str(path))
    )
    assert ask.ruff(path) == ""
    assert "# ruff: noqa: RUF046 (as torch's source has it)" in path.read_text()
    assert "int(round(b))" in path.read_text()
    assert "unused" not in path.read_text()


def test_a_mistake_is_never_the_authors_style(tmp_path):
    path = tmp_path / "port.py"
    path.write_text(formatted('"""One."""\n\n\ndef f(x):\n    return undefined(x)\n', str(path)))
    assert "noqa" not in path.read_text()
    assert "F821" in ask.ruff(path)


PAGE = ROOT / "docs" / "tables" / "ports.md"
GROUP_OF = {title: group for group, title in page.TITLES.items()}


def chapters():
    """The rows of each table of the page, by its chapter: of a chapter's first one."""
    parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.M)[1:]
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        table = re.search(r"^\|[-|]+\|\n((?:\|.*\n?)*)", text, re.M)
        yield title, [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[1].splitlines()]


def test_the_page_has_cases_of_the_table_in_its_order():
    for title, rows in chapters():
        if title in GROUP_OF:
            cases = [case.name for case in models.GROUPS[GROUP_OF[title]]]
            assert [row[0] for row in rows] == [name for name in cases if name in {row[0] for row in rows}]


def test_the_page_counts_its_own_rows():
    found = dict(chapters())
    for title, models_of, asked, written, same, holes, different, no_proof, *_ in found["In short"]:
        rows = found.get(title, [])
        verdicts = [row[1] for row in rows]
        assert int(models_of) == len(models.GROUPS[GROUP_OF[title]])
        assert int(asked) == len(rows)
        assert int(written) == len(rows) - verdicts.count("no file") - verdicts.count("out of time")
        assert int(same) == verdicts.count("same")
        assert int(holes) == sum("hole" in verdict for verdict in verdicts)
        assert int(different) == sum("different" in verdict for verdict in verdicts)
        assert int(no_proof) == sum(verdict in ("no proof", "no file", "out of time") for verdict in verdicts)


def test_no_file_of_the_page_is_wrong():
    bars = {name: (bar, found) for name, bar, found in dict(chapters())["Bars"]}
    assert bars["different, of these groups"] == ("0", "0")
    assert bars["names that are not in the source"] == ("0", "0")
    assert float(bars["lines for each of torch's, at most"][1]) <= page.MOST_LINES
