"""Everything the pages in docs/ say is run, counted or looked up."""

from __future__ import annotations

import ast
import builtins
import doctest
import functools
import posixpath
import re
import sys
import types
from pathlib import Path

import pytest
from test_architecture import FLOORS
from wandb_stand_in import stand_in

import jaxpar
from jaxpar import errors

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text()
    for path in sorted([*DOCS.glob("*.md"), *DOCS.glob("tables/*.md")])
}

# ----------------------------------------------------------------------------------- blocks of code

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run(page: str, text: str) -> None:
    """Runs a page's blocks in order in one namespace.

    A block with `>>>` is compared with what it prints. A block whose last line ends in
    `# raises: Name` must raise exactly that class, and a text block after it is the message.
    """
    module = types.ModuleType("docs_" + page.removesuffix(".md").replace("/", "_"))
    sys.modules[module.__name__] = module  # dataclasses and Linen modules look themselves up there
    message = None
    try:
        for block in FENCE.finditer(text):
            language, code = block.groups()
            line = text.count("\n", 0, block.start()) + 1
            if language == "text" and message is not None:
                assert fits(message, code), f"{page}:{line}: the message is\n{message}"
            message = None
            if language == "python":
                # Empty lines, so that tracebacks have the page's own line numbers.
                message = run_block("\n" * line + code, module.__dict__, f"docs/{page}")
    finally:
        del sys.modules[module.__name__]


def run_block(code: str, namespace: dict, name: str) -> str | None:
    if ">>> " in code:
        compare(code, namespace, name)
        return None
    compiled = compile(code, name, "exec")
    raises = re.search(r"# raises: (\w+)\n*\Z", code)
    if raises is None:
        exec(compiled, namespace)
        return None
    expected = getattr(errors, raises[1], None) or getattr(builtins, raises[1])
    with pytest.raises(expected) as caught:
        exec(compiled, namespace)
    assert caught.type is expected, f"{name}: {caught.type.__name__}, not {expected.__name__}"
    return str(caught.value)


def compare(code: str, namespace: dict, name: str) -> None:
    test = doctest.DocTestParser().get_doctest(code, namespace, name, name, 0)
    test.globs = namespace  # a DocTest has a copy, and later blocks would not see its names
    report: list[str] = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append, clear_globs=False)
    assert not report, "".join(report)


def fits(message: str, text: str) -> bool:
    """Whether the text is the message, `...` standing for anything."""
    said, shown = " ".join(message.split()), " ".join(text.split())
    return re.fullmatch(".*".join(map(re.escape, shown.split("..."))), said) is not None


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", stand_in()[0])
    run(page, PAGES[page])


@pytest.mark.full
def test_wandb_is_given_every_number(monkeypatch):
    module, runs = stand_in()
    monkeypatch.setitem(sys.modules, "wandb", module)
    run("logging.md", PAGES["logging.md"])
    (found,) = runs
    assert [step for step, _ in found.logged] == [*range(20), 19]
    assert [list(data) for _, data in found.logged] == [["train/loss"]] * 20 + [["val/loss"]]
    assert found.finished


FAULTS = {
    "an exception": "1 / 0\n",
    "another value": ">>> 1 + 1\n3\n",
    "nothing raised": "x = 1  # raises: ValueError\n",
    "another class": "{}[1]  # raises: LookupError\n",
    "another message": "{}[1]  # raises: KeyError\n```\n\n```text\n2\n",
    "a name of another page": "inputs\n",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_in_a_block_is_found(fault):
    with pytest.raises((AssertionError, ZeroDivisionError, NameError, pytest.fail.Exception)):
        run("planted.md", f"```python\n{FAULTS[fault]}```\n")


def test_blocks_share_their_names():
    run(
        "planted.md",
        "```python\nx = 1\n```\n\n```python\n>>> y = x + 1\n```\n\n```python\nassert y == 2\n```\n",
    )


# ------------------------------------------------------------------------------------- the contract

RULES = [str(i) for i in range(1, 81)]
MORE = {"D": 31, "H": 8, "J": 9, "B": 7, "N": 9, "R": 9, "T": 3, "P": 22}
RULES += [f"{letter}{i}" for letter, n in MORE.items() for i in range(1, n + 1)]
VERDICTS = {"same", "differs", "n/a"}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def check_contract(text: str) -> None:
    """One row for each rule, in order, with a verdict, and tests that exist."""
    rows = contract(text)
    numbers = [number for number, *_ in rows]
    assert numbers == RULES, f"not once and in order: {sorted(set(numbers) ^ set(RULES)) or numbers}"
    for number, torch, ours, pinned in rows:
        verdict = re.match(r"\*\*(.*?)\*\*", ours)
        assert verdict, f"row {number} does not begin with a verdict"
        assert verdict[1] in VERDICTS, f"row {number}: {verdict[1]} is no verdict"
        assert torch, f"row {number} says nothing of torch"
        assert verdict[1] == "same" or len(ours) > 30, f"row {number} gives no reason"
        tests = TEST.findall(pinned)
        assert TEST.sub("", pinned).strip(" ,") == "", f"row {number}: {pinned} is no list of tests"
        mine = [file for file, _ in tests if not file.startswith("tests/reference")]
        assert mine or verdict[1] == "n/a", f"row {number} is pinned by nothing"
    for file, name in TEST.findall(text):
        assert name in functions(file), f"{file} has no {name}"


def contract(text: str) -> list[tuple[str, str, str, str]]:
    found = []
    for table in re.findall(r"^\| # \|.*\n\|[-|]+\|\n((?:\|.*\n)*)", text, re.M):
        for row in table.splitlines():
            number, *cells = (cell.strip() for cell in row.strip("|").split("|"))
            assert len(cells) == 3, row
            found.append((number, *cells))
    return found


@functools.cache
def functions(file: str) -> set[str]:
    path = ROOT / file
    assert path.exists(), f"there is no {file}"
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_the_contract_has_a_row_for_every_rule():
    check_contract(PAGES["semantics.md"])


CITED = re.compile(r"docs/semantics\.md (rows?|section) ((?:[A-Z]?\d[\d.]*(?:-|, | and | to |; )?)+)")


def cited(text: str) -> set[str]:
    """The rows and sections that a text cites; `P10-P14` are its two ends."""
    return {
        ("section " if what == "section" else "") + number.strip(".")
        for what, numbers in CITED.findall(re.sub(r"\s+#?\s*", " ", text))
        for number in re.findall(r"[A-Z]?\d[\d.]*", numbers)
    }


def test_rules_that_the_code_cites_are_there():
    sections = re.findall(r"^## (\d[.\d]*)", PAGES["semantics.md"], re.M)
    known = set(RULES) | {f"section {number}" for number in sections}
    places = [ROOT / "jaxpar", ROOT / "torch_ref", ROOT / "tests", ROOT / "examples"]
    found = {path: cited(path.read_text()) for place in places for path in place.rglob("*.py")}
    assert sum(map(len, found.values())) > 150
    for path, numbers in found.items():
        assert numbers <= known, f"{path} cites {numbers - known}, which docs/semantics.md does not have"
    assert cited("(docs/semantics.md rows 15,\n# D99).") - known == {"D99"}


CUT = {
    "a row removed": (r"^\| 24 \|.*\n", "", "24"),
    "a row twice": (r"^(\| 24 \|.*\n)", r"\1\1", "in order"),
    "no verdict": (r"^(\| 24 \|.*?)\*\*differs\*\*", r"\1differs", "row 24 does not begin"),
    "another verdict": (r"^(\| 24 \|.*?)\*\*differs\*\*", r"\1**better**", "better is no verdict"),
    "no test": (r"^(\| 24 \|.*\|).*\|$", r"\1 |", "row 24 is pinned by nothing"),
    "only torch's test": (r"^(\| 24 \|.*\| )`tests/test_.*?`, ", r"\1", "row 24 is pinned by nothing"),
    "a test that is gone": (
        r"test_different_row_counts",
        "test_different_rows",
        "has no test_different_rows",
    ),
    "a file that is gone": (r"tests/test_scatter\.py", "tests/test_scatters.py", "there is no"),
}


@pytest.mark.parametrize("fault", CUT)
def test_a_planted_fault_in_the_contract_is_found(fault):
    pattern, replacement, message = CUT[fault]
    text, changes = re.subn(pattern, replacement, PAGES["semantics.md"], flags=re.M)
    assert changes
    with pytest.raises(AssertionError, match=message):
        check_contract(text)


# ---------------------------------------------------------------------------------- names and links


def words() -> set[str]:
    """The words in code on all pages, `jaxpar.scatter(x)` being `scatter` and others."""
    # The page of planted bugs quotes the library's own lines, which explains nothing.
    text = "\n".join(text for page, text in PAGES.items() if page != "tables/mutants.md")
    code = [block for _, block in FENCE.findall(text)] + re.findall(r"`([^`\n]+)`", text)
    return set(re.findall(r"\w+", " ".join(code)))


def error_classes() -> list[str]:
    return [name for name, value in vars(errors).items() if isinstance(value, type)]


def public_names() -> dict[str, set[str]]:
    """The names in each table of contents, by its package."""
    stubs = sorted((ROOT / "jaxpar").rglob("__init__.pyi"))
    return {
        ".".join(stub.parent.relative_to(ROOT).parts): {
            alias.asname or alias.name for node in ast.parse(stub.read_text()).body for alias in node.names
        }
        for stub in stubs
    }


@pytest.mark.parametrize("package", public_names())
def test_every_public_name_is_on_a_page(package):
    assert public_names()[package] - words() == set()


def test_the_tables_of_contents_are_those_of_the_packages():
    assert public_names()["jaxpar"] >= set(jaxpar.__all__) - {"__version__"}
    assert sum(map(len, public_names().values())) > 700


def test_every_error_has_a_section_of_its_own():
    headings = re.findall(r"^## (\w+)$", PAGES["errors.md"], re.M)
    assert headings == error_classes()
    for name in headings[1:]:
        section = PAGES["errors.md"].split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert f"# raises: {name}\n" in section
        assert section.count("```python") >= 2, f"{name} has no cure that is run"
        builtin = getattr(errors, name).__bases__[1].__name__
        assert re.match(rf"\nAn? {builtin}\. ", section), f"{name} is a {builtin}"


LINK = r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)"
"""Its page and its heading."""


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        for file, anchor in re.findall(LINK, re.sub(r"`[^`\n]*`", "code", text)):
            target = PAGES.get(
                posixpath.normpath(posixpath.join(posixpath.dirname(page), file)) if file else page
            )
            assert target is not None, f"{page}: {file}"
            headings = [re.sub(r"[^\w -]", "", h.lower()) for h in re.findall(r"^#+ (.*)$", target, re.M)]
            headings = [h.replace(" ", "-") for h in headings]
            assert not anchor or anchor in headings, f"{page}: {file}#{anchor}"


def test_every_page_can_be_reached_from_the_index():
    seen, todo = set(), ["index.md"]
    while todo:
        page = todo.pop()
        if page not in seen:
            seen.add(page)
            todo += [link for link in re.findall(r"\]\(([\w/-]+\.md)", PAGES[page]) if link in PAGES]
    assert seen == set(PAGES)


def figures(text: str) -> set[tuple[str, str]]:
    """The first and the last cell of each row of the tables in a page, and the counts of planted mutants."""
    rows = re.findall(r"^\| ([^|]+) \|(?:.*\|)? ([^|]+) \|$", text, re.M)
    return {*rows, *(("mutants", count) for count in re.findall(r"\d+ planted: .*equivalent", text))}


def test_figures_of_the_summary_are_those_of_the_tables():
    printed = set().union(*(figures(text) for page, text in PAGES.items() if page.startswith("tables/")))
    summary = figures(PAGES["evidence.md"])
    assert len(summary) == 35
    assert summary <= printed


@pytest.mark.full
def test_the_picture_of_the_floors_is_the_tested_one():
    (picture,) = re.findall(r"^```text\n(__main__\n.*?)^```$", PAGES["design.md"], re.M | re.S)
    assert [set(line.split()) for line in reversed(picture.splitlines())] == FLOORS
