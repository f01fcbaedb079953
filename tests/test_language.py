"""Names tell what they hold, and the prose is plain: the counts of both may only fall."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict

import language
import pytest

CEILINGS = {
    "_arguments": (0, 0),
    "_checkpointer": (0, 0),
    "_cli": (0, 1),
    "_devices": (0, 1),
    "_metrics": (0, 0),
    "_parallel": (0, 1),
    "_rulebook": (0, 0),
    "_statistics": (0, 0),
    "_tools": (0, 2),
    "_training": (0, 3),
    "_upstream": (0, 0),
    "comm_hooks": (0, 0),
    "data": (2, 4),
    "distributed": (0, 0),
    "distributions": (0, 0),
    "jaxpar": (0, 2),
    "nn": (0, 2),
    "optim": (0, 4),
    "parity": (0, 2),
    "random": (1, 2),
}
"""Vague names and mannered constructions, by package. Lower a number when you mend one; never raise it."""

counts = functools.cache(language.counts)


def test_every_package_has_a_ceiling():
    assert counts().keys() == CEILINGS.keys()


@pytest.mark.parametrize("package", CEILINGS)
def test_the_counts_only_fall(package):
    names, constructions = counts()[package]
    most_names, most_constructions = CEILINGS[package]
    hint = f"`python tests/language.py {package}` lists them"
    assert names <= most_names, hint
    assert constructions <= most_constructions, hint


def classes() -> dict[str, list[str]]:
    """The files that define a class of each name at their top level."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(language.PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                files[node.name].append(path.relative_to(language.PACKAGE).as_posix())
    return files


@pytest.mark.full
def test_a_class_name_means_one_thing():
    # torch's layers exist in three layouts, under torch's names in each.
    repeated = {name: files for name, files in classes().items() if len(files) > 1}
    assert not {name: files for name, files in repeated.items() if any(f[:3] != "nn/" for f in files)}


PLANTED = {
    "a variable": ("found = 1\n", ["name"]),
    "a parameter": ("def f(each):\n    pass\n", ["name"]),
    "in a comprehension": ("[word for word in x]\n", ["name"]),
    "an attribute, which is not counted": ("x.found = 1\n", []),
    "in a docstring": ('"""What is said."""\n', ["programs that say"]),
    "in a comment": ("x = 1  # there is no way\n", ["is no X"]),
    "in an error text, which is not counted": ("raise E('nobody lies')\n", []),
    "twice in a line": ("# the word behind it\n", ["behind", "words"]),
}


@pytest.mark.parametrize("case", PLANTED)
def test_planted_names_and_constructions_are_counted(case):
    source, kinds = PLANTED[case]
    hits = language.vague_names(source) + language.mannered_prose(source)
    assert [hit.kind for hit in hits] == kinds
