"""Counts of vague names and of mannered prose in the library, per package.

`python tests/language.py` lists them, with file and line.

A name such as `found` or `each` holds anything, so a reader has to look up what it holds. The
constructions of `PROSE` are grammatical, but a native writer of documentation rarely uses them: equinox,
optax and accelerate have 2 to 4 of them in 10,000 words.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1] / "jaxpar"

NAMES = frozenset(
    re.findall(
        r"\w+",
        """
        found said each given made own told held kept wanted mine theirs ours there here seen taken known
        asked missing whole rest left around apart inside beside below behind way ways word words place places
        """,
    )
)

NOUN = (
    "number|numbers|type|shape|order|one|way|layout|device|object|version|form|value|values|class|world|rate"
    "|names?|text"
)
PROSE = {
    "is no X": re.compile(r"\b(is|are|was|were) no (?!longer|more|one|such)[a-z]"),
    "behind": re.compile(r"\bbehind\b"),
    "another X": re.compile(rf"\b(another|other) ({NOUN})\b"),
    "Of X, ...": re.compile(r"(^|[.!?:;]\s+)Of (a|an|the|several|two|one|all|what|those|every|each|[A-Z`])"),
    "who of programs": re.compile(r"\b(whoever|nobody|everybody|somebody|who)\b"),
    "programs that say": re.compile(r"\b(said|told|says|say)\b"),
    "that of": re.compile(r"\b(that|those) of\b"),
    "there is none": re.compile(r"\b(there is none|is none|are none|it is none|if there is one)\b"),
    "in it, of it": re.compile(r"\b(in|of|with|for|from|beside|before|after) it\b"),
    "beside": re.compile(r"\bbeside\b"),
    "words": re.compile(r"\bwords?\b"),
    "stands": re.compile(r"\bstands?\b"),
    "lies": re.compile(r"\b(lies|lie)\b"),
}


class Hit(NamedTuple):
    line: int
    kind: str
    text: str


def vague_names(source: str) -> list[Hit]:
    """Variables and parameters whose names do not tell what they hold."""
    bound = [
        (node.lineno, node.id if isinstance(node, ast.Name) else node.arg)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]
    return [Hit(line, "name", name) for line, name in sorted(bound) if name in NAMES]


def mannered_prose(source: str) -> list[Hit]:
    """Occurrences of `PROSE` in docstrings, strings that stand alone, and comments."""
    return [
        Hit(line, kind, " ".join(text.split())[:90])
        for line, text in prose(source)
        for kind, pattern in PROSE.items()
        for _ in pattern.finditer(text)
    ]


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Each docstring and comment with its first line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def package_of(path: Path) -> str:
    """The package below jaxpar that a file belongs to; "jaxpar" for the files at the root."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "jaxpar"


def hits() -> dict[Path, list[Hit]]:
    """Every vague name and mannered construction of the library, by file."""
    sources = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    return {path: vague_names(source) + mannered_prose(source) for path, source in sources.items()}


def counts() -> dict[str, tuple[int, int]]:
    """The numbers of vague names and of mannered constructions, by package."""
    totals: defaultdict[str, Counter] = defaultdict(Counter)
    for path, in_file in hits().items():
        totals[package_of(path)].update("name" if hit.kind == "name" else "prose" for hit in in_file)
    return {package: (total["name"], total["prose"]) for package, total in sorted(totals.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description="List vague names and mannered prose.")
    parser.add_argument("package", nargs="?", help="one package, such as optim")
    package = parser.parse_args().package
    for path, in_file in hits().items():
        if package in (None, package_of(path)):
            for line, kind, text in in_file:
                print(f"{path.relative_to(PACKAGE.parent)}:{line}: {kind}: {text}")
    for name, (names, constructions) in counts().items():
        if package in (None, name):
            print(f'"{name}": ({names}, {constructions}),')


if __name__ == "__main__":
    main()
